// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iostream>
#include <thread>

#include "benchmarks/update_latency/freshet_subject.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "transport/subscriber.h"

namespace freshet::benchmarks {
namespace {

/// How long snapshot() took, in nanoseconds: a count for each up to a limit, so that noting one costs next to nothing.
class StallHistogram {
 public:
  void add(std::int64_t ns) {
    ++counts_[std::min<std::size_t>(static_cast<std::size_t>(std::max<std::int64_t>(ns, 0)), counts_.size() - 1)];
    ++total_;
    max_ = std::max(max_, ns);
  }
  double percentile_us(double fraction) const {
    const double rank = std::ceil(fraction * static_cast<double>(total_));
    std::uint64_t seen = 0;
    for (std::size_t ns = 0; ns < counts_.size(); ++ns) {
      seen += counts_[ns];
      if (static_cast<double>(seen) >= rank) return static_cast<double>(ns) / 1e3;
    }
    return static_cast<double>(max_) / 1e3;
  }
  double max_us() const { return static_cast<double>(max_) / 1e3; }
  std::uint64_t total() const { return total_; }

 private:
  std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(1 << 20);
  std::uint64_t total_ = 0;
  std::int64_t max_ = 0;
};

std::uint64_t faults_of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_minflt + usage.ru_majflt);
}

/// A server that does nothing but take the model for requests.
void take_snapshots(Subscriber& subscriber, const std::atomic<bool>& stop, StallHistogram& histogram) {
  std::uint64_t read = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    const std::int64_t start_ns = monotonic_ns();
    const Snapshot snapshot = subscriber.snapshot();
    histogram.add(monotonic_ns() - start_ns);
    if (!snapshot) continue;
    const std::size_t tensors = snapshot.manifest().architecture->tensors().size();
    read += static_cast<std::uint64_t>(snapshot.bytes(static_cast<std::uint32_t>(read % tensors))[0]) + 1;
  }
}

class Lines {
 public:
  void write(const std::string& line) {
    const MutexLock lock(mutex_);
    std::cout << line << std::endl;
  }

 private:
  Mutex mutex_;
};

}  // namespace

int run_freshet_reader(const std::vector<std::string>& arguments) {
  Lines lines;
  std::atomic<Subscriber*> self{nullptr};
  const auto on_update = [&](const Update& update) {
    const std::int64_t swapped_ns = monotonic_ns();
    self.wait(nullptr);  // The first update may come before open() has returned.
    Subscriber* const subscriber = self.load();
    std::string line =
        format("swap {} {} {} {}", update.version, swapped_ns, update.notify.count(), faults_of_process());
    const Snapshot snapshot = subscriber->snapshot();
    for (std::uint32_t tensor = 0; tensor < snapshot.manifest().architecture->tensors().size(); ++tensor) {
      std::uint64_t stamp = 0;
      std::memcpy(&stamp, snapshot.bytes(tensor).data(), sizeof(stamp));
      line += format(" {}", stamp);
    }
    lines.write(line);
  };
  auto subscriber = Subscriber::open({.model = "bench", .directory = arguments.at(0), .on_update = on_update});
  if (!subscriber) {
    std::cerr << subscriber.error().message() << "\n";
    return 1;
  }
  self = subscriber->get();
  self.notify_all();
  StallHistogram histogram;
  std::atomic<bool> stop = false;
  std::thread server;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "stall start") {
      server = std::thread([&] { take_snapshots(**subscriber, stop, histogram); });
      lines.write("started");
    } else if (line == "stall stop" && server.joinable()) {
      stop = true;
      server.join();
      lines.write(format("stall {} {} {} {} {}", histogram.total(), histogram.percentile_us(0.5),
                         histogram.percentile_us(0.99), histogram.percentile_us(0.999), histogram.max_us()));
    }
  }
  stop = true;
  if (server.joinable()) server.join();
  return 0;
}

}  // namespace freshet::benchmarks
