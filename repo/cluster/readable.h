// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The readable part of a match while providers are away: the layers that a version shares with the query may rest with
/// others than its home. Private to this room.

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "repo/cluster/impl.h"

namespace freshet::cluster {

struct FoundRow {
  MatchRow row;
  std::size_t provider = 0;  ///< Index in the view.
};

/// Versions that are looked at for one match besides those that it answers. Each may take a question.
inline constexpr std::size_t kLookedAtMax = 256;

/// One match's; one thread.
class ReadableRows {
 public:
  /// `away`: of each provider, whether it is.
  ReadableRows(const ClusterRepository::Impl& impl, const ClusterView& now, const MatchGraph& query,
               std::vector<bool> away);

  /// The first `most` of the rows that can be read, in their order. notes() tells of the versions that were left out.
  /// Once.
  std::vector<FoundRow> keep(const std::vector<FoundRow>& rows, std::size_t most);
  /// There were rows that it did not look at, since these are too many, and which may be among the first that can be
  /// read.
  bool has_stopped() const { return has_stopped_; }
  /// The versions that were left out, and why. With `more`, or where it has stopped, also that there may be others.
  /// Empty if none was left out.
  std::vector<std::string> notes(bool more) const;

 private:
  /// Why it cannot be read; empty when it can, nothing when it is not there any more.
  std::optional<std::string> why_not(const FoundRow& found) const;

  const ClusterRepository::Impl& impl_;
  const ClusterView& now_;
  const std::vector<bool> away_;
  std::unordered_set<SlotId> slots_;
  std::size_t looked_at_ = 0;
  bool has_stopped_ = false;
  std::size_t left_out_ = 0;
  VersionName first_;
  std::string first_why_;
};

}  // namespace freshet::cluster
