// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Looks for torn reads: compares what a server says it saw with what the trainer wrote down for that version.
///
/// What a row held in a version is what the nearest ancestor record that names the row says, or the row's initial
/// value. Records form a tree: a restarted trainer continues from the newest version that the repository has, which may
/// be an ancestor of versions that were already served.

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "examples/live_run/journal.h"
#include "examples/live_run/model/layout.h"

namespace freshet::live {

/// One thread at a time.
class Checker {
 public:
  explicit Checker(const Layout& layout) : layout_(layout) {}

  /// corrupt when the record contradicts those before it.
  Status add(const JournalRecord& record);

  enum class Verdict {
    whole,    ///< All that the server saw belongs to the version that it names.
    torn,     ///< Something does not.
    unknown,  ///< No record of that version has come yet.
  };
  struct Finding {
    Verdict verdict = Verdict::whole;
    std::string reason;  ///< Of a torn one.
  };
  Finding check(const ScoreAnswer& answer);

  /// Records behind the newest by more than this are forgotten where newer ones supersede them.
  static constexpr std::uint64_t kRecordsRemembered = 1024;

 private:
  struct Row {
    RecordId record;
    std::uint64_t order = 0;
    std::uint64_t digest = 0;
  };
  struct Known {
    std::vector<std::uint64_t> dense;
  };

  bool descends(RecordId record, RecordId ancestor) const;
  std::uint64_t expected_row(std::uint32_t row, RecordId record) const;
  void forget(std::vector<Row>& history) const;

  const Layout& layout_;
  std::uint64_t order_ = 0;  ///< Records added.
  RecordId newest_;
  std::map<std::uint32_t, RecordId> parent_of_life_;
  std::map<RecordId, Known> records_;
  std::unordered_map<std::uint32_t, std::vector<Row>> rows_;
  std::map<std::uint64_t, RecordId> record_of_version_;
};

/// The digest by which rows and tensors are compared.
std::uint64_t digest_low(Bytes bytes);

}  // namespace freshet::live
