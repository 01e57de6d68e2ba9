// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A server's journal: one line for each answer, which says the version that gave the answer. `freshet why` reads
/// journals (bindings/serving/journal_search.h).
///
/// A line is one JSON object. Its first member is `request`, and the members come in this order:
///
///     {"request":"7f3a-1","model":"m","version":3,"served_unix_ns":1764213000000000000,"versions_behind":0,
///      "step":120,"metrics":{"loss":0.31},"schedule":"…"}
///
/// `schedule` is the tag that a scheduled publisher gives a version (kScheduleTag in
/// bindings/runtime/scheduled_publisher.h); without this tag the member is absent. `left_out` counts the metrics that a
/// line has no room for. A metric that is no finite number is null.
///
/// Rules:
///   1. A line is one write(2) to a file that was opened with O_APPEND. So threads and processes may share a path.
///   2. A write that came to an end before the line did (a full disk) is taken back if no other line follows it.
///      Readers pass over a line that was cut.
///   3. When PATH has `bytes_max` bytes, it becomes PATH.1, PATH.1 becomes PATH.2, and so on. `files_max` files stay.
///      The renaming process has a flock() on the file, for which nobody waits: until then, the others write on in the
///      full file, 64 MiB at most.
///   4. A journal never fails an answer: a line that cannot be written is counted, and logged once.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"
#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/manifest.h"

namespace freshet::serving {

inline constexpr std::size_t kRequestBytesMax = 128;  ///< Of a request's id.
inline constexpr std::size_t kLineBytesMax = std::size_t{8} << 10;
inline constexpr std::uint64_t kJournalBytesMin = std::uint64_t{64} << 10;
inline constexpr std::size_t kJournalFilesMax = 100;

struct JournalOptions {
  std::string path;
  std::uint64_t bytes_max = std::uint64_t{64} << 20;  ///< Of one file; from kJournalBytesMin on.
  std::size_t files_max = 4;                          ///< PATH and its predecessors together; 1 to kJournalFilesMax.
};

/// An answer.
struct JournalEntry {
  std::string_view request;  ///< 1 to kRequestBytesMax bytes of UTF-8 without control characters.
  const Manifest& manifest;  ///< Of the version that gave the answer.
  VersionNumber newest = 0;  ///< The newest version that the server knew then.
  std::int64_t served_unix_ns = 0;
};

/// Any thread. After a fork, a child's calls are failed_precondition.
class Journal {
 public:
  /// Makes PATH if there is none. invalid_argument: a bad limit, or PATH is neither a regular file nor a character
  /// device. io_error and the like: the file cannot be opened.
  static Result<std::unique_ptr<Journal>> open(JournalOptions options);
  ~Journal();

  /// Whether the line was written. invalid_argument for a bad request id.
  Result<bool> record(const JournalEntry& entry);

  /// The lines that could not be written.
  std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  const std::string& path() const { return options_.path; }

 private:
  struct File;

  Journal(JournalOptions options, std::shared_ptr<File> file);
  std::shared_ptr<File> file() const FRESHET_EXCLUDES(mutex_);
  /// The file that takes the next line: another one if the file at hand is full or deleted. Looks at a large file once
  /// a millisecond, in which no writers fill all of its successors.
  Result<std::shared_ptr<File>> file_with_room(std::int64_t unix_ns);
  Result<std::shared_ptr<File>> next_file(const File& full);
  bool lose(const Error& error);

  const JournalOptions options_;
  const ForkMark mark_;
  std::atomic<bool> is_rotating_{false};  ///< One thread renames; the others write on.
  std::atomic<std::int64_t> looked_unix_ns_{0};
  std::atomic<bool> is_losing_{false};  ///< The last line was lost, and that was logged.
  std::atomic<std::uint64_t> lost_{0};
  mutable Mutex mutex_;
  std::shared_ptr<File> file_ FRESHET_GUARDED_BY(mutex_);
};

/// The line of an entry, with its line break; at most kLineBytesMax bytes. REQUIRES: a valid request id.
std::string journal_line(const JournalEntry& entry);

/// `text` as the inside of a JSON string.
std::string json_escaped(std::string_view text);

}  // namespace freshet::serving
