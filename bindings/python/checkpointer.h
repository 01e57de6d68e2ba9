// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Checkpoints of jobs with many ranks (repo/levels/checkpointer.h), as freshet/checkpointer.py needs them.

#include <nanobind/nanobind.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>

#include "bindings/python/tensors.h"
#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "repo/levels/checkpointer.h"

namespace freshet::python {

/// The events, until Python asks for them. Any thread.
class CheckpointNews {
 public:
  /// `calls`: what was reached waits for next_reached(), too.
  explicit CheckpointNews(bool calls) : calls_(calls) {}
  void add(const CheckpointEvent& event) FRESHET_EXCLUDES(mutex_);
  std::deque<CheckpointEvent> take() FRESHET_EXCLUDES(mutex_);
  /// Nothing: no more come. timed_out.
  Result<std::optional<CheckpointEvent>> next_reached(Duration at_most) FRESHET_EXCLUDES(mutex_);
  void end() FRESHET_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kKeptMax = 4096;  ///< The newest.
  const bool calls_;
  Mutex mutex_;
  CondVar came_;
  std::deque<CheckpointEvent> events_ FRESHET_GUARDED_BY(mutex_);
  std::deque<CheckpointEvent> reached_ FRESHET_GUARDED_BY(mutex_);
  bool ended_ FRESHET_GUARDED_BY(mutex_) = false;
};

/// Closed, or one that this process opened. Another thread may close it meanwhile: the calls that are inside have
/// shares, and their waits end with `cancelled`.
class CheckpointerHandle {
 public:
  CheckpointerHandle(std::shared_ptr<Checkpointer> open, std::shared_ptr<CheckpointNews> news, std::uint32_t rank,
                     std::uint32_t ranks)
      : open_(std::move(open)), news_(std::move(news)), rank_(rank), ranks_(ranks) {}
  CheckpointerHandle(const CheckpointerHandle&) = delete;
  CheckpointerHandle& operator=(const CheckpointerHandle&) = delete;
  ~CheckpointerHandle() { close(); }

  std::shared_ptr<Checkpointer> get() const;
  /// Requested by close().
  std::stop_token closing() const { return closing_.get_token(); }
  /// Arrays that a thread of the checkpointer copies from, by tensor: they live until let_go() or the checkpointer's
  /// end, whatever Python drops. With the interpreter's lock, and one thread at a time, as capture().
  void hold(std::size_t tensor, const ByteArray& array) { copied_.insert_or_assign(tensor, array); }
  bool holds(std::size_t tensor) const { return copied_.contains(tensor); }
  void let_go(std::size_t tensor) { copied_.erase(tensor); }
  void let_go_of_all() { copied_.clear(); }
  /// failed_precondition in a forked child, where a thread of the parent's may hold its lock for ever.
  CheckpointNews& news() const;
  /// No more news come. Nothing in a forked child.
  void end_news() const;
  bool is_open() const { return open_ != nullptr; }
  void close();
  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return ranks_; }

 private:
  std::shared_ptr<Checkpointer> open_;
  std::stop_source closing_;
  const std::shared_ptr<CheckpointNews> news_;
  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  const ForkMark mark_;
  std::map<std::size_t, ByteArray> copied_;
};

void bind_checkpointer(nanobind::module_& module);

}  // namespace freshet::python
