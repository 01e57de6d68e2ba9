// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/terms/ring.h"

#include <algorithm>
#include <map>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::levels {

Result<std::vector<std::vector<std::uint32_t>>> make_groups(std::span<const std::string> hosts, std::uint32_t losses) {
  std::map<std::string, std::vector<std::uint32_t>> by_host;
  for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) by_host[hosts[rank]].push_back(rank);
  std::size_t most = 0;
  std::vector<std::uint32_t> in_order;  // Those of one host beside each other.
  for (const auto& [host, ranks] : by_host) {
    most = std::max(most, ranks.size());
    in_order.insert(in_order.end(), ranks.begin(), ranks.end());
  }
  // Dealt out in turn, neighbours of one host come to different groups, since there are as many as a host has ranks.
  const std::size_t count = std::max(most, (hosts.size() + kGroupRanksMax - 1) / kGroupRanksMax);
  std::vector<std::vector<std::uint32_t>> groups(count);
  for (std::size_t i = 0; i < in_order.size(); ++i) groups[i % count].push_back(in_order[i]);
  for (std::vector<std::uint32_t>& group : groups) {
    std::ranges::sort(group);
    if (group.size() > losses) continue;
    return fail(
        Code::invalid_argument,
        format("level group: to survive {} lost host(s), each rank needs {} rank(s) of other hosts, and rank {} "
               "on host {} has {} ({} ranks on {} hosts, {} on one of them)",
               losses, losses, group.front(), hosts[group.front()], group.size() - 1, hosts.size(), by_host.size(),
               most));
  }
  return groups;
}

const std::vector<std::uint32_t>& group_of(std::span<const std::vector<std::uint32_t>> groups, std::uint32_t rank) {
  const auto group =
      std::ranges::find_if(groups, [&](const auto& one) { return std::ranges::find(one, rank) != one.end(); });
  FRESHET_CHECK(group != groups.end());
  return *group;
}

RingPlace place_in_ring(std::span<const std::vector<std::uint32_t>> groups, std::uint32_t rank) {
  const std::vector<std::uint32_t>& group = group_of(groups, rank);
  const auto i = static_cast<std::size_t>(std::ranges::find(group, rank) - group.begin());
  return {.keeps_copy_of = group[(i + group.size() - 1) % group.size()], .copy_is_at = group[(i + 1) % group.size()]};
}

}  // namespace freshet::levels
