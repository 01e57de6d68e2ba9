// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A version that a relay is fetching, as far as it has come, for those who fetch it from the relay meanwhile. They get
/// the very bytes that the relay gets, dense or as the delta that they came as, and prove them themselves before
/// anybody reads them: nothing here was proved, but for what is said to be there.
///
/// Invariants:
///   1. Bytes that somebody was shown are never written again: what is fetched once more goes elsewhere, and whoever is
///      in the middle of the old ones is told that the rest will not come.
///   2. Memory that was shown stays until this is destroyed, which happens when the last fetch that reads it has ended.
/// One thread writes; any thread reads.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/arena/arena.h"
#include "core/base/mutex.h"
#include "core/model/manifest.h"
#include "transport/channel/channel.h"

namespace freshet::source {

class ComingVersion final : public std::enable_shared_from_this<ComingVersion> {
 public:
  using Payload = std::shared_ptr<const std::vector<std::byte>>;
  struct Events {
    /// There is more for somebody who found too little. Called by the writer, never under a lock.
    std::function<void()> on_more;
    /// These segments are not read any more; by whichever thread lets go last.
    std::function<void(std::vector<SegmentIndex>)> on_over;
  };
  ComingVersion(std::shared_ptr<const Manifest> manifest, Events events);
  ~ComingVersion();

  const Manifest& manifest() const { return *manifest_; }
  VersionNumber number() const { return manifest_->name.number; }

  // The writer's.

  /// A segment that is shown below was referred to for this.
  void keeps(SegmentIndex segment) { kept_.push_back(segment); }
  /// An answer begins to come: the tensor itself to `memory`, or a delta to `payload` that starts from `base`, of as
  /// many bytes as those have.
  void begin_dense(std::uint32_t tensor, Bytes memory) FRESHET_EXCLUDES(mutex_);
  void begin_delta(std::uint32_t tensor, const SegmentName& base, Payload payload) FRESHET_EXCLUDES(mutex_);
  void grew(std::uint32_t tensor, std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);
  /// It is there, and proved.
  void proved(std::uint32_t tensor, Bytes memory) FRESHET_EXCLUDES(mutex_);
  /// It is fetched anew.
  void restart(std::uint32_t tensor) FRESHET_EXCLUDES(mutex_);
  /// The rest will never come.
  void give_up(Error why) FRESHET_EXCLUDES(mutex_);

  // Anybody's.

  bool is_given_up() const FRESHET_EXCLUDES(mutex_);
  struct Delta {
    std::uint32_t tensor = 0;
    SegmentName base;
    Payload payload;
  };
  /// Those that the tensors which are there came as.
  std::vector<Delta> deltas() const FRESHET_EXCLUDES(mutex_);

  enum class State : std::uint8_t { waits, dense, delta, there };
  /// How a piece of the tensor could be answered now.
  struct Look {
    State state = State::waits;
    Bytes memory;                     ///< The tensor's: of `dense`, as far as `came`; of `there`, all of it.
    std::optional<SegmentName> base;  ///< Of the delta that is coming or came.
    Payload payload;
    std::uint64_t came = 0;
    std::uint64_t turn = 0;  ///< Of the tensor's answer: another one begins another turn.
  };
  /// `for_more`: the caller waits for more, if this is not enough for it. An error when it was given up.
  Result<Look> look(std::uint32_t tensor, bool for_more) const FRESHET_EXCLUDES(mutex_);

 private:
  /// Tells those who wait, after the lock was let go.
  void tell() const;

  const std::shared_ptr<const Manifest> manifest_;
  const Events events_;
  std::vector<SegmentIndex> kept_;  ///< The writer's, and the last one's.
  mutable std::atomic<bool> awaited_{false};
  mutable Mutex mutex_;
  std::vector<Look> tensors_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Error> given_up_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::source
