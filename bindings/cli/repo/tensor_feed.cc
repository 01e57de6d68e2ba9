// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/repo/tensor_feed.h"

#include <utility>

#include "bindings/cli/frame/progress.h"
#include "core/base/interruption.h"

namespace freshet::cli {
namespace {

/// Large enough to lose nothing by it, and small enough that the other thread soon has something to do.
constexpr std::uint64_t kFeedPartBytes = std::uint64_t{64} << 20;

}  // namespace

TensorFeed::TensorFeed(const Repository& repository, const VersionRecord& record,
                       std::span<const Repository::TensorRead> reads)
    : repository_(repository),
      record_(record),
      reads_(reads),
      reader_([this](const std::stop_token& stop) { run(stop); }) {}

void TensorFeed::run(const std::stop_token& stop) {
  const StopInterrupts stops(stop);
  ProgressBar bar("get " + to_string(record_.manifest.name));
  std::uint64_t total = 0;
  for (const Repository::TensorRead& read : reads_) total += read.out.size();
  std::uint64_t bytes_done = 0;
  for (std::size_t begin = 0; begin < reads_.size();) {
    bar.show(bytes_done, total);
    std::size_t end = begin;
    for (std::uint64_t bytes = 0; end < reads_.size() && bytes < kFeedPartBytes; ++end) bytes += reads_[end].out.size();
    Status read = stop.stop_requested() ? fail(Code::cancelled, "the reading was ended")
                                        : repository_.read(record_, reads_.subspan(begin, end - begin));
    if (!read) return set(begin, std::move(read));
    for (; begin < end; ++begin) bytes_done += reads_[begin].out.size();
    set(end, {});
  }
}

void TensorFeed::set(std::size_t done, Status failed) {
  const MutexLock lock(mutex_);
  done_ = done;
  failure_ = std::move(failed);
  changed_.notify_all();
}

Status TensorFeed::wait_for(std::size_t read, const Interrupt& interrupt) {
  const MutexLock lock(mutex_);
  while (done_ <= read && failure_) {
    if (interrupt.requested()) return fail(Code::cancelled, "interrupted");
    changed_.wait_until(mutex_, system_clock().now() + kInterruptLatency);
  }
  return done_ > read ? Status() : failure_;
}

Status TensorFeed::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

}  // namespace freshet::cli
