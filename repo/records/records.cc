// SPDX-License-Identifier: Apache-2.0
#include "repo/records/records.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/format.h"
#include "core/model/format_version.h"
#include "core/words/number.h"
#include "repo/records/records_flat.h"

namespace freshet {
namespace {

constexpr std::size_t kIdBytes = 32;
constexpr std::size_t kSegmentKeyBytes = kIdBytes + sizeof(std::uint32_t);
constexpr char kDeltaMark = 'd';

// Big-endian, so that keys sort as numbers do.
template <typename Number>
void append_big_endian(std::string& key, Number number) {
  for (int shift = 8 * (static_cast<int>(sizeof(Number)) - 1); shift >= 0; shift -= 8) {
    key.push_back(static_cast<char>((number >> shift) & 0xff));
  }
}

template <typename Number>
Number read_big_endian(std::string_view bytes) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    number = static_cast<Number>((number << 8) | static_cast<std::uint8_t>(bytes[i]));
  }
  return number;
}

void append_id(std::string& key, const VersionId& id) {
  append_big_endian(key, id.run.high);
  append_big_endian(key, id.run.low);
  append_big_endian(key, id.incarnation);
  append_big_endian(key, id.sequence);
}

VersionId read_id(std::string_view bytes) {
  return {
      .run = {.high = read_big_endian<std::uint64_t>(bytes), .low = read_big_endian<std::uint64_t>(bytes.substr(8))},
      .incarnation = read_big_endian<std::uint64_t>(bytes.substr(16)),
      .sequence = read_big_endian<std::uint64_t>(bytes.substr(24))};
}

// A model's name holds no zero byte, so the separator keeps "net" and "net2" apart and in order.
std::string named_key(std::string_view prefix, const VersionName& name) {
  std::string key(prefix);
  key += name.model;
  key.push_back('\0');
  append_big_endian(key, name.number);
  return key;
}

flatbuffers::Offset<stored::Placed> store(flatbuffers::FlatBufferBuilder& builder, const Placed& placed) {
  std::vector<std::uint8_t> bits;
  for (const std::uint32_t tensor : placed.elsewhere) {
    bits.resize(std::max<std::size_t>(bits.size(), tensor / 8 + 1));
    bits[tensor / 8] = static_cast<std::uint8_t>(bits[tensor / 8] | (1 << (tensor % 8)));
  }
  std::vector<flatbuffers::Offset<stored::MovedWriter>> moved;
  for (const Placed::Moved& one : placed.moved) {
    const stored::Writer writer = stored_id(one.writer);
    moved.push_back(stored::CreateMovedWriterDirect(builder, &writer, one.provider.c_str()));
  }
  return stored::CreatePlacedDirect(builder, placed.placement, placed.attempt, &bits, &moved);
}

Placed placed_from(const stored::Placed& stored) {
  Placed placed{.placement = stored.placement(), .attempt = stored.attempt()};
  for (std::uint32_t i = 0; stored.elsewhere() != nullptr && i < stored.elsewhere()->size() * 8; ++i) {
    if ((stored.elsewhere()->Get(i / 8) >> (i % 8)) & 1) placed.elsewhere.push_back(i);
  }
  for (std::uint32_t i = 0; stored.moved() != nullptr && i < stored.moved()->size(); ++i) {
    const stored::MovedWriter& one = *stored.moved()->Get(i);
    placed.moved.push_back({.writer = id_from(*one.writer()), .provider = one.provider()->str()});
  }
  return placed;
}

}  // namespace

Status check_format_number(std::string_view stored) {
  const Result<std::uint64_t> number = parse_number(stored);
  if (!number) return fail(Code::corrupt, "the repository's format record is damaged");
  if (*number == kFormatVersion) return {};
  if (*number < kFormatVersion) {
    return fail(
        Code::unsupported,
        format("the repository was written by an older Freshet (format {}); this Freshet reads format {}. Write "
               "its versions to files with that Freshet (freshet repo export --all), and import the files "
               "into a new repository (freshet repo import --plain)",
               *number, kFormatVersion));
  }
  return fail(Code::unsupported,
              format("the repository was written by a newer Freshet (format {}); this Freshet reads format {}. Use the "
                     "newer Freshet",
                     *number, kFormatVersion));
}

