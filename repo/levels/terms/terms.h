// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A job's words for its checkpoints: the levels, the scheme of a group, and the choices of a program.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/model/ids.h"

namespace freshet::levels {

/// No version's number, no incarnation and no offset in a shard is greater, wherever it is read from. So a sum of two of
/// them does not wrap.
inline constexpr std::uint64_t kNumberMax = std::uint64_t{1} << 62;

/// A version of the job's model: its identity, and its number.
struct Version {
  VersionId id;
  VersionNumber number = 0;
  auto operator<=>(const Version&) const = default;
  bool is_possible() const { return number <= kNumberMax && id.incarnation <= kNumberMax && id.sequence <= kNumberMax; }
};

enum class Level : std::uint8_t { memory = 0, local = 1, group = 2, external = 3 };
inline constexpr std::size_t kLevels = 4;
std::string_view name_of(Level level);
Result<Level> parse_level(std::string_view text);

enum class WhenBehind : std::uint8_t { skip, wait };

inline constexpr std::uint32_t kGroupRanksMax = 8;

/// What the level `group` keeps at ranks of other hosts.
struct GroupScheme {
  enum class Kind : std::uint8_t { none, partner, parity };
  Kind kind = Kind::none;
  std::uint32_t losses = 1;  ///< The number of hosts that each group may lose: 1 with partners.
  bool operator==(const GroupScheme&) const = default;
};
/// "none", "partner", "xor", or "rs:F" for any F losses (1 to 7).
Result<GroupScheme> parse_group_scheme(std::string_view text);
std::string to_string(const GroupScheme& scheme);

/// The version that a job goes on from. The default: the newest restorable one (docs/glossary.md).
struct RestartChoice {
  bool from_nothing = false;  ///< Begin anew, and ignore existing versions.
  bool same_history = false;  ///< With from_nothing: existing versions count as earlier versions of this job, and stay
                              ///< as long as they would stay after a restore.
  bool allow_left = false;    ///< Go on, although the version has tensors that no rank takes, and others begin fresh.
  std::optional<VersionNumber> version;  ///< Only this version.
  std::uint64_t step_min = 0;            ///< The newest version with a step of at least this,
  std::uint64_t step_max = UINT64_MAX;   ///< and at most this.
};

}  // namespace freshet::levels
