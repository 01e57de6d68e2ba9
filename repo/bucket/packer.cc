// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/packer.h"

#include <algorithm>
#include <utility>

#include "repo/bucket/time_to_move.h"

namespace freshet::bucket {
namespace {

static_assert(kDigestPartBytes <= kObjectBytesMax);

}  // namespace

Result<log::ObjectName> Packer::upload(Bytes bytes, std::shared_ptr<const Pack> kept) {
  FRESHET_ASSIGN(const log::ObjectName name, log_.draw_object());
  // Before the upload. So the store proves that it got the bytes of this moment, whoever changes them meanwhile.
  const std::uint32_t crc32c = crc32c_of(bytes);
  FRESHET_TRY(crew_.add([this, name, bytes, crc32c, kept = std::move(kept)]() -> Status {
    Creation creation = store_.create(log::object_key(name), bytes, time_to_move(store_, bytes.size()), crc32c);
    // The name was drawn: what stands there was made by an earlier request of this very call.
    if (creation.outcome == Created::created || creation.outcome == Created::exists) return {};
    return fail(std::move(creation.error));
  }));
  return name;
}

Result<Digest> Packer::add(std::string_view key, Bytes bytes) {
  const auto [found, is_first] = values_.try_emplace(std::string(key));
  if (!is_first) std::erase_if(packed_, [&](const Packed& one) { return one.key == key; });
  log::Value& value = found->second;
  value = {};
  if (bytes.empty()) return digest_of(bytes);
  if (bytes.size() < kOwnObjectBytes) return add_to_pack(key, bytes);
  std::vector<Digest> digests;
  while (!bytes.empty()) {
    const Bytes part = bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), kDigestPartBytes)));
    FRESHET_ASSIGN(const log::ObjectName object, upload(part, nullptr));
    digests.push_back(digest_of(part));
    value.places.push_back({.object = object, .offset = 0, .bytes = part.size(), .digest = digests.back()});
    bytes = bytes.subspan(part.size());
  }
  return digest_of_parts(digests);
}

Result<Digest> Packer::add_to_pack(std::string_view key, Bytes bytes) {
  const std::size_t offset = pack_->size();
  pack_->insert(pack_->end(), bytes.begin(), bytes.end());
  const Digest digest = digest_of(Bytes(*pack_).subspan(offset));
  packed_.push_back({.key = std::string(key), .offset = offset, .bytes = bytes.size(), .digest = digest});
  if (pack_->size() >= kPackBytes) FRESHET_TRY(upload_pack());
  return digest;
}

Status Packer::upload_pack() {
  if (packed_.empty()) return {};
  std::shared_ptr<const Pack> pack = std::exchange(pack_, std::make_shared<Pack>());
  FRESHET_ASSIGN(const log::ObjectName object, upload(*pack, pack));
  place_packed(object, 0);
  return {};
}

void Packer::place_packed(const log::ObjectName& object, std::size_t offset) {
  for (const Packed& one : packed_) {
    values_[one.key].places = {
        {.object = object, .offset = offset + one.offset, .bytes = one.bytes, .digest = one.digest}};
  }
  packed_.clear();
}

Result<Packer::Values> Packer::finish() {
  if (!packed_.empty() && pack_->size() <= SharedPacks::kPackBytesMax) {
    FRESHET_ASSIGN(const SharedPacks::Where where, shared_.upload(std::exchange(*pack_, {})));
    place_packed(where.object, where.offset);
  }
  FRESHET_TRY(upload_pack());
  FRESHET_TRY(crew_.finish());
  return std::exchange(values_, {});
}

}  // namespace freshet::bucket