std::string segment_key(const SegmentName& segment) {
  std::string key;
  key.reserve(kSegmentKeyBytes);
  append_id(key, segment.writer);
  append_big_endian(key, segment.tensor);
  return key;
}

std::optional<SegmentName> parse_segment_key(std::string_view key) {
  if (key.size() != kSegmentKeyBytes) return std::nullopt;
  return SegmentName{.writer = read_id(key), .tensor = read_big_endian<std::uint32_t>(key.substr(kIdBytes))};
}

std::string delta_key(const SegmentName& segment) { return segment_key(segment) + kDeltaMark; }
std::optional<SegmentName> segment_of_blob(std::string_view key) {
  if (key.size() == kSegmentKeyBytes + 1 && key.back() == kDeltaMark) key.remove_suffix(1);
  return parse_segment_key(key);
}

std::string segment_record_key(const SegmentName& segment) {
  return std::string(kSegmentPrefix) + segment_key(segment);
}
std::string architecture_key(const Digest& digest) { return "a/" + to_hex(digest); }
std::string version_key(const VersionName& name) { return named_key(kVersionPrefix, name); }
std::string group_prefix(std::uint64_t group) {
  std::string key = "e/";
  append_big_endian(key, group);
  return key;
}
std::string entry_key(std::uint64_t group, std::uint32_t entry) {
  std::string key = group_prefix(group);
  append_big_endian(key, entry);
  return key;
}
std::optional<std::uint32_t> parse_entry_key(std::uint64_t group, std::string_view key) {
  const std::string prefix = group_prefix(group);
  if (!key.starts_with(prefix) || key.size() != prefix.size() + sizeof(std::uint32_t)) return std::nullopt;
  return read_big_endian<std::uint32_t>(key.substr(prefix.size()));
}
std::optional<EntryKey> parse_entry_key(std::string_view key) {
  if (key.size() != 2 + sizeof(std::uint64_t) + sizeof(std::uint32_t) || !key.starts_with("e/")) return std::nullopt;
  return EntryKey{.group = read_big_endian<std::uint64_t>(key.substr(2)),
                  .entry = read_big_endian<std::uint32_t>(key.substr(2 + sizeof(std::uint64_t)))};
}
std::string high_water_key(std::string_view model) { return std::string(kHighWaterPrefix) + std::string(model); }
std::string pin_prefix(const VersionName& name) { return named_key(kPinPrefix, name); }
std::string pin_key(const VersionName& name, std::string_view by) { return pin_prefix(name) + std::string(by); }
std::optional<std::pair<VersionName, std::string>> parse_pin_key(std::string_view key) {
  if (!key.starts_with(kPinPrefix)) return std::nullopt;
  key.remove_prefix(kPinPrefix.size());
  const std::size_t end = key.find('\0');
  if (end == std::string_view::npos || key.size() < end + 1 + sizeof(std::uint64_t)) return std::nullopt;
  const std::string_view model = key.substr(0, end);
  if (!check_model_name(model)) return std::nullopt;
  const auto number = read_big_endian<std::uint64_t>(key.substr(end + 1));
  return std::pair(VersionName{.model = std::string(model), .number = number},
                   std::string(key.substr(end + 1 + sizeof(std::uint64_t))));
}
std::string alias_prefix(std::string_view model) { return "n/" + std::string(model) + '\0'; }
std::string alias_key(std::string_view model, std::string_view alias) {
  return alias_prefix(model) + std::string(alias);
}

std::string referrer_prefix(const VersionId& referrer, std::uint64_t attempt) {
  std::string key(kReferrerPrefix);
  append_id(key, referrer);
  append_big_endian(key, attempt);
  return key;
}

std::string referrer_key(const VersionId& referrer, std::uint64_t attempt, const VersionId& writer) {
  std::string key = referrer_prefix(referrer, attempt);
  append_id(key, writer);
  return key;
}

std::optional<ReferrerKey> parse_referrer_key(std::string_view key) {
  constexpr std::size_t kAttemptBytes = sizeof(std::uint64_t);
  if (key.size() != kReferrerPrefix.size() + 2 * kIdBytes + kAttemptBytes) return std::nullopt;
  key.remove_prefix(kReferrerPrefix.size());
  return ReferrerKey{.referrer = read_id(key),
                     .attempt = read_big_endian<std::uint64_t>(key.substr(kIdBytes)),
                     .writer = read_id(key.substr(kIdBytes + kAttemptBytes))};
}

