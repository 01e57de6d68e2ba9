// SPDX-License-Identifier: Apache-2.0
/// A server that always answers with the newest version. Run it beside ./publisher.
///
/// usage: subscriber [UNTIL_STEP]

#include <cstdlib>
#include <iostream>

#include "transport/subscriber.h"

int main(int count, char** words) {
  const std::uint64_t last = count > 1 ? std::strtoull(words[1], nullptr, 10) : 100;
  auto subscriber = freshet::Subscriber::open({.model = "small"});
  if (!subscriber) return std::cerr << subscriber.error().message() << "\n", 1;

  freshet::VersionNumber served = 0;
  std::uint64_t step = 0;
  while (step < last) {
    const freshet::Status newer = (*subscriber)->wait_for(served + 1, std::chrono::seconds(30));
    if (!newer) return std::cerr << newer.error().message() << "\n", 1;
    // One whole version, that stays as it is until the snapshot is dropped. Take one for each request.
    const freshet::Snapshot model = (*subscriber)->snapshot();
    const auto head = model.tensor("head.weights");
    if (!head) return std::cerr << head.error().message() << "\n", 1;
    served = model.version();
    step = model.manifest().step;
    std::cout << "version " << served << ", step " << step << ", first weight "
              << *reinterpret_cast<const float*>(head->data.data()) << "\n";
  }
}
