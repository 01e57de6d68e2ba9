// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The end of a capture: finds the pieces that changed since the version before. Captures end in the order in which
/// they were begun. Where one has copies from a GPU, a thread waits for these, digests them, and ends this capture and
/// those after it; the loop goes on meanwhile.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/levels/shards/share.h"
#include "repo/levels/terms/checkpoint_copies.h"

namespace freshet::levels {

/// One thread at a time.
class ShareSealer {
 public:
  struct Ended {
    Version version;
    std::uint64_t step = 0;
    std::shared_ptr<Share> share;              ///< Null: there was none for this version.
    std::shared_ptr<CheckpointCopies> copies;  ///< Null: there are none from a GPU.
    std::optional<Error> error;
  };

  /// Called for each capture that was pushed, in their order, on the sealer's thread. `is_new`: the error came after
  /// the push.
  using OnSealed = std::function<void(const Ended&, bool is_new)>;
  ShareSealer(const ShareCut& cut, OnSealed on_sealed) : cut_(cut), on_sealed_(std::move(on_sealed)) {}
  ~ShareSealer();
  ShareSealer(const ShareSealer&) = delete;
  ShareSealer& operator=(const ShareSealer&) = delete;

  /// unavailable: the system gives no thread.
  Status start();
  /// What the next version is compared with, from now on. REQUIRES: idle.
  void set_baseline(Baseline baseline) { baseline_ = std::move(baseline); }

  /// True: each capture that was pushed has ended.
  bool is_idle() const FRESHET_EXCLUDES(mutex_);
  /// False: two captures wait for copies from GPUs already.
  bool has_turn() const FRESHET_EXCLUDES(mutex_);
  /// That wait, those that came to nothing among them: more steps than a sound GPU is behind its loop.
  static constexpr std::size_t kWaitingMax = 2048;
  bool is_full() const FRESHET_EXCLUDES(mutex_);
  /// timed_out; cancelled by an Interruption.
  Status wait_idle(Duration at_most) const FRESHET_EXCLUDES(mutex_);

  /// Pieces that are equal to the baseline's keep its writer. Returns the bytes of the others. REQUIRES: idle.
  std::uint64_t seal(Share& share);
  /// Seals on the sealer's thread, when the copies have ended; nothing is sealed where there is an error. REQUIRES:
  /// start() succeeded once; not full.
  void push(Ended ended) FRESHET_EXCLUDES(mutex_);

  /// Ends the thread; captures whose copies have not ended come to nothing. REQUIRES: each copy ends. Nothing is pushed
  /// afterwards.
  void stop() FRESHET_EXCLUDES(mutex_);

 private:
  void finish_copies(Ended& ended) const;
  void run() FRESHET_EXCLUDES(mutex_);

  const ShareCut& cut_;
  const OnSealed on_sealed_;
  Baseline baseline_;  ///< The thread's, while the sealer is not idle.

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::deque<Ended> queue_ FRESHET_GUARDED_BY(mutex_);  ///< The thread works on the first.
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace freshet::levels