std::string encode(const ReferrerRow& row) {
  flatbuffers::FlatBufferBuilder builder(64);
  const auto tensors = builder.CreateVector(row.tensors);
  const auto home = builder.CreateString(row.home);
  stored::ReferrerBuilder referrer(builder);
  referrer.add_tensors(tensors);
  referrer.add_home(home);
  return finish(builder, referrer.Finish());
}

Result<ReferrerRow> decode_referrer(std::string_view value) {
  const std::vector<std::uint64_t> buffer = aligned_copy(value);
  const auto* referrer = verified<stored::Referrer>(buffer, value.size());
  if (referrer == nullptr) return fail(Code::corrupt, "a referrer's record is damaged");
  ReferrerRow row;
  if (referrer->tensors() != nullptr) row.tensors.assign(referrer->tensors()->begin(), referrer->tensors()->end());
  if (referrer->home() != nullptr) row.home = referrer->home()->str();
  return row;
}

std::string given_up_key(const VersionId& id, std::uint64_t attempt) {
  std::string key(kGivenUpPrefix);
  append_id(key, id);
  append_big_endian(key, attempt);
  return key;
}

std::optional<std::pair<VersionId, std::uint64_t>> parse_given_up_key(std::string_view key) {
  if (key.size() != 2 + kIdBytes + sizeof(std::uint64_t) || !key.starts_with(kGivenUpPrefix)) return std::nullopt;
  return std::pair(read_id(key.substr(2)), read_big_endian<std::uint64_t>(key.substr(2 + kIdBytes)));
}

std::optional<VersionName> parse_version_key(std::string_view key) {
  constexpr std::size_t kTail = 1 + sizeof(std::uint64_t);
  if (key.size() < kVersionPrefix.size() + kTail) return std::nullopt;
  const std::string_view model = key.substr(kVersionPrefix.size(), key.size() - kVersionPrefix.size() - kTail);
  if (!check_model_name(model) || key[key.size() - kTail] != '\0') return std::nullopt;
  return VersionName{.model = std::string(model), .number = read_big_endian<std::uint64_t>(key.substr(key.size() - 8))};
}

Result<std::uint64_t> parse_number(std::string_view text) {
  if (const auto number = number_in<std::uint64_t>(text)) return *number;
  return fail(Code::corrupt, "the record of a version number is damaged");
}

std::string encode(const VersionRow& row) {
  flatbuffers::FlatBufferBuilder builder(256);
  const auto ancestor_model = builder.CreateString(row.ancestor_name.model);
  const stored::Writer id = stored_id(row.id);
  const stored::Hash128 architecture = stored_digest(row.architecture);
  const stored::Hash128 manifest = stored_digest(row.manifest);
  flatbuffers::Offset<stored::Placed> placed;
  if (row.placed) placed = store(builder, *row.placed);
  stored::Writer ancestor;
  if (row.ancestor) ancestor = stored_id(*row.ancestor);

  std::vector<stored::Hash128> tags;
  for (const Digest& tag : row.tags) tags.push_back(stored_digest(tag));
  const auto stored_tags = builder.CreateVectorOfStructs(tags);

  std::vector<flatbuffers::Offset<stored::StoredTag>> later;
  for (const auto& [key, value] : row.later_tags) {
    const auto key_text = builder.CreateString(key);
    const auto value_text = value ? builder.CreateString(*value) : flatbuffers::Offset<flatbuffers::String>();
    later.push_back(stored::CreateStoredTag(builder, key_text, value_text));
  }
  // A row of which nothing was said later looks as it always did.
  const auto later_tags = later.empty()
                              ? flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<stored::StoredTag>>>()
                              : builder.CreateVector(later);

  stored::VersionBuilder version(builder);
  version.add_id(&id);
  if (row.ancestor) version.add_ancestor(&ancestor);
  version.add_ancestor_model(ancestor_model);
  version.add_ancestor_number(row.ancestor_name.number);
  version.add_architecture(&architecture);
  version.add_manifest(&manifest);
  if (row.quality) version.add_quality(*row.quality);
  version.add_has_weights(row.has_weights);
  version.add_own_bytes(row.own_bytes);
  version.add_inherited_bytes(row.inherited_bytes);
  version.add_stored_unix_ns(row.stored_unix_ns);
  version.add_retired(row.retired);
  version.add_group(row.group);
  version.add_entry(row.entry);
  version.add_commit(row.commit);
  version.add_tags(stored_tags);
  if (!later.empty()) version.add_later_tags(later_tags);
  if (row.placed) version.add_placed(placed);
  return finish(builder, version.Finish());
}

