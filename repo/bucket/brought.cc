// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/brought.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "repo/bucket/time_to_move.h"
#include "repo/local/side_by_side.h"

namespace freshet::bucket {
namespace {

/// From so many of a drawing on, a listing costs less than to ask for each.
constexpr std::size_t kListedMin = 3;

using Missing = std::map<std::string_view, std::size_t>;  ///< Keys, and which parts they are.

/// Takes away what the listing of a drawing has.
Status find_in_listing(const ObjectStore& store, std::string_view prefix, std::span<const BroughtPart> parts,
                       Missing& missing, std::vector<char>& found) {
  std::string after;
  for (std::size_t pages = 0; pages <= log::LogStore::kDrawnMax / kListKeysMax && !missing.empty(); ++pages) {
    FRESHET_ASSIGN(const ObjectPage page, store.list(prefix, after, kListKeysMax, time_to_move(store, 0)));
    for (const ListedObject& one : page.objects) {
      const auto part = missing.find(one.key);
      if (part == missing.end() || parts[part->second].bytes != one.bytes) continue;
      found[part->second] = 1;
      missing.erase(part);
    }
    if (!page.more || page.objects.empty()) break;
    after = page.objects.back().key;
  }
  return {};
}

}  // namespace

Result<std::vector<bool>> find_brought_objects(const ObjectStore& store, const log::LogStore& log,
                                               std::span<const BroughtPart> parts) {
  std::vector<char> found(parts.size());  // Threads write to its elements.
  std::map<std::string_view, Missing> drawings;
  for (std::size_t at = 0; at < parts.size(); ++at) {
    const std::string_view key = parts[at].object;
    const std::optional<log::ObjectName> name = log::parse_object_key(key);
    if (name && log.may_name(*name)) drawings[key.substr(0, key.size() - log::LogStore::kDrawnDigits)][key] = at;
  }
  std::vector<std::size_t> asked_for;
  for (auto& [prefix, missing] : drawings) {
    if (missing.size() >= kListedMin) FRESHET_TRY(find_in_listing(store, prefix, parts, missing, found));
    for (const auto& [key, at] : missing) asked_for.push_back(at);
  }
  FRESHET_TRY(run_side_by_side(asked_for.size(), store.transfers_max(), [&](std::size_t i) -> Status {
    const BroughtPart& part = parts[asked_for[i]];
    const Result<ObjectHead> head = store.head(part.object, time_to_move(store, 0));
    if (!head && head.error().code() != Code::not_found) return fail(head.error());
    const bool is_it = head && head->bytes == part.bytes && head->crc32c.value_or(part.crc32c) == part.crc32c;
    found[asked_for[i]] = is_it ? 1 : 0;
    return {};
  }));
  return std::vector<bool>(found.begin(), found.end());
}

}  // namespace freshet::bucket
