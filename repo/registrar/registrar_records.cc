// SPDX-License-Identifier: Apache-2.0
#include "repo/registrar/registrar_records.h"

#include <algorithm>
#include <string_view>

#include "core/base/format.h"
#include "repo/records/records.h"

namespace freshet {
namespace {

constexpr std::size_t kDigitsMax = 20;  ///< Of a 64-bit number.

bool is_number(const SharedRecord& record) {
  return record.key.starts_with(kNumberPrefix) && record.key.size() <= kSharedKeyBytesMax &&
         (!record.value || record.value->size() <= kDigitsMax);
}

bool grows(std::span<const SharedRecord> expected, const SharedRecord& next) {
  if (!is_number(next) || !next.value) return false;
  const auto before = std::ranges::find_if(
      expected, [&](const SharedRecord& record) { return record.key == next.key && is_number(record); });
  if (before == expected.end()) return false;
  const Result<VersionNumber> from = last_number(*before);
  const Result<VersionNumber> to = last_number(next);
  return from && to && *to > *from && (*to <= kGivenNumberMax || *to == *from + 1);
}

}  // namespace

SharedRecord number_record(const std::string& model, VersionNumber last) {
  return {.key = kNumberPrefix + model, .value = format("{}", last)};
}

Result<VersionNumber> last_number(const SharedRecord& record) {
  if (!record.value) return 0;
  Result<VersionNumber> last = parse_number(*record.value);
  if (!last) return fail(Code::corrupt, format("the record {} is not a number", record.key));
  return last;
}

Result<VersionNumber> number_after(const std::string& model, VersionNumber last) {
  if (last < kVersionNumberMax) return last + 1;
  return fail(Code::out_of_space,
              format("{} has no numbers left: its last one is {}; put its versions as another model", model, last));
}

Result<bool> is_greater_number(const SharedRecord& one, const SharedRecord& other) {
  if (!other.key.starts_with(kNumberPrefix)) return false;
  FRESHET_ASSIGN(const VersionNumber last, last_number(one));
  FRESHET_ASSIGN(const VersionNumber other_last, last_number(other));
  return last > other_last;
}

bool only_counts(std::span<const SharedRecord> expected, std::span<const SharedRecord> changes) {
  if (changes.empty() || expected.size() > kCountedMax || changes.size() > kCountedMax) return false;
  return std::ranges::all_of(changes, [&](const SharedRecord& next) { return grows(expected, next); });
}

// One "name number" a line, by name.
SharedRecord aliases_record(const std::string& model, const std::vector<Alias>& aliases) {
  SharedRecord record{.key = kAliasesPrefix + model, .value = std::nullopt};
  if (aliases.empty()) return record;
  std::string text;
  for (const Alias& alias : aliases) text += format("{} {}\n", alias.name, alias.number);
  record.value = std::move(text);
  return record;
}

Result<std::vector<Alias>> parse_aliases(const SharedRecord& record) {
  std::vector<Alias> aliases;
  std::string_view rest = record.value ? std::string_view(*record.value) : std::string_view();
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t space = line.find(' ');
    const std::string name(line.substr(0, space));
    const auto number =
        space == std::string_view::npos ? Result<std::uint64_t>(0) : parse_number(line.substr(space + 1));
    if (space == std::string_view::npos || !number || !check_alias(name)) {
      return fail(Code::corrupt, format("the record {} is damaged", record.key));
    }
    aliases.push_back({.name = name, .number = *number});
  }
  return aliases;
}

}  // namespace freshet
