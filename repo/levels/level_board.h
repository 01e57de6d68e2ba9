// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the ranks know together of each version's levels: rank 0's books, a state machine without I/O. Ranks say what
/// they have done; the board says what is begun, and what all have reached.
///
///   captured by all ──► memory reached ──► local begun ──► synced by all ──► local reached ──► group … ──► external …
///
/// What holds (tests/sim/levels_sim_test.cc):
///   1. A level is reached by a version only after every rank that has a part in it said that its part is safe there,
///      and after all levels before it were.
///   2. At each level one version is under way at a time, for all ranks the same one. When it is done, the newest that
///      waits is next, and the older ones are passed over (`skip`); or the oldest is next (`wait`: the loop is what
///      waits).
///   3. Each version that any rank captured ends at each level, reached or failed, as long as all ranks go on.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "core/tensor.h"

namespace freshet::levels {

enum class Level : std::uint8_t { memory = 0, local = 1, group = 2, external = 3 };
inline constexpr std::size_t kLevels = 4;
std::string_view name_of(Level level);
Result<Level> parse_level(std::string_view text);

enum class WhenBehind : std::uint8_t { skip, wait };

/// What ranks say to rank 0 (captured, done) and it to all (begin, reached, failed).
struct LevelNote {
  enum class Kind : std::uint8_t { captured = 0, done = 1, begin = 2, reached = 3, failed = 4 };
  Kind kind = Kind::captured;
  VersionNumber version = 0;
  std::uint64_t step = 0;
  Level level = Level::memory;
  std::optional<Error> error;  ///< Of captured and done: it did not work there. Of failed: why.
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
    bool external_by_rank_0 = true;  ///< It alone says when external is done; otherwise all do.
  };
  explicit LevelBoard(Options options) : options_(std::move(options)) {}

  /// What a rank said; what is to be said to all, itself included. What makes no sense is passed over.
  std::vector<LevelNote> on_note(std::uint32_t rank, const LevelNote& note);

 private:
  struct State {
    std::uint64_t step = 0;
    std::set<std::uint32_t> said;  ///< At the level that is under way, or at memory.
    std::optional<Error> error;    ///< The first that a rank had there.
  };
  struct Way {
    std::optional<VersionNumber> running;
    std::set<VersionNumber> waiting;
  };
  std::size_t parts(Level level) const;
  std::optional<Level> level_after(Level level) const;
  void take_said(VersionNumber version, Level level, std::uint32_t rank, const LevelNote& note,
                 std::vector<LevelNote>& out);
  void fail_from(Level level, VersionNumber version, const Error& why, std::vector<LevelNote>& out);
  void begin_next(Level level, std::vector<LevelNote>& out);

  const Options options_;
  std::map<VersionNumber, State> versions_;
  std::map<Level, Way> ways_;
  VersionNumber newest_captured_ = 0;  ///< By all.
};

}  // namespace freshet::levels
