// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/terms/terms.h"

#include <algorithm>
#include <array>

#include "core/base/format.h"

namespace freshet::levels {
namespace {

constexpr std::array<std::string_view, kLevels> kLevelNames = {"memory", "local", "group", "external"};

}  // namespace

std::string_view name_of(Level level) { return kLevelNames[static_cast<std::size_t>(level)]; }

Result<Level> parse_level(std::string_view text) {
  const auto at = std::ranges::find(kLevelNames, text);
  if (at == kLevelNames.end()) {
    return refuse(format("level \"{}\": one of memory, local, group, external is expected", text));
  }
  return static_cast<Level>(at - kLevelNames.begin());
}

Result<GroupScheme> parse_group_scheme(std::string_view text) {
  using Kind = GroupScheme::Kind;
  if (text == "none") return GroupScheme{};
  if (text == "partner") return GroupScheme{.kind = Kind::partner};
  if (text == "xor") return GroupScheme{.kind = Kind::parity};
  if (text.size() == 4 && text.starts_with("rs:") && text[3] >= '1' &&
      text[3] < '0' + static_cast<int>(kGroupRanksMax)) {
    return GroupScheme{.kind = Kind::parity, .losses = static_cast<std::uint32_t>(text[3] - '0')};
  }
  return refuse(
      format("{} is not a scheme for groups: expected none, partner, xor, or rs:1 to rs:{}", text, kGroupRanksMax - 1));
}

std::string to_string(const GroupScheme& scheme) {
  if (scheme.kind == GroupScheme::Kind::none) return "none";
  if (scheme.kind == GroupScheme::Kind::partner) return "partner";
  return scheme.losses == 1 ? "xor" : format("rs:{}", scheme.losses);
}

}  // namespace freshet::levels
