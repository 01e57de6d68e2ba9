// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Finds an answer in a journal (bindings/serving/journal.h). A journal is untrusted: the search passes over lines that
/// were cut, and noise, and counts them.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/model/ids.h"
#include "core/model/manifest.h"

namespace freshet::serving {

struct JournalAnswer {
  VersionName version;
  std::int64_t served_unix_ns = 0;
  std::uint64_t versions_behind = 0;
  std::uint64_t step = 0;
  Metrics metrics;             ///< NaN for a metric that was no finite number.
  std::string schedule;        ///< The scheduled publisher's reason; empty if it told none.
  std::uint64_t left_out = 0;  ///< Metrics that the line had no room for.
};

struct JournalSearch {
  std::optional<JournalAnswer> newest;  ///< The last answer to the request.
  std::uint64_t answers = 0;            ///< A client may give several requests one id.
  std::uint64_t lines = 0;              ///< Whole ones.
  std::uint64_t damaged_lines = 0;
};

/// Reads PATH and its predecessors PATH.1 to PATH.99, as far as they are there, oldest first. Takes memory for one line
/// at a time. Any thread.
/// Errors: not_found: there is none of these files; invalid_argument: it is no regular file; io_error: it cannot be read.
Result<JournalSearch> search_journal(const std::string& path, std::string_view request);

}  // namespace freshet::serving
