// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a simulated object store keeps, and what must hold of it. The oracle reads each record when it is made, folds
/// the batches in the plainest way, and is told what owners promised. It shares the records' encoding with the
/// machines, and nothing else.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "repo/log/log_record.h"
#include "repo/log/log_state.h"
#include "repo/log/store_calls.h"

namespace freshet::sim {

/// One thread at a time.
class LogOracle {
 public:
  using Values = std::map<std::string, std::string>;

  explicit LogOracle(std::int64_t grace_s) : grace_s_(grace_s) {}

  /// Does a call as the store does, at this time of its clock. A listing does not show keys of `unlisted`.
  log::Answer apply(const log::Call& call, std::int64_t unix_s, const std::set<std::string>& unlisted);

  // What owners said of batches, by the numbers in their values ("B17").
  void on_applied(std::uint64_t batch);
  void on_not_applied(std::uint64_t batch);
  /// An owner answers names from this state, now.
  void on_answered(const log::LogState& state);
  /// A member has this state.
  void on_state(const log::LogState& state);
  /// Nothing is under way, and everything was swept.
  void check_all_swept();

  std::string violation() const { return violation_; }
  std::uint64_t records() const { return states_.size(); }
  std::uint64_t challenges() const { return challenges_; }
  std::uint64_t ownerships() const { return ownerships_; }
  std::uint64_t batches() const { return seen_.size(); }
  std::uint64_t shared() const { return shared_; }
  std::uint64_t emptied() const { return emptied_; }
  std::uint64_t snapshots() const { return snapshots_; }
  std::uint64_t erased() const { return erased_; }
  std::uint64_t answers() const { return answers_; }
  const std::map<std::string, std::string>& objects() const { return objects_; }

 private:
  void violate(std::string what);
  void on_record(std::uint64_t number, const std::string& bytes, std::int64_t unix_s);
  void fold(const log::Batch& batch, std::uint64_t number, std::int64_t unix_s);
  void on_replaced(const std::string& key, const std::string& bytes);
  void on_removed(const std::string& key, std::int64_t unix_s);

  const std::int64_t grace_s_;
  std::string violation_;
  std::map<std::string, std::string> objects_;  ///< The raw store.
  std::vector<Values> states_;                  ///< After each record, from record 1 on.
  Values values_;
  std::map<std::string, int> named_;             ///< Objects, by their keys: how many places name them.
  std::map<std::string, std::int64_t> dropped_;  ///< When an object lost its last name.
  std::set<log::LogId> tokens_;
  log::LogId owner_;
  std::map<std::uint64_t, std::uint64_t> seen_;  ///< Batches, and their records.
  std::set<std::uint64_t> refused_;
  std::uint64_t acknowledged_through_ = 0;
  std::uint64_t challenges_ = 0;
  std::uint64_t ownerships_ = 0;
  std::uint64_t shared_ = 0;
  std::uint64_t emptied_ = 0;
  std::uint64_t snapshots_ = 0;
  std::uint64_t erased_ = 0;
  std::uint64_t answers_ = 0;
};

}  // namespace freshet::sim
