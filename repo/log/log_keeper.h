// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The owner's housekeeping: snapshots, emptied records, the erasure of condemned objects, the end of upload tokens,
/// and the sweep for objects that nobody may name any more. All of it goes on behind the appends, and any of it may
/// stop at any time: the next owner goes on. Late work of an owner, after another one took over, does no harm
/// (repo/log/PROTOCOL.md, "Late housekeeping").
///
/// One thread at a time; belongs to a LogMachine.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "repo/log/log_options.h"
#include "repo/log/log_state.h"
#include "repo/log/snapshot.h"
#include "repo/log/store_calls.h"

namespace freshet::log {

class LogKeeper {
 public:
  LogKeeper(const LogOptions& options, CallBook& calls) : options_(options), calls_(calls) {}

  /// The member owns the log from here on.
  void start(const LogState& state);
  /// It does not own the log any more. Writes on their way go on.
  void stop();
  /// A record of the owner's was applied, and no challenge is open.
  void on_record(std::size_t bytes, const LogState& state);
  void on_tick(Time now, LogState& state);
  /// False: the ticket is of another machine.
  bool on_answer(Ticket ticket, const Answer& answer, Time now, LogState& state);

  /// A batch that the owner is to append; none while one is on its way.
  std::optional<Batch> take_batch(const LogState& state);
  void on_batch_end() { batch_on_its_way_ = false; }

  /// Looks through all uploaded objects once.
  void sweep() { sweep_wanted_ = true; }
  bool is_sweeping() const { return sweep_wanted_ || sweep_page_.has_value() || !swept_.empty(); }

 private:
  struct Writing {
    Snapshot snapshot;
    std::size_t parts_done = 0;
    std::optional<Ticket> ticket;
  };
  struct Emptying {
    std::uint64_t number = 0;
    std::string bytes;  ///< Not empty: read, and to be replaced by this.
    bool is_probe = false;
  };
  /// Records up to `low` are emptied, records after `high` are not.
  struct Search {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
  };
  enum class Listing : std::uint8_t { snapshots, parts };

  void ask_time(Time now, const LogState& state);
  void write_snapshot();
  void on_snapshot_answer(const Answer& answer, LogState& state);
  void on_snapshot_stands(LogState& state);
  void empty_records(LogState& state);
  void on_emptied(Emptying record, const Answer& answer, LogState& state);
  void search_on(LogState& state);
  void on_probe(std::uint64_t number, const Answer& answer, LogState& state);
  void remove_old_snapshots(const LogState& state);
  void erase_condemned(Time now, const LogState& state);
  void sweep_on();
  void on_sweep_page(const Answer& answer, const LogState& state);
  std::optional<std::int64_t> time_for(Time now) const;

  const LogOptions& options_;
  CallBook& calls_;
  bool runs_ = false;

  // The store's clock.
  std::optional<Ticket> time_asked_;
  std::uint64_t asked_at_ = 0;  ///< The position then.
  Time ask_again_{};
  Stamp stamp_;                            ///< To go with the next batch.
  std::optional<std::int64_t> store_now_;  ///< The last answer: not later than the store's clock shows now.

  // Snapshots.
  std::uint64_t attempt_ = 0;
  std::uint64_t records_since_ = 0;
  std::uint64_t bytes_since_ = 0;
  std::optional<Writing> writing_;
  std::optional<Search> search_;  ///< For where the owner before stopped to empty records.
  std::map<Ticket, Emptying> emptying_;
  std::set<std::uint64_t> emptied_;  ///< Beyond the state's emptied_through().
  std::optional<std::pair<Ticket, Listing>> old_listed_;
  std::set<Listing> old_unlisted_;
  std::vector<std::string> old_;
  std::set<Ticket> old_removing_;

  // Objects.
  std::map<Ticket, ObjectName> erasing_;
  std::set<ObjectName> erased_;
  bool batch_on_its_way_ = false;
  bool sweep_wanted_ = false;
  std::optional<Ticket> sweep_page_;
  std::string sweep_after_;
  std::set<ObjectName> swept_;  ///< To be condemned.
};

}  // namespace freshet::log
