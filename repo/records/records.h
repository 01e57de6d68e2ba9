// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The keys and small values of a repository's records; repo/FORMAT.md lists them. Private to this room.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "core/model/manifest.h"
#include "repo/records/placed.h"

namespace freshet {

inline constexpr std::string_view kFormatKey = "format";
inline constexpr std::string_view kCommitKey = "commit";
inline constexpr std::string_view kVersionPrefix = "v/";
inline constexpr std::string_view kSegmentPrefix = "s/";
inline constexpr std::string_view kHighWaterPrefix = "h/";
inline constexpr std::string_view kSharedPrefix = "c/";
inline constexpr std::string_view kReferrerPrefix = "x/";
inline constexpr std::string_view kGivenUpPrefix = "g/";
inline constexpr std::size_t kPinHolderBytesMax = 256;

/// Of the record `format`. unsupported for any other number than kFormatVersion; corrupt for what is no number.
Status check_format_number(std::string_view stored);

/// Of a segment's blob: 36 bytes, whose order is the order of segment names.
std::string segment_key(const SegmentName& segment);
std::optional<SegmentName> parse_segment_key(std::string_view key);
/// Of the blob that has its delta, where it is kept as one. Sorts behind segment_key() and before any other's.
std::string delta_key(const SegmentName& segment);
/// The segment that a blob is of, whichever of the two it is.
std::optional<SegmentName> segment_of_blob(std::string_view key);

std::string segment_record_key(const SegmentName& segment);
std::string architecture_key(const Digest& digest);
std::string version_key(const VersionName& name);
std::string group_prefix(std::uint64_t group);
std::string entry_key(std::uint64_t group, std::uint32_t entry);
/// The entry's number, if the key is one of the group's.
std::optional<std::uint32_t> parse_entry_key(std::uint64_t group, std::string_view key);
struct EntryKey {
  std::uint64_t group = 0;
  std::uint32_t entry = 0;
};
std::optional<EntryKey> parse_entry_key(std::string_view key);
std::string high_water_key(std::string_view model);
std::string pin_prefix(const VersionName& name);
std::string pin_key(const VersionName& name, std::string_view by);
inline constexpr std::string_view kPinPrefix = "p/";
/// The version and the holder of a pin_key().
std::optional<std::pair<VersionName, std::string>> parse_pin_key(std::string_view key);
std::string alias_prefix(std::string_view model);
std::string alias_key(std::string_view model, std::string_view alias);

/// Says that a put of the version was given up for good.
std::string given_up_key(const VersionId& id, std::uint64_t attempt);
std::optional<std::pair<VersionId, std::uint64_t>> parse_given_up_key(std::string_view key);
/// All records of a version elsewhere that names segments here, and the one for each writer of those.
std::string referrer_prefix(const VersionId& referrer, std::uint64_t attempt);
std::string referrer_key(const VersionId& referrer, std::uint64_t attempt, const VersionId& writer);
struct ReferrerKey {
  VersionId referrer;
  std::uint64_t attempt = 0;
  VersionId writer;
};
std::optional<ReferrerKey> parse_referrer_key(std::string_view key);
struct ReferrerRow {
  std::vector<std::uint32_t> tensors;  ///< Ascending, none twice.
  std::string home;
};
std::string encode(const ReferrerRow& row);
Result<ReferrerRow> decode_referrer(std::string_view value);

/// The version that a version_key() names.
std::optional<VersionName> parse_version_key(std::string_view key);

/// Decimal text; corrupt when it is not a number.
Result<std::uint64_t> parse_number(std::string_view text);

/// A version, without its manifest.
struct VersionRow {
  VersionId id;
  std::optional<VersionId> ancestor;
  VersionName ancestor_name;  ///< As the manifest has it.
  Digest architecture;
  Digest manifest;  ///< Of its encoded form.
  std::optional<double> quality;
  bool has_weights = true;
  std::uint64_t own_bytes = 0;
  std::uint64_t inherited_bytes = 0;
  std::int64_t stored_unix_ns = 0;
  bool retired = false;
  std::uint64_t commit = 0;      ///< Of its put, in the repository's sequence.
  std::vector<Digest> tags;      ///< tag_digest() of each.
  std::optional<Placed> placed;  ///< Of one provider of several.
  std::uint64_t group = 0;       ///< Where its manifest lies: the commit that began the group.
  std::uint32_t entry = 0;
  /// Said since it was put, by key; without a value: that tag went. `tags` is of what came out.
  std::vector<std::pair<std::string, std::optional<std::string>>> later_tags;
  bool operator==(const VersionRow&) const = default;
};
std::string encode(const VersionRow& row);
/// invalid_argument: it is not a number, which would equal nothing, itself included. Infinities are.
Status check_quality(const std::optional<double>& quality);
/// The tags of a version whose manifest has `tags`.
Tags with_later_tags(Tags tags, const VersionRow& row);
Result<VersionRow> decode_version_row(std::string_view value);

struct SegmentRow {
  std::uint64_t bytes = 0;
  Digest digest;
  std::optional<SegmentName> base;  ///< Its blob is an element delta onto this one's, which is none itself.
  std::uint64_t delta_bytes = 0;
  bool operator==(const SegmentRow&) const = default;
};
std::string encode(const SegmentRow& row);
Result<SegmentRow> decode_segment_row(std::string_view value);

}  // namespace freshet
