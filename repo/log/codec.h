// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The common part of the encoded forms of records and snapshots: a FlatBuffer, then 16 bytes of its digest. For this
/// folder's own source files.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "repo/log/log_generated.h"
#include "repo/log/log_record.h"

namespace freshet::log {

inline stored::LogId stored_id(const LogId& id) { return {id.high, id.low}; }
inline LogId id_from(const stored::LogId& id) { return {.high = id.high(), .low = id.low()}; }
inline stored::LogObject stored_object(const ObjectName& name) { return {stored_id(name.token), name.draw}; }
inline ObjectName object_from(const stored::LogObject& object) {
  return {.token = id_from(object.token()), .draw = object.draw()};
}

using StoredChanges = flatbuffers::Vector<flatbuffers::Offset<stored::LogChange>>;
flatbuffers::Offset<stored::LogChange> write(flatbuffers::FlatBufferBuilder& builder, const std::string& key,
                                             const Value* value);
/// False: not what write() makes.
bool read(const StoredChanges* stored, std::vector<Change>& changes);

/// The builder's bytes with their digest.
std::string sealed(const flatbuffers::FlatBufferBuilder& builder);
/// The content, aligned; none if its digest is wrong.
std::optional<std::vector<std::uint64_t>> unsealed(std::string_view bytes, std::size_t& content_bytes);

template <typename Table>
const Table* verified_table(const std::vector<std::uint64_t>& buffer, std::size_t bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(buffer.data());
  if (bytes < sizeof(flatbuffers::uoffset_t)) return nullptr;
  flatbuffers::Verifier verifier(data, bytes, 16, 1U << 24);
  return verifier.VerifyBuffer<Table>(nullptr) ? flatbuffers::GetRoot<Table>(data) : nullptr;
}

}  // namespace freshet::log
