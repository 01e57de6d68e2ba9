// SPDX-License-Identifier: Apache-2.0
/// What an audit asks of each kind of record besides those of versions and segments.

#include <algorithm>
#include <iterator>

#include "core/base/format.h"
#include "core/model/format_version.h"
#include "repo/audit/record_audit.h"
#include "repo/records/placement.h"
#include "repo/registrar/registrar_records.h"

namespace freshet {
namespace {

constexpr std::size_t kNumberBytes = sizeof(std::uint64_t);
constexpr std::size_t kReadableBytes = 120;

struct NamedKey {
  VersionName name;
  std::string_view rest;
};

// "x/" model 00, and where it has one, a number.
std::optional<NamedKey> parse_named_key(std::string_view key, bool numbered) {
  key.remove_prefix(2);
  const std::size_t zero = key.find('\0');
  if (zero == std::string_view::npos || !check_model_name(key.substr(0, zero))) return std::nullopt;
  NamedKey named;
  named.name.model = key.substr(0, zero);
  named.rest = key.substr(zero + 1);
  if (!numbered) return named;
  if (named.rest.size() < kNumberBytes) return std::nullopt;
  for (const char byte : named.rest.substr(0, kNumberBytes)) {
    named.name.number = (named.name.number << 8) | static_cast<std::uint8_t>(byte);
  }
  named.rest.remove_prefix(kNumberBytes);
  return named;
}

std::string escaped(std::string_view text) {
  std::string readable;
  for (const char c : text.substr(0, kReadableBytes)) {
    if (c >= ' ' && c <= '~' && c != '\\') {
      readable += c;
    } else {
      readable += format("\\x{:02x}", static_cast<std::uint8_t>(c));
    }
  }
  return text.size() > kReadableBytes ? readable + "…" : readable;
}

}  // namespace

std::string readable_key(std::string_view key) {
  const std::string_view kind = key.substr(0, std::min<std::size_t>(key.size(), 2));
  if (kind == "n/") {
    if (const auto named = parse_named_key(key, false)) return "n/" + named->name.model + "@" + escaped(named->rest);
  } else if (kind == "p/") {
    if (const auto named = parse_named_key(key, true))
      return "p/" + to_string(named->name) + " by " + escaped(named->rest);
  } else if (kind == "v/") {
    const auto named = parse_named_key(key, true);
    if (named && named->rest.empty()) return std::string(kind) + to_string(named->name);
  } else if (kind == "s/") {
    if (const auto segment = parse_segment_key(key.substr(2))) return "s/" + to_string(*segment);
  } else if (kind == "x/") {
    if (const auto referrer = parse_referrer_key(key)) {
      return format("x/{} of {}", to_string(referrer->referrer), to_string(referrer->writer));
    }
  } else if (kind == "e/") {
    if (const auto entry = parse_entry_key(key)) return format("e/{}.{}", entry->group, entry->entry);
  }
  return escaped(key);
}

void RecordAudit::on_other(std::string_view key, std::string_view value) {
  static const std::map<std::string_view, OnRecord> kinds = {{kVersionPrefix, nullptr},
                                                             {kSegmentPrefix, nullptr},
                                                             {"a/", nullptr},  // Below, where nobody uses it.
                                                             {"e/", &RecordAudit::on_entry},
                                                             {kHighWaterPrefix, &RecordAudit::on_number},
                                                             {"n/", &RecordAudit::on_alias},
                                                             {"p/", &RecordAudit::on_pin},
                                                             {kReferrerPrefix, &RecordAudit::on_referrer},
                                                             {kGivenUpPrefix, &RecordAudit::on_given_up},
                                                             {kSharedPrefix, &RecordAudit::on_shared}};
  if (key == kFormatKey || key == kCommitKey) return on_sole(key, value);
  const auto kind = kinds.find(key.substr(0, std::min<std::size_t>(key.size(), 2)));
  if (kind == kinds.end()) return damaged_record(key, "this is not a record's key");
  if (kind->second != nullptr) return (this->*kind->second)(key, value);
  if (kind->first != "a/" || used_architectures_.count(std::string(key)) != 0) return;
  const bool whole = architectures_.count(std::string(key)) != 0;
  if (!whole) return damaged_record(key, "the architecture is damaged");
  if (!any_row_damaged_) unneeded("record " + readable_key(key), value.size(), "no version has this architecture");
}

void RecordAudit::on_sole(std::string_view key, std::string_view value) {
  const Result<std::uint64_t> number = parse_number(value);
  if (!number) return damaged_record(key, "is not a number");
  if (key == kFormatKey) {
    if (*number != kFormatVersion) damaged_record(key, format("there is no format {}", *number));
    return;
  }
  commit_seen_ = true;
  if (*number == guarded_.commit && *number >= greatest_commit_) return;
  damaged_record(key,
                 format("is {}, and the last commit was {}", *number, std::max(guarded_.commit, greatest_commit_)));
}

void RecordAudit::on_entry(std::string_view key, std::string_view value) {
  const auto entry = parse_entry_key(key);
  if (!entry) return damaged_record(key, "this is not a manifest's name");
  const Entry name{entry->group, entry->entry};
  if (named_entries_.count(name) == 0) leftover_entries_.emplace_back(name, value.size());
}

void RecordAudit::on_number(std::string_view key, std::string_view value) {
  const std::string model(key.substr(kHighWaterPrefix.size()));
  numbered_.insert(model);
  const Result<std::uint64_t> number = parse_number(value);
  if (!check_model_name(model)) return damaged_record(key, "this is not a model's name");
  if (!number) return damaged_record(key, "is not a number");
  const auto greatest = greatest_.find(model);
  if (greatest == greatest_.end() || *number >= greatest->second) return;
  damaged_record(key, format("is {}, and {} has {}", *number, model, greatest->second));
}

void RecordAudit::on_alias(std::string_view key, std::string_view value) {
  auto named = parse_named_key(key, false);
  if (!named || !check_alias(named->rest)) return damaged_record(key, "this is not an alias's name");
  const Result<std::uint64_t> number = parse_number(value);
  if (!number || *number == 0) return damaged_record(key, "does not name a version");
  named->name.number = *number;
  if (const auto why = why_gone(named->name)) damaged_record(key, "means nothing: " + *why);
}

void RecordAudit::on_pin(std::string_view key, std::string_view value) {
  const auto named = parse_named_key(key, true);
  if (!named || named->rest.empty() || named->rest.size() > kPinHolderBytesMax) {
    return damaged_record(key, "this is not a pin's name");
  }
  if (!decode_pin(value)) return damaged_record(key, "is not a count");
  if (const auto why = why_gone(named->name)) damaged_record(key, "pins nothing: " + *why);
}

// Whoever names a difference names what it is one from: else that could go before it.
std::optional<SegmentName> RecordAudit::unnamed_base(const ReferrerKey& by,
                                                     const std::vector<SegmentName>& named) const {
  for (const SegmentName& segment : named) {
    const auto stored = segments_.find(segment);
    if (stored == segments_.end() || !stored->second.row || !stored->second.row->base) continue;
    const SegmentName& base = *stored->second.row->base;
    const Result<std::string> value = backend_.get(referrer_key(by.referrer, by.attempt, base.writer));
    const auto row = value ? decode_referrer(*value) : Result<ReferrerRow>(ReferrerRow{});
    if (row && !std::binary_search(row->tensors.begin(), row->tensors.end(), base.tensor)) return base;
  }
  return std::nullopt;
}

void RecordAudit::on_referrer(std::string_view key, std::string_view value) {
  const auto names = parse_referrer_key(key);
  const auto row = decode_referrer(value);
  if (!names || !row) return damaged_record(key, "is damaged: the segments that other providers need are not known");
  const bool ascend =
      std::adjacent_find(row->tensors.begin(), row->tensors.end(), std::greater_equal<>()) == row->tensors.end();
  if (!ascend || row->tensors.empty()) return damaged_record(key, "its tensors do not ascend");
  if (row->home.size() > kProviderIdBytesMax) damaged_record(key, "this is not a provider's name");
  std::vector<SegmentName> named;
  std::vector<SegmentName> missing;
  for (const std::uint32_t tensor : row->tensors) {
    const SegmentName segment{.writer = names->writer, .tensor = tensor};
    named.push_back(segment);
    if (segments_.count(segment) == 0) missing.push_back(segment);
  }
  counted_.add_segments(named);
  if (const auto base = unnamed_base(*names, named)) {
    damaged_record(key, format("names a difference from segment {}, but not that segment", to_string(*base)));
  }
  if (missing.empty() || !unread_.empty()) return;
  damaged_record(key, format("names segments that are not stored: {}, the first one {}", missing.size(),
                             to_string(missing.front())));
}

void RecordAudit::on_given_up(std::string_view key, std::string_view value) {
  const auto given_up = parse_given_up_key(key);
  if (!given_up || !value.empty()) return damaged_record(key, "this is not a put's name");
  const auto name = names_.find(given_up->first);
  if (name == names_.end()) return;
  const auto row = rows_.find(name->second);
  const bool stored = row != rows_.end() && row->second != nullptr && !row->second->retired && row->second->placed &&
                      row->second->placed->attempt == given_up->second;
  if (stored) damaged_record(key, format("gives {} up, which is stored", to_string(name->second)));
}

void RecordAudit::on_shared(std::string_view key, std::string_view value) {
  const std::string_view name = key.substr(kSharedPrefix.size());
  if (name.empty() || name.size() > kSharedKeyBytesMax) return damaged_record(key, "this is not a shared record's key");
  if (value.size() > kSharedValueBytesMax) return damaged_record(key, "is too long");
  if (name != kPlacementKey) return;
  if (const auto placement = Placement::decode(value); !placement) damaged_record(key, placement.error().message());
}

}  // namespace freshet
