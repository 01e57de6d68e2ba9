// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The tensors of one put on their way from a lane to whoever stores them. The lane is a ring: byte n of the upload
/// stands at place n modulo the lane's length. The loop's thread pushes what the client says that it has written, the
/// storing thread takes part after part, and what it is done with may be written again. Private to this folder.
///
/// The machine that checks what clients say bounds what is pushed and not done with by the ring's length.

#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet::rpc {

class LaneStream {
 public:
  /// `keep` is what the ring lives in.
  LaneStream(Bytes ring, std::shared_ptr<const void> keep) : ring_(ring), keep_(std::move(keep)) {}

  /// What may be written and not done with.
  std::uint64_t window() const { return ring_.size(); }

  /// Any thread: so many more bytes stand in the ring.
  void push(std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);
  /// Any thread: no more will come, and whoever waits for them is told so.
  void cut() FRESHET_EXCLUDES(mutex_);

  // The storing thread's.
  /// `done(bytes)` is called for what may be written again, before the thread waits at the latest.
  void on_done(std::function<void(std::uint64_t bytes)> done) { done_ = std::move(done); }
  /// Whoever takes the bytes reads them once, and proves what he has read: then they are handed out where they stand,
  /// if they stand in one piece. Otherwise they are copied first.
  void hand_out_in_place() { in_place_ = true; }
  /// Waits for the bytes of the upload from `from` on; what comes before them and was not taken is passed over. They
  /// stay until the next call. unavailable when they will not come, failed_precondition for what was passed already.
  Result<Bytes> take(std::uint64_t from, std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);

 private:
  /// How far the client has written, more than `past`.
  Result<std::uint64_t> written_past(std::uint64_t past) FRESHET_EXCLUDES(mutex_);
  Status pass_to(std::uint64_t position) FRESHET_EXCLUDES(mutex_);
  Result<Bytes> in_place(std::uint64_t from, std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);
  Result<Bytes> copied(std::uint64_t from, std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);
  void advance(std::uint64_t position);
  void tell();

  const Bytes ring_;
  const std::shared_ptr<const void> keep_;

  // The storing thread's.
  std::function<void(std::uint64_t bytes)> done_;
  bool in_place_ = false;
  std::uint64_t position_ = 0;  ///< All before it is done with.
  std::uint64_t told_ = 0;      ///< Of that.
  std::unique_ptr<std::byte[]> memory_;
  std::uint64_t memory_bytes_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::uint64_t written_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool is_cut_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet::rpc
