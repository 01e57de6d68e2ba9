// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Rank 0's books of each version's levels: a state machine without I/O. Ranks report their finished work. The board
/// decides which work begins, and which levels all ranks have reached.
///
///   captured by all ──► memory reached ──► local begun ──► synced by all ──► local reached ──► group … ──► external …
///
/// Invariants (tests/repo/levels/level_board_test.cc, and the simulation in levels_sim_test.cc there):
///   1. A version reaches a level only after every rank with a part in it reported its part as safe there, and after
///      the version reached all levels before.
///   2. At each level one version is under way at a time, the same one for all ranks. With `skip` at most one version
///      waits for a level: a newer one that comes passes it over at once, so that ranks need not keep it. With `wait`
///      the oldest goes next, and the loop waits.
///   3. While all ranks go on, each version that any rank captured ends at each level: reached or failed. A version
///      over the limit of open ones is failed at once.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/base/result.h"
#include "core/model/ids.h"
#include "core/model/tensor.h"
#include "repo/levels/terms/terms.h"

namespace freshet::levels {

/// A message of a rank to rank 0 (captured, done, brought), or of rank 0 to all ranks (begin, reached, failed). The
/// board ignores `brought`: rank 0's sender waits for it (rank/sender.h).
struct LevelNote {
  enum class Kind : std::uint8_t { captured = 0, done = 1, begin = 2, reached = 3, failed = 4, brought = 5 };
  Kind kind = Kind::captured;
  VersionNumber version = 0;
  std::uint64_t step = 0;
  Level level = Level::memory;
  std::optional<Error> error;  ///< For captured, done, brought: the rank's failure. For failed: the reason.
};
std::vector<std::byte> encode(const LevelNote& note);
Result<LevelNote> decode_level_note(Bytes bytes);

/// One thread at a time.
class LevelBoard {
 public:
  struct Options {
    std::uint32_t ranks = 1;
    std::vector<Level> levels;  ///< Ascending, memory first.
    WhenBehind when_behind = WhenBehind::skip;
  };
  explicit LevelBoard(Options options) : options_(std::move(options)) {}

  /// Versions that are open at a time: of ranks that are far ahead of a peer.
  static constexpr std::size_t kOpenVersionsMax = 1024;

  /// Takes a rank's message. Returns the messages to all ranks, itself included. Ignores a message that makes no sense.
  /// A rank may hear twice that a version failed which the board refused: each rank's message is answered.
  std::vector<LevelNote> on_note(std::uint32_t rank, const LevelNote& note);

 private:
  struct State {
    std::uint64_t step = 0;
    std::set<std::uint32_t> said;  ///< Ranks that reported, at the level under way or at memory.
    std::optional<Error> error;    ///< The first error of a rank there.
  };
  struct Way {
    std::optional<VersionNumber> running;
    std::set<VersionNumber> waiting;
  };
  std::optional<Level> level_after(Level level) const;
  void take_said(VersionNumber version, Level level, std::uint32_t rank, const LevelNote& note,
                 std::vector<LevelNote>& out);
  void wait_for(Level level, VersionNumber version, std::vector<LevelNote>& out);
  void fail_from(Level level, VersionNumber version, std::uint64_t step, const Error& why, std::vector<LevelNote>& out);
  void begin_next(Level level, std::vector<LevelNote>& out);

  const Options options_;
  std::map<VersionNumber, State> versions_;
  std::map<Level, Way> ways_;
  VersionNumber newest_captured_ = 0;  ///< The newest version that all ranks captured.
  VersionNumber newest_refused_ = 0;   ///< Versions up to this one that are not open stay refused.
};

}  // namespace freshet::levels
