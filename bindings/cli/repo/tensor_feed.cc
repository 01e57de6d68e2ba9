// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/repo/tensor_feed.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "bindings/cli/frame/progress.h"
#include "core/base/format.h"
#include "core/base/interruption.h"

namespace freshet::cli {
namespace {

/// Large enough to lose nothing by it, and small enough that the other thread soon has something to do.
constexpr std::uint64_t kFeedPartBytes = std::uint64_t{32} << 20;

}  // namespace

Result<std::unique_ptr<TensorFeed>> TensorFeed::start(const Repository& repository, const VersionRecord& record,
                                                      std::span<const std::uint32_t> tensors) {
  std::unique_ptr<TensorFeed> feed(new TensorFeed(repository, record));
  FRESHET_TRY(feed->lay_out(tensors));
  feed->reader_ = std::jthread([feed = feed.get()](const std::stop_token& stop) { feed->run(stop); });
  return feed;
}

Status TensorFeed::lay_out(std::span<const std::uint32_t> tensors) {
  const auto specs = record_.manifest.architecture->tensors();
  std::uint64_t part_bytes = 0;
  std::array<std::uint64_t, kFeedPartsHeld> room = {};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = specs[tensors[i]].bytes();
    if (part_bytes > 0 && part_bytes + bytes > kFeedPartBytes) {
      part_ends_.push_back(i);
      part_bytes = 0;
    }
    part_bytes += bytes;
    std::uint64_t& own = room[part_ends_.size() % kFeedPartsHeld];
    own = std::max(own, part_bytes);
    bytes_ += bytes;
  }
  part_ends_.push_back(tensors.size());
  for (std::size_t slot = 0; slot < kFeedPartsHeld; ++slot) {
    memory_[slot].reset(new (std::nothrow) std::byte[room[slot]]);
    if (memory_[slot] != nullptr) continue;
    return fail(Code::out_of_space, format("not enough memory: the reading needs {} bytes",
                                           std::accumulate(room.begin(), room.end(), std::uint64_t{0})));
  }
  for (std::size_t part = 0; part < part_ends_.size(); ++part) {
    std::byte* at = memory_[part % kFeedPartsHeld].get();
    while (views_.size() < part_ends_[part]) {
      const std::uint32_t tensor = tensors[views_.size()];
      const MutableBytes out(at, specs[tensor].bytes());
      at += out.size();
      views_.push_back({.spec = specs[tensor], .data = out});
      reads_.push_back({.tensor = tensor, .out = out});
    }
  }
  return {};
}

void TensorFeed::run(const std::stop_token& stop) {
  const StopInterrupts stops(stop);
  ProgressBar bar("get " + to_string(record_.manifest.name));
  std::uint64_t bytes_done = 0;
  std::size_t begin = 0;
  for (std::size_t part = 0; part < part_ends_.size(); ++part) {
    bar.show(bytes_done, bytes_);
    const std::size_t end = part_ends_[part];
    Status read;
    if (part >= kFeedPartsHeld) read = wait_until_used(part_ends_[part - kFeedPartsHeld], stop);
    if (read) read = repository_.read(record_, std::span(reads_).subspan(begin, end - begin));
    if (!read) return set(begin, std::move(read));
    for (; begin < end; ++begin) bytes_done += reads_[begin].out.size();
    set(end, {});
  }
}

Status TensorFeed::wait_until_used(std::size_t views, const std::stop_token& stop) {
  const MutexLock lock(mutex_);
  while (used_ < views) {
    if (stop.stop_requested()) return fail(Code::cancelled, "the reading was ended");
    changed_.wait_until(mutex_, system_clock().now() + kInterruptLatency);
  }
  return {};
}

void TensorFeed::set(std::size_t done, Status failed) {
  const MutexLock lock(mutex_);
  done_ = done;
  failure_ = std::move(failed);
  changed_.notify_all();
}

Status TensorFeed::wait_for(std::size_t view, const Interrupt& interrupt) {
  const MutexLock lock(mutex_);
  used_ = view;
  changed_.notify_all();
  while (done_ <= view && failure_) {
    if (interrupt.requested()) return fail(Code::cancelled, "interrupted");
    changed_.wait_until(mutex_, system_clock().now() + kInterruptLatency);
  }
  return done_ > view ? Status() : failure_;
}

Status TensorFeed::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

}  // namespace freshet::cli
