// SPDX-License-Identifier: Apache-2.0
/// A training loop that publishes its model after every step. Run it beside ./subscriber.
///
/// usage: publisher [STEPS]

#include <cstdlib>
#include <iostream>
#include <vector>

#include "transport/publisher.h"

int main(int count, char** words) {
  const int steps = count > 1 ? std::atoi(words[1]) : 100;
  auto publisher = freshet::Publisher::open({.model = "small"});
  if (!publisher) return std::cerr << publisher.error().message() << "\n", 1;

  std::vector<float> body(1 << 20, 0.0f);
  std::vector<float> head(1 << 10, 0.0f);
  const freshet::TensorView tensors[] = {{{.name = "body.weights", .dtype = freshet::DType::f32, .shape = {1024, 1024}},
                                          freshet::bytes_of(body.data(), body.size())},
                                         {{.name = "head.weights", .dtype = freshet::DType::f32, .shape = {1024}},
                                          freshet::bytes_of(head.data(), head.size())}};

  for (int step = 1; step <= steps; ++step) {
    for (float& weight : head) weight += 0.01f;  // Your training step. The body is frozen.
    // The first version needs all tensors. Of later versions, a tensor that is not named costs nothing.
    freshet::PublishOptions options{.step = static_cast<std::uint64_t>(step), .metrics = {{"loss", 1.0 / step}}};
    if (step > 1) options.changed = freshet::Changed::only({1});  // tensors[1], the head
    const auto receipt = (*publisher)->publish(tensors, options);
    if (!receipt) std::cerr << receipt.error().message() << "\n";  // For example out_of_space: training goes on.
  }
  std::cin.get();  // A publisher that has ended serves no newcomers.
}
