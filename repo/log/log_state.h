// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The state after a log's records up to one of them: the owner, the values, the upload tokens, the condemned objects.
/// A pure function of the records: two members at the same position have the same ones.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "repo/log/broken_rule.h"
#include "repo/log/log_record.h"

namespace freshet::log {

struct LogMember {
  LogId id;
  std::string address;
  std::string public_key;
  bool operator==(const LogMember&) const = default;
};

/// One thread at a time.
class LogState {
 public:
  struct Token {
    std::uint64_t since = 0;  ///< The record that granted it.
    std::uint32_t life_s = 0;
    /// A time of the store's clock after the grant. None: not yet noted.
    std::optional<std::int64_t> stamp_unix_s;
    bool operator==(const Token&) const = default;
  };
  struct Condemned {
    std::uint64_t since = 0;
    std::optional<std::int64_t> stamp_unix_s;
    bool operator==(const Condemned&) const = default;
  };
  using Values = std::map<std::string, Value, std::less<>>;

  std::uint64_t position() const { return position_; }  ///< The last record's number; 0: none.
  const std::optional<LogMember>& owner() const { return owner_; }
  std::uint64_t owned_since() const { return owned_since_; }
  /// Members whose challenge the owner has not answered, with the challenge's number.
  const std::map<LogId, std::uint64_t>& challenges() const { return challenges_; }
  const Values& values() const { return values_; }
  const std::map<LogId, Token>& tokens() const { return tokens_; }
  const std::map<ObjectName, Condemned>& condemned() const { return condemned_; }
  /// How often values name the object.
  std::uint64_t names_of(const ObjectName& object) const;
  /// Records up to here are emptied. The owner notes it.
  std::uint64_t emptied_through() const { return emptied_through_; }

  /// The next record, not an emptied one. corrupt: no member of the protocol makes it here. The state is then unusable.
  Status apply(const Record& record, BrokenRule broken = BrokenRule::none);
  /// Notes the time for all tokens and condemned objects of records up to `through` that have none.
  void stamp(std::int64_t unix_s, std::uint64_t through);
  /// True: some token or condemned object of a record up to `through` has no time.
  bool needs_stamp(std::uint64_t through) const;
  void set_emptied_through(std::uint64_t number) { emptied_through_ = number; }
  /// The positions of the newest snapshot that stands, and of the one before it, as far as this member knows; 0: none.
  std::uint64_t newest_snapshot() const { return newest_snapshot_; }
  std::uint64_t previous_snapshot() const { return previous_snapshot_; }
  /// The owner's new snapshot stands.
  void set_snapshot(std::uint64_t position) {
    previous_snapshot_ = newest_snapshot_;
    newest_snapshot_ = position;
  }

 private:
  friend class SnapshotLoader;

  void apply_batch(const Batch& batch);
  void set(const Change& change);

  std::uint64_t position_ = 0;
  std::optional<LogMember> owner_;
  std::uint64_t owned_since_ = 0;
  std::map<LogId, std::uint64_t> challenges_;
  Values values_;
  std::map<ObjectName, std::uint64_t> names_;
  std::map<LogId, Token> tokens_;
  std::map<ObjectName, Condemned> condemned_;
  std::uint64_t emptied_through_ = 0;
  std::uint64_t newest_snapshot_ = 0;
  std::uint64_t previous_snapshot_ = 0;
};

/// Whether batches, one after another, may follow a state. The state and the batches outlive the check, unchanged.
class BatchCheck {
 public:
  explicit BatchCheck(const LogState& state, BrokenRule broken = BrokenRule::none) : state_(state), broken_(broken) {}
  /// failed_precondition: the batch names, grants, ends, condemns or forgets something that it may not. It is then as
  /// if it had never been added. `orphans` gets the objects that lose their last name by this batch, which the batch
  /// does not condemn. They count as condemned: the caller adds them to the batch.
  Status add(const Batch& batch, std::vector<ObjectName>* orphans = nullptr);

 private:
  /// The changes by added batches.
  struct Layer {
    std::map<std::string_view, const Value*> values;  ///< Null: erased.
    std::map<ObjectName, std::int64_t> names;         ///< More or less than below.
    std::map<LogId, bool> tokens;                     ///< Live or not.
    std::set<ObjectName> condemned;
    std::set<ObjectName> forgotten;
  };
  const Value* value_of(std::string_view key, const Layer& top) const;
  std::int64_t names_of(const ObjectName& object, const Layer* top) const;
  bool is_live(const LogId& token, const Layer& top) const;
  bool is_condemned(const ObjectName& object, const Layer& top) const;
  Status add_change(const Change& change, Layer& top) const;
  void merge(Layer top);

  const LogState& state_;
  const BrokenRule broken_;
  Layer below_;
};

}  // namespace freshet::log
