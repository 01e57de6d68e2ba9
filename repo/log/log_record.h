// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The records of a repository's log in an object store, and the names of all its objects. repo/log/PROTOCOL.md has the
/// rules. Bytes from the store are hostile: decode() verifies them before use.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"

namespace freshet::log {

inline constexpr std::uint32_t kLogFormat = 1;
/// Values beyond this are objects.
inline constexpr std::size_t kInlineBytesMax = std::size_t{4} << 10;
inline constexpr std::size_t kKeyBytesMax = std::size_t{4} << 10;
/// The limit of one encoded record. A batch beyond kBatchBytesMax is refused; batches that wait share a record up to
/// this size.
inline constexpr std::size_t kRecordBytesMax = std::size_t{16} << 20;
inline constexpr std::size_t kBatchBytesMax = std::size_t{8} << 20;
inline constexpr std::size_t kBatchesMax = 1024;  ///< Of one record.
inline constexpr std::size_t kAddressBytesMax = 1024;
inline constexpr std::uint64_t kPlaceBytesMax = std::uint64_t{64} << 20;  ///< One object is one PUT.

/// 128 random bits: of a member (one life of a process), or of an upload token.
struct LogId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const LogId&) const = default;
};
std::string to_hex(const LogId& id);  ///< 32 digits.

/// An object with bytes. Its uploader draws `draw` anew for each upload, so no object's name comes twice.
struct ObjectName {
  LogId token;
  std::uint64_t draw = 0;
  auto operator<=>(const ObjectName&) const = default;
};

/// Where bytes of a value lie.
struct Place {
  ObjectName object;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  Digest digest;  ///< digest_of() these bytes.
  bool operator==(const Place&) const = default;
};

struct Value {
  std::string inlined;
  std::vector<Place> places;  ///< If there are any, the value is their bytes, one after another.
  std::uint64_t bytes() const;
  bool operator==(const Value&) const = default;
};

struct Change {
  std::string key;
  std::optional<Value> value;  ///< None: the key is erased.
  bool operator==(const Change&) const = default;
};

/// A right to upload objects. It ends by a batch, `life_s` after its grant at the latest.
struct Grant {
  LogId token;
  std::uint32_t life_s = 0;
  bool operator==(const Grant&) const = default;
};

/// A time of the store's clock that the owner asked for when record `through` stood. It counts for all tokens and
/// condemned objects of records up to `through` that have no time yet.
inline constexpr std::int64_t kStampMax = std::int64_t{1} << 52;
struct Stamp {
  std::int64_t unix_s = 0;
  std::uint64_t through = 0;  ///< 0: no stamp.
  bool operator==(const Stamp&) const = default;
};

/// Applied whole, in the order of the fields.
struct Batch {
  std::vector<Grant> grants;
  std::vector<Change> changes;
  std::vector<LogId> ends;  ///< Tokens that end. Nothing of theirs is named for the first time after this.
  /// Nobody may name them again; they are erased a grace later. A LogMachine adds those that lose their last name.
  std::vector<ObjectName> condemned;
  std::vector<ObjectName> forgotten;  ///< Condemned ones that are erased, of tokens that have ended.
  Stamp stamp = {};
  bool operator==(const Batch&) const = default;
};

enum class RecordKind : std::uint8_t {
  challenge = 1,  ///< Its writer wants to own the log. A living owner answers by a record.
  ownership = 2,  ///< Its writer owns the log from here on.
  batches = 3,    ///< Of the owner. Without a batch: an answer to challenges.
  end = 4,        ///< The owner owns the log no more.
};

struct Record {
  std::uint64_t number = 0;  ///< From 1.
  LogId writer;
  std::uint64_t sequence = 0;  ///< Of its writer's records. (writer, sequence) is never used for two records.
  RecordKind kind = RecordKind::batches;
  std::string address;     ///< Of challenges and ownerships: where the writer listens; may be empty.
  std::string public_key;  ///< The same.
  std::vector<Batch> batches;
  /// The record lost its batches after a snapshot. All else stays: a late reader learns the writer and the kind.
  bool emptied = false;
  std::uint64_t snapshot = 0;  ///< Of emptied ones: a snapshot of this position stood at that time.
  bool operator==(const Record&) const = default;
};

std::string encode(const Record& record);
/// `number` is that of its name. corrupt: damaged, or a record of another number. unsupported: another format.
Result<Record> decode_record(std::string_view bytes, std::uint64_t number);

/// invalid_argument, if a record cannot hold the batch; out_of_space, if the batch is too large.
Status check_batch_size(const Batch& batch);
std::size_t size_of(const Batch& batch);  ///< At least its encoded size.

// Names. Of records and snapshots the newest comes first in a listing. So one listing of one key finds the end.
inline constexpr std::string_view kRecordPrefix = "log/";
inline constexpr std::string_view kSnapshotPrefix = "snapshots/";
inline constexpr std::string_view kPartPrefix = "parts/";
inline constexpr std::string_view kObjectPrefix = "objects/";
std::string record_key(std::uint64_t number);
std::string snapshot_key(std::uint64_t position);
std::string part_key(std::uint64_t position, const LogId& writer, std::uint64_t attempt, std::size_t part);
std::string object_key(const ObjectName& name);
std::optional<std::uint64_t> parse_record_key(std::string_view key);
std::optional<std::uint64_t> parse_snapshot_key(std::string_view key);
std::optional<ObjectName> parse_object_key(std::string_view key);

}  // namespace freshet::log
