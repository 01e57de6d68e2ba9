// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the trainer writes down about every version, before anybody can see it: the digests of its dense tensors and of
/// the rows that changed since its parent. Whoever checks what a server saw compares with this, and not with anything
/// that went the way of the version itself.
///
/// A file for each life of the trainer, `journal-LIFE` in the run's folder, written by that life alone, record after
/// record:
///   u32 magic, u32 payload bytes, u64 digest of the payload (XXH3-128, low half), and the payload:
///   u32 life, u32 index, u32 parent's life, u32 parent's index, u64 step, u32 dense tensors, u32 rows,
///   u64 digest of each dense tensor, (u32 row, u64 digest) of each changed row.
/// Little-endian. A version carries its record's id as the tag `record`. A life that was killed may leave an unfinished
/// record at its end: then its version was never published.

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "examples/live_run/messages.h"

namespace freshet::live {

inline constexpr const char* kRecordTag = "record";

/// Which record: the trainer's life and a count within it, both from 1; {0, 0} is none.
struct RecordId {
  std::uint32_t life = 0;
  std::uint32_t index = 0;
  auto operator<=>(const RecordId&) const = default;
};
std::string to_string(RecordId id);  ///< "LIFE-INDEX"
std::optional<RecordId> parse_record_id(std::string_view text);

struct JournalRecord {
  RecordId id;
  RecordId parent;
  std::uint64_t step = 0;
  std::vector<std::uint64_t> dense;
  std::vector<RowSeen> rows;
};

std::string encode(const JournalRecord& record);

/// Takes the first record off the front of `bytes`; nothing when it is not whole yet; corrupt when it is not one.
Result<std::optional<JournalRecord>> take_record(std::string_view& bytes);

/// One thread at a time.
class JournalWriter {
 public:
  static Result<JournalWriter> create(const std::string& folder, std::uint32_t life);
  JournalWriter(JournalWriter&& other) noexcept;
  JournalWriter& operator=(JournalWriter&&) = delete;
  ~JournalWriter();

  /// Visible to readers when it returns.
  Status append(const JournalRecord& record);

 private:
  JournalWriter(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

/// Follows the journals of all lives. One thread at a time.
class JournalReader {
 public:
  explicit JournalReader(std::string folder) : folder_(std::move(folder)) {}
  /// Hands over what is new: lives in order, a life's records in order.
  Status poll(const std::function<void(JournalRecord)>& each);

 private:
  struct Follow {
    std::uint64_t offset = 0;
    std::string unread;
  };
  Status follow(std::uint32_t life, const std::function<void(JournalRecord)>& each);
  std::string folder_;
  std::map<std::uint32_t, Follow> lives_;
};

}  // namespace freshet::live
