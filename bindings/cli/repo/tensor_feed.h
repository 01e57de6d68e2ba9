// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Reads a version's tensors on a thread of its own, in their order, while another thread uses those that are there: a
/// file is then written while the rest is read, and takes as long as the slower of the two. The memory holds a few of
/// the tensors at a time, however many there are.

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "bindings/cli/frame/interrupt.h"
#include "core/base/mutex.h"
#include "repo/repository.h"

namespace freshet::cli {

/// One is written, one is read, and one waits. Memory that is used again costs nothing: a page that the kernel has to
/// find and clear takes longer than its bytes take to be read.
inline constexpr std::size_t kFeedPartsHeld = 3;

/// wait_for(): one thread.
class TensorFeed {
 public:
  /// `tensors`: indices, in the order of use. `repository` and `record` stay until the feed is gone. out_of_space when
  /// there is no memory.
  static Result<std::unique_ptr<TensorFeed>> start(const Repository& repository, const VersionRecord& record,
                                                   std::span<const std::uint32_t> tensors);
  /// Ends the reading, if it goes on, within 50 ms.
  ~TensorFeed() = default;

  /// In the order of `tensors`. The bytes of view i are there from wait_for(i) on, until a later view is waited for.
  const std::vector<TensorView>& views() const { return views_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Until view number `view` is there; those before it are not used any more. The error is that of the reading;
  /// cancelled after a signal.
  Status wait_for(std::size_t view, const Interrupt& interrupt);
  /// The reading's own error, if it failed.
  Status failure();

 private:
  TensorFeed(const Repository& repository, const VersionRecord& record) : repository_(repository), record_(record) {}
  Status lay_out(std::span<const std::uint32_t> tensors);
  void run(const std::stop_token& stop);
  Status wait_until_used(std::size_t views, const std::stop_token& stop);
  void set(std::size_t done, Status failed);

  const Repository& repository_;
  const VersionRecord& record_;
  std::array<std::unique_ptr<std::byte[]>, kFeedPartsHeld> memory_;  ///< Together never more than the tensors have.
  std::uint64_t bytes_ = 0;
  std::vector<TensorView> views_;
  std::vector<Repository::TensorRead> reads_;
  std::vector<std::size_t> part_ends_;  ///< Parts of reads_; part number i lies where number i - kFeedPartsHeld lay.
  Mutex mutex_;
  CondVar changed_;
  std::size_t done_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::size_t used_ FRESHET_GUARDED_BY(mutex_) = 0;
  Status failure_ FRESHET_GUARDED_BY(mutex_);
  std::jthread reader_;  ///< Last: it uses all the rest.
};

}  // namespace freshet::cli
