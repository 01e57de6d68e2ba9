// SPDX-License-Identifier: Apache-2.0
#include "repo/log/log_record.h"

#include <algorithm>

#include "core/base/format.h"
#include "repo/log/codec.h"

namespace freshet::log {
namespace {

// More than the FlatBuffer of an empty record takes, and than that of each part beside its own bytes.
constexpr std::size_t kPartOverhead = 64;

bool is_lower_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

std::optional<std::uint64_t> parse_hex16(std::string_view text) {
  if (text.size() != 16 || !std::ranges::all_of(text, is_lower_hex)) return std::nullopt;
  std::uint64_t number = 0;
  for (const char c : text) number = number << 4 | static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  return number;
}

std::optional<std::uint64_t> parse_descending(std::string_view key, std::string_view prefix) {
  if (!key.starts_with(prefix)) return std::nullopt;
  const auto number = parse_hex16(key.substr(prefix.size()));
  return number ? std::optional(~*number) : std::nullopt;
}

template <typename Struct, typename Stored, typename Read>
void read_all(const flatbuffers::Vector<const Stored*>* stored, std::vector<Struct>& out, const Read& read_one) {
  if (stored == nullptr) return;
  out.reserve(stored->size());
  for (const Stored* one : *stored) out.push_back(read_one(*one));
}

flatbuffers::Offset<stored::LogBatch> write(flatbuffers::FlatBufferBuilder& builder, const Batch& batch) {
  std::vector<flatbuffers::Offset<stored::LogChange>> changes;
  for (const Change& change : batch.changes) {
    changes.push_back(write(builder, change.key, change.value ? &*change.value : nullptr));
  }
  std::vector<stored::LogObject> condemned;
  for (const ObjectName& name : batch.condemned) condemned.push_back(stored_object(name));
  std::vector<stored::LogGrant> grants;
  for (const Grant& grant : batch.grants) grants.emplace_back(stored_id(grant.token), grant.life_s);
  std::vector<stored::LogId> ends;
  for (const LogId& token : batch.ends) ends.push_back(stored_id(token));
  std::vector<stored::LogObject> forgotten;
  for (const ObjectName& name : batch.forgotten) forgotten.push_back(stored_object(name));
  return stored::CreateLogBatchDirect(builder, &changes, &condemned, &grants, &ends, &forgotten, batch.stamp.unix_s,
                                      batch.stamp.through);
}

bool read_batch(const stored::LogBatch& stored, Batch& batch) {
  read_all(stored.condemned(), batch.condemned, object_from);
  read_all(stored.grants(), batch.grants,
           [](const stored::LogGrant& one) { return Grant{.token = id_from(one.token()), .life_s = one.life_s()}; });
  read_all(stored.ends(), batch.ends, id_from);
  read_all(stored.forgotten(), batch.forgotten, object_from);
  batch.stamp = {.unix_s = stored.stamp_unix_s(), .through = stored.stamp_through()};
  if (batch.stamp.unix_s < 0 || batch.stamp.unix_s > kStampMax) return false;
  return read(stored.changes(), batch.changes);
}

}  // namespace

std::string to_hex(const LogId& id) { return format("{:016x}{:016x}", id.high, id.low); }

std::uint64_t Value::bytes() const {
  std::uint64_t sum = inlined.size();
  for (const Place& place : places) sum += place.bytes;
  return sum;
}

flatbuffers::Offset<stored::LogChange> write(flatbuffers::FlatBufferBuilder& builder, const std::string& key,
                                             const Value* value) {
  const auto stored_key = builder.CreateString(key);
  if (value == nullptr) return stored::CreateLogChange(builder, stored_key, true);
  if (value->places.empty()) {
    const auto bytes =
        builder.CreateVector(reinterpret_cast<const std::uint8_t*>(value->inlined.data()), value->inlined.size());
    return stored::CreateLogChange(builder, stored_key, false, bytes);
  }
  std::vector<stored::LogPlace> places;
  for (const Place& place : value->places) {
    places.emplace_back(stored_object(place.object), place.offset, place.bytes, place.digest.low, place.digest.high);
  }
  return stored::CreateLogChange(builder, stored_key, false, 0, builder.CreateVectorOfStructs(places));
}

bool read(const StoredChanges* stored, std::vector<Change>& changes) {
  if (stored == nullptr) return true;
  changes.reserve(stored->size());
  for (const stored::LogChange* one : *stored) {
    Change& change = changes.emplace_back(Change{.key = one->key()->str(), .value = std::nullopt});
    if (change.key.empty() || change.key.size() > kKeyBytesMax) return false;
    if (one->erased()) continue;
    Value& value = change.value.emplace();
    if (one->value() != nullptr) {
      if (one->value()->size() > kInlineBytesMax || one->places() != nullptr) return false;
      value.inlined.assign(reinterpret_cast<const char*>(one->value()->data()), one->value()->size());
    }
    if (one->places() == nullptr) continue;
    for (const stored::LogPlace* place : *one->places()) {
      if (place->bytes() > kPlaceBytesMax || place->offset() > kPlaceBytesMax - place->bytes()) return false;
      value.places.push_back({.object = object_from(place->object()),
                              .offset = place->offset(),
                              .bytes = place->bytes(),
                              .digest = {.low = place->digest_low(), .high = place->digest_high()}});
    }
  }
  return true;
}

std::string sealed(const flatbuffers::FlatBufferBuilder& builder) {
  std::string bytes(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
  const Digest digest = plain_xxh3_of(bytes_of(bytes.data(), bytes.size()));
  std::byte seal[16];
  store_little_endian(seal, digest.low);
  store_little_endian(seal + 8, digest.high);
  bytes.append(reinterpret_cast<const char*>(seal), sizeof(seal));
  return bytes;
}

std::optional<std::vector<std::uint64_t>> unsealed(std::string_view bytes, std::size_t& content_bytes) {
  if (bytes.size() < 16) return std::nullopt;
  content_bytes = bytes.size() - 16;
  const auto* seal = reinterpret_cast<const std::byte*>(bytes.data() + content_bytes);
  const Digest digest = plain_xxh3_of(bytes_of(bytes.data(), content_bytes));
  if (digest.low != load_little_endian<std::uint64_t>(seal) ||
      digest.high != load_little_endian<std::uint64_t>(seal + 8)) {
    return std::nullopt;
  }
  std::vector<std::uint64_t> content((content_bytes + 7) / 8);
  std::copy_n(bytes.data(), content_bytes, reinterpret_cast<char*>(content.data()));
  return content;
}

std::string encode(const Record& record) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<stored::LogBatch>> batches;
  for (const Batch& batch : record.batches) batches.push_back(write(builder, batch));
  const stored::LogId writer = stored_id(record.writer);
  builder.Finish(stored::CreateLogRecordDirect(builder, kLogFormat, record.number, &writer, record.sequence,
                                               static_cast<std::uint8_t>(record.kind), record.address.c_str(),
                                               record.public_key.c_str(), &batches, record.emptied, record.snapshot));
  return sealed(builder);
}

Result<Record> decode_record(std::string_view bytes, std::uint64_t number) {
  const auto damaged = [number](std::string_view why) {
    return fail(Code::corrupt, format("record {} of the repository's log {}", number, why));
  };
  if (bytes.size() > kRecordBytesMax) return damaged("is too long");
  std::size_t content_bytes = 0;
  const auto content = unsealed(bytes, content_bytes);
  const auto* stored = content ? verified_table<stored::LogRecord>(*content, content_bytes) : nullptr;
  if (stored == nullptr) return damaged("is damaged, or is no record of Freshet");
  if (stored->format() != kLogFormat) {
    return fail(Code::unsupported,
                format("record {} of the repository's log has format {}; this Freshet reads format {}", number,
                       stored->format(), kLogFormat));
  }
  if (stored->number() != number) return damaged(format("says that it is record {}", stored->number()));
  const std::uint8_t kind = stored->kind();
  if (kind < static_cast<std::uint8_t>(RecordKind::challenge) || kind > static_cast<std::uint8_t>(RecordKind::end)) {
    return damaged(format("has the unknown kind {}", kind));
  }
  Record record{.number = number,
                .writer = id_from(*stored->writer()),
                .sequence = stored->sequence(),
                .kind = static_cast<RecordKind>(kind),
                .address = stored->address() == nullptr ? "" : stored->address()->str(),
                .public_key = stored->public_key() == nullptr ? "" : stored->public_key()->str(),
                .batches = {},
                .emptied = stored->emptied(),
                .snapshot = stored->snapshot()};
  if (record.address.size() > kAddressBytesMax || record.public_key.size() > kAddressBytesMax) {
    return damaged("has too long an address");
  }
  if (stored->batches() == nullptr) return record;
  if (stored->batches()->size() > kBatchesMax) return damaged("has too many batches");
  for (const stored::LogBatch* batch : *stored->batches()) {
    if (!read_batch(*batch, record.batches.emplace_back())) return damaged("has a change that Freshet does not make");
  }
  if (record.kind == RecordKind::challenge && !record.batches.empty()) return damaged("is a challenge with batches");
  if (record.emptied && !record.batches.empty()) return damaged("is emptied, and has batches");
  return record;
}

std::size_t size_of(const Batch& batch) {
  std::size_t sum = 2 * kPartOverhead + 24 * (batch.condemned.size() + batch.forgotten.size() + batch.grants.size()) +
                    16 * batch.ends.size();
  for (const Change& change : batch.changes) {
    sum += kPartOverhead + change.key.size();
    if (change.value) sum += change.value->inlined.size() + sizeof(stored::LogPlace) * change.value->places.size();
  }
  return sum;
}

Status check_batch_size(const Batch& batch) {
  for (const Change& change : batch.changes) {
    if (change.key.empty() || change.key.size() > kKeyBytesMax) {
      return refuse(format("a key of the repository's log has 1 to {} bytes, not {}", kKeyBytesMax, change.key.size()));
    }
    if (!change.value) continue;
    if (change.value->inlined.size() > kInlineBytesMax) {
      return refuse(format("a value of {} bytes stands in the log; values over {} bytes are objects",
                           change.value->inlined.size(), kInlineBytesMax));
    }
    if (!change.value->inlined.empty() && !change.value->places.empty()) {
      return refuse("a value stands in the log and in objects");
    }
    for (const Place& place : change.value->places) {
      if (place.bytes > kPlaceBytesMax || place.offset > kPlaceBytesMax - place.bytes) {
        return refuse(format("an object has at most {} bytes", kPlaceBytesMax));
      }
    }
  }
  if (const std::size_t bytes = size_of(batch); bytes > kBatchBytesMax) {
    return fail(Code::out_of_space,
                format("a batch of {} bytes does not fit into a record: at most {}", bytes, kBatchBytesMax));
  }
  return {};
}

std::string record_key(std::uint64_t number) { return format("{}{:016x}", kRecordPrefix, ~number); }

std::string snapshot_key(std::uint64_t position) { return format("{}{:016x}", kSnapshotPrefix, ~position); }

std::string part_key(std::uint64_t position, const LogId& writer, std::uint64_t attempt, std::size_t part) {
  return format("{}{:016x}/{}.{}/{}", kPartPrefix, ~position, to_hex(writer), attempt, part);
}

std::string object_key(const ObjectName& name) {
  return format("{}{}/{:016x}", kObjectPrefix, to_hex(name.token), name.draw);
}

std::optional<std::uint64_t> parse_record_key(std::string_view key) { return parse_descending(key, kRecordPrefix); }

std::optional<std::uint64_t> parse_snapshot_key(std::string_view key) { return parse_descending(key, kSnapshotPrefix); }

std::optional<ObjectName> parse_object_key(std::string_view key) {
  if (!key.starts_with(kObjectPrefix)) return std::nullopt;
  key.remove_prefix(kObjectPrefix.size());
  if (key.size() != 49 || key[32] != '/') return std::nullopt;
  const auto high = parse_hex16(key.substr(0, 16));
  const auto low = parse_hex16(key.substr(16, 16));
  const auto draw = parse_hex16(key.substr(33));
  if (!high || !low || !draw) return std::nullopt;
  return ObjectName{.token = {.high = *high, .low = *low}, .draw = *draw};
}

}  // namespace freshet::log
