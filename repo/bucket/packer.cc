// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/packer.h"

#include <algorithm>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/digest.h"

namespace freshet::bucket {
namespace {

/// A value from here on has objects of its own.
constexpr std::size_t kOwnObjectBytes = std::size_t{1} << 20;
constexpr std::size_t kPackBytes = std::size_t{8} << 20;
constexpr Duration kUploadMax = std::chrono::minutes(2);
static_assert(kDigestPartBytes <= kObjectBytesMax);

}  // namespace

Result<log::ObjectName> Packer::upload(Bytes bytes) {
  FRESHET_ASSIGN(const log::ObjectName name, log_.draw_object());
  Creation creation = store_.create(log::object_key(name), bytes, deadline_in(kUploadMax));
  // The name was drawn: what stands there was made by an earlier request of this very call.
  if (creation.outcome == Created::created || creation.outcome == Created::exists) return name;
  return fail(std::move(creation.error));
}

Status Packer::add(std::string_view key, Bytes bytes) {
  const auto [found, is_first] = values_.try_emplace(std::string(key));
  if (!is_first) std::erase_if(packed_, [&](const Packed& one) { return one.key == key; });
  log::Value& value = found->second;
  value = {};
  if (bytes.size() < kOwnObjectBytes) {
    if (bytes.empty()) return {};
    packed_.push_back({.key = std::string(key), .offset = pack_.size(), .bytes = bytes.size()});
    pack_.insert(pack_.end(), bytes.begin(), bytes.end());
    return pack_.size() < kPackBytes ? Status() : upload_pack();
  }
  while (!bytes.empty()) {
    const Bytes part = bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), kDigestPartBytes)));
    FRESHET_ASSIGN(const log::ObjectName object, upload(part));
    value.places.push_back({.object = object, .offset = 0, .bytes = part.size(), .digest = digest_of(part)});
    bytes = bytes.subspan(part.size());
  }
  return {};
}

Status Packer::upload_pack() {
  if (!packed_.empty()) {
    FRESHET_ASSIGN(const log::ObjectName object, upload(pack_));
    for (const Packed& one : packed_) {
      const Bytes bytes = Bytes(pack_).subspan(one.offset, one.bytes);
      values_[one.key].places = {
          {.object = object, .offset = one.offset, .bytes = one.bytes, .digest = digest_of(bytes)}};
    }
  }
  packed_.clear();
  pack_.clear();
  return {};
}

Result<Packer::Values> Packer::finish() {
  FRESHET_TRY(upload_pack());
  return std::exchange(values_, {});
}

}  // namespace freshet::bucket
