// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/format.h"
#include "repo/serve/wire/messages.h"

// What is said of versions after their put: by whom they are pinned, how good they are, how they are tagged.

namespace freshet::rpc {

Offset<wire::PinnedVersions> put(Builder& builder, const std::vector<PinnedVersion>& rows) {
  std::vector<Offset<wire::PinnedVersion>> encoded;
  for (const PinnedVersion& row : rows) {
    const auto version = put(builder, row.version);
    const auto by = builder.CreateString(row.by);
    flatbuffers::Optional<std::uint64_t> left;
    if (row.left) left = static_cast<std::uint64_t>(std::max(*row.left, Duration::zero()).count());
    encoded.push_back(wire::CreatePinnedVersion(builder, version, by, row.count, left));
  }
  return wire::CreatePinnedVersions(builder, builder.CreateVector(encoded));
}

Result<std::vector<PinnedVersion>> read(const wire::PinnedVersions& pinned) {
  std::vector<PinnedVersion> rows;
  if (pinned.rows() == nullptr) return rows;
  for (const wire::PinnedVersion* row : *pinned.rows()) {
    FRESHET_ASSIGN(VersionName version, read(row->version()));
    PinnedVersion read_back{.version = std::move(version), .by = read(row->by()), .count = row->count(), .left = {}};
    if (row->left_ns().has_value()) {
      constexpr auto kMost = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
      read_back.left = Duration(static_cast<std::int64_t>(std::min(row->left_ns().value(), kMost)));
    }
    rows.push_back(std::move(read_back));
  }
  return rows;
}

Offset<wire::Annotate> put(Builder& builder, const VersionName& name, const Annotations& annotations) {
  const auto version = put(builder, name);
  std::vector<Offset<wire::Tag>> tags;
  for (const auto& [key, value] : annotations.tags) {
    const auto key_text = builder.CreateString(key);
    const auto value_text = value ? builder.CreateString(*value) : Offset<flatbuffers::String>();
    tags.push_back(wire::CreateTag(builder, key_text, value_text));
  }
  return wire::CreateAnnotate(builder, version, annotations.sets_quality, wire_number(annotations.quality),
                              builder.CreateVector(tags));
}

Result<Annotations> read(const wire::Annotate& annotate) {
  Annotations annotations{.sets_quality = annotate.sets_quality(), .quality = read(annotate.quality())};
  if (annotate.tags() == nullptr) return annotations;
  if (annotate.tags()->size() > kLaterTagsMax) {
    return fail(Code::out_of_space, format("more than {} tags were set after the put", kLaterTagsMax));
  }
  for (const wire::Tag* tag : *annotate.tags()) {
    FRESHET_TRY(check_tag(*tag, kLaterTagBytesMax));
    std::optional<std::string> value;
    if (tag->value() != nullptr) value = read(tag->value());
    annotations.tags.emplace_back(read(tag->key()), std::move(value));
  }
  return annotations;
}

}  // namespace freshet::rpc
