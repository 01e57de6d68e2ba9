// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The common parts of the FlatBuffers of the small records. For repo's own source files.

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/model/ids.h"
#include "repo/records/records_generated.h"

namespace freshet {

inline stored::Hash128 stored_digest(const Digest& digest) { return {digest.low, digest.high}; }
inline Digest digest_from(const stored::Hash128& hash) { return {.low = hash.low(), .high = hash.high()}; }

inline stored::Writer stored_id(const VersionId& id) { return {id.run.high, id.run.low, id.incarnation, id.sequence}; }
inline VersionId id_from(const stored::Writer& id) {
  return {
      .run = {.high = id.run_high(), .low = id.run_low()}, .incarnation = id.incarnation(), .sequence = id.sequence()};
}

template <typename Table>
std::string finish(flatbuffers::FlatBufferBuilder& builder, flatbuffers::Offset<Table> root) {
  builder.Finish(root);
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

/// Values come from the backend at any address; FlatBuffers wants them aligned.
inline std::vector<std::uint64_t> aligned_copy(std::string_view value) {
  std::vector<std::uint64_t> copy((value.size() + 7) / 8);
  if (!value.empty()) std::memcpy(copy.data(), value.data(), value.size());
  return copy;
}

/// Null when it is not what it should be.
template <typename Table>
const Table* verified(const std::vector<std::uint64_t>& buffer, std::size_t bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(buffer.data());
  if (bytes < sizeof(flatbuffers::uoffset_t)) return nullptr;
  flatbuffers::Verifier verifier(data, bytes);
  return verifier.VerifyBuffer<Table>(nullptr) ? flatbuffers::GetRoot<Table>(data) : nullptr;
}

}  // namespace freshet
