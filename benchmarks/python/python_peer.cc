// SPDX-License-Identifier: Apache-2.0
/// The C++ side of the benchmark `python`: the same call without Python, in the same run. It measures one time for each
/// line that it reads, so that the two take turns, and prints the time.
///
/// usage: python_peer publish TENSORS ELEMENTS   milliseconds of one publish() of so many bound f32 tensors, all
/// changed
///        python_peer snapshot MODEL CALLS       nanoseconds of one snapshot() and its end, of so many in a row

#include <charconv>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/format.h"
#include "transport/publisher.h"
#include "transport/subscriber.h"

namespace freshet::benchmarks {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);

Result<std::uint64_t> number_of(std::string_view word) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size() || number == 0) {
    return fail(Code::invalid_argument, format("\"{}\" is no number above zero", word));
  }
  return number;
}

/// Says that it is ready, then measures for each line; ends with its input.
Status answer_lines(const std::function<Result<double>()>& measure) {
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    FRESHET_ASSIGN(const double took, measure());
    std::cout << took << std::endl;
  }
  return {};
}

Status publish_many(std::uint64_t tensors, std::uint64_t elements) {
  FRESHET_ASSIGN(const auto publisher, Publisher::open({.model = "many_cpp"}));
  std::vector<std::vector<float>> arrays(tensors, std::vector<float>(elements));
  std::vector<TensorView> views;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    views.push_back({.spec = {.name = format("t{}", i), .dtype = DType::f32, .shape = {elements}},
                     .data = bytes_of(arrays[i].data(), elements)});
  }
  BoundTensors bound = publisher->bind(std::move(views));
  return answer_lines([&]() -> Result<double> {
    for (std::vector<float>& array : arrays) {
      for (float& value : array) value += 1;
    }
    const auto begin = std::chrono::steady_clock::now();
    FRESHET_ASSIGN(const PublishReceipt receipt, bound.publish({}));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    // What follows behind the loop is over before the other side's turn.
    FRESHET_ASSIGN(const CommitReport report, publisher->wait_committed(receipt.version, kPatience));
    static_cast<void>(report);
    return took.count();
  });
}

Status take_snapshots(const std::string& model, std::uint64_t calls) {
  FRESHET_ASSIGN(const auto subscriber, Subscriber::open({.model = model}));
  FRESHET_TRY(subscriber->wait_for(1, kPatience));
  return answer_lines([&]() -> Result<double> {
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t call = 0; call < calls; ++call) {
      if (!subscriber->snapshot()) return fail(Code::unavailable, "a snapshot is empty");
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    return took.count() / static_cast<double>(calls);
  });
}

Status run(const std::vector<std::string>& words) {
  if (words.size() == 3 && words[0] == "publish") {
    FRESHET_ASSIGN(const std::uint64_t tensors, number_of(words[1]));
    FRESHET_ASSIGN(const std::uint64_t elements, number_of(words[2]));
    return publish_many(tensors, elements);
  }
  if (words.size() == 3 && words[0] == "snapshot") {
    FRESHET_ASSIGN(const std::uint64_t calls, number_of(words[2]));
    return take_snapshots(words[1], calls);
  }
  return fail(Code::invalid_argument, "usage: python_peer publish TENSORS ELEMENTS | snapshot MODEL CALLS");
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  const freshet::Status done = freshet::benchmarks::run(std::vector<std::string>(argv + 1, argv + argc));
  if (done) return 0;
  std::cerr << "python_peer: " << done.error().message() << "\n";
  return done.error().code() == freshet::Code::invalid_argument ? 2 : 1;
}
