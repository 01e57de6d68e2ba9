// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/changed_check.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

constexpr std::size_t kNamesShown = 3;

}  // namespace

ChangedCheck::ChangedCheck(bool is_wanted)
    : is_wanted_(is_wanted || system_env().variable("FRESHET_CHECK_CHANGED") == "1") {}

Changed::Kind ChangedCheck::begin(std::uint64_t ticket, Changed::Kind kind, std::span<const std::uint32_t> indices) {
  if (!is_wanted_) return kind;
  const bool is_first = std::exchange(is_first_, false);
  const bool names_some = kind == Changed::Kind::only && !is_first;
  const MutexLock lock(mutex_);
  Names& names = named_[ticket];
  if (names_some) std::ranges::sort(names.emplace(indices.begin(), indices.end()));
  return names_some ? Changed::Kind::find : kind;
}

void ChangedCheck::leave_out(std::uint64_t ticket) {
  const MutexLock lock(mutex_);
  unchecked_.insert(ticket);
}

void ChangedCheck::fail_of(std::uint64_t ticket) {
  const MutexLock lock(mutex_);
  const auto node = named_.extract(ticket);
  if (unchecked_.erase(ticket) != 0) return excuse(ticket, std::nullopt);
  if (!node.empty()) excuse(ticket, node.mapped());
}

void ChangedCheck::passed(std::uint64_t ticket) {
  const MutexLock lock(mutex_);
  named_.erase(ticket);
  unchecked_.erase(ticket);
  std::erase_if(excused_, [&](const auto& entry) { return entry.second <= ticket; });
  if (all_excused_ <= ticket) all_excused_ = 0;
}

Status ChangedCheck::check(std::uint64_t ticket, std::span<const std::uint32_t> changed,
                           const Architecture& architecture) {
  const MutexLock lock(mutex_);
  const auto at = named_.find(ticket);
  if (at == named_.end() || !at->second || all_excused_ != 0 || unchecked_.contains(ticket)) return {};
  std::vector<std::uint32_t> unnamed;
  std::ranges::copy_if(changed, std::back_inserter(unnamed), [&](std::uint32_t tensor) {
    return !std::ranges::binary_search(*at->second, tensor) && !excused_.contains(tensor);
  });
  if (unnamed.empty()) return {};
  excuse(ticket, at->second);
  excuse(ticket, unnamed);
  named_.erase(at);
  std::string text;
  for (std::size_t i = 0; i < std::min(unnamed.size(), kNamesShown); ++i) {
    text += (text.empty() ? "" : ", ") + shown(architecture.tensors()[unnamed[i]].name);
  }
  return fail(
      Code::failed_precondition,
      format("Changed::only does not name {} tensor{} with other bytes than in the last version: {}{}; name each "
             "changed tensor, or use Changed::find()",
             unnamed.size(), unnamed.size() == 1 ? "" : "s", text, unnamed.size() > kNamesShown ? ", …" : ""));
}

void ChangedCheck::excuse(std::uint64_t ticket, const Names& names) {
  if (!names) all_excused_ = std::max(all_excused_, ticket);
  if (!names) return;
  for (const std::uint32_t tensor : *names) excused_[tensor] = ticket;
}

}  // namespace freshet