Status check_quality(const std::optional<double>& quality) {
  if (!quality || !std::isnan(*quality)) return {};
  return fail(Code::invalid_argument, "the quality is not a number; leave it out for a version that has none");
}

Result<VersionRow> decode_version_row(std::string_view value) {
  const std::vector<std::uint64_t> buffer = aligned_copy(value);
  const auto* version = verified<stored::Version>(buffer, value.size());
  if (version == nullptr) return fail(Code::corrupt, "its record is damaged");
  VersionRow row{.id = id_from(*version->id()),
                 .architecture = digest_from(*version->architecture()),
                 .manifest = digest_from(*version->manifest()),
                 .has_weights = version->has_weights(),
                 .own_bytes = version->own_bytes(),
                 .inherited_bytes = version->inherited_bytes(),
                 .stored_unix_ns = version->stored_unix_ns(),
                 .retired = version->retired(),
                 .commit = version->commit(),
                 .group = version->group(),
                 .entry = version->entry()};
  if (version->tags() != nullptr) {
    for (const stored::Hash128* tag : *version->tags()) row.tags.push_back(digest_from(*tag));
  }
  if (version->ancestor() != nullptr) row.ancestor = id_from(*version->ancestor());
  if (version->ancestor_model() != nullptr) row.ancestor_name.model = version->ancestor_model()->str();
  row.ancestor_name.number = version->ancestor_number();
  const auto quality = version->quality();
  // Earlier builds stored what is not a number, and equals nothing.
  if (quality.has_value() && !std::isnan(quality.value())) row.quality = quality.value();
  if (version->placed() != nullptr) row.placed = placed_from(*version->placed());
  if (version->later_tags() == nullptr) return row;
  for (const stored::StoredTag* tag : *version->later_tags()) {
    if (tag->key() == nullptr) return fail(Code::corrupt, "its record is damaged");
    std::optional<std::string> said;
    if (tag->value() != nullptr) said = tag->value()->str();
    row.later_tags.emplace_back(tag->key()->str(), std::move(said));
  }
  return row;
}

Tags with_later_tags(Tags tags, const VersionRow& row) {
  for (const auto& [key, value] : row.later_tags) {
    const auto known = std::find_if(tags.begin(), tags.end(), [&](const auto& tag) { return tag.first == key; });
    if (known == tags.end()) {
      if (value) tags.emplace_back(key, *value);
    } else if (value) {
      known->second = *value;
    } else {
      tags.erase(known);
    }
  }
  return tags;
}

std::string encode(const SegmentRow& row) {
  flatbuffers::FlatBufferBuilder builder(64);
  const stored::Hash128 digest = stored_digest(row.digest);
  stored::SegmentBuilder segment(builder);
  segment.add_bytes(row.bytes);
  segment.add_digest(&digest);
  stored::SegmentId base;
  if (row.base) {
    base = {stored_id(row.base->writer), row.base->tensor};
    segment.add_base(&base);
    segment.add_delta_bytes(row.delta_bytes);
  }
  return finish(builder, segment.Finish());
}

Result<SegmentRow> decode_segment_row(std::string_view value) {
  const std::vector<std::uint64_t> buffer = aligned_copy(value);
  const auto* segment = verified<stored::Segment>(buffer, value.size());
  if (segment == nullptr) return fail(Code::corrupt, "a segment's record is damaged");
  SegmentRow row{.bytes = segment->bytes(), .digest = digest_from(*segment->digest())};
  if (segment->base() != nullptr) {
    row.base = SegmentName{.writer = id_from(segment->base()->writer()), .tensor = segment->base()->tensor()};
    row.delta_bytes = segment->delta_bytes();
  }
  return row;
}

}  // namespace freshet
