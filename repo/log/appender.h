// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Brings one record to the end of the log: creates it under the next number, again and again, until something stands
/// there. Only the record that stands there settles it: the tail reads the record, and the caller compares. A record is
/// tried under one number only, until that number is settled.
///
/// One thread at a time; belongs to a LogMachine.

#include <optional>
#include <string>

#include "repo/log/log_record.h"
#include "repo/log/store_calls.h"

namespace freshet::log {

class Appender {
 public:
  enum class Step : std::uint8_t {
    other,    ///< The ticket is of another machine.
    waits,    ///< Not settled.
    created,  ///< This call made it: at start(), nothing stood there.
    exists,   ///< Something stands there: look what it is.
  };

  explicit Appender(CallBook& calls) : calls_(calls) {}

  bool is_busy() const { return record_.has_value(); }
  const Record& record() const { return *record_; }
  /// REQUIRES: !is_busy().
  void begin(Record record, Time now);
  void on_tick(Time now);
  Step on_answer(Ticket ticket, const Answer& answer, Time now);
  /// It is settled, or given up.
  Record end();
  /// True: the record does not stand, and will not, unless it is tried again.
  bool can_be_given_up() const { return !ticket_ && !may_come_; }
  /// The last answered try: when it began, and its trouble.
  Time start() const { return start_; }
  const std::optional<Error>& trouble() const { return trouble_; }
  Time next_tick() const { return due_; }

 private:
  void send(Time now);

  CallBook& calls_;
  std::optional<Record> record_;
  std::string bytes_;
  std::optional<Ticket> ticket_;
  Time start_{};
  Time due_{};
  Duration pause_{};
  bool may_come_ = false;  ///< A try may have made it, or may make it later.
  std::optional<Error> trouble_;
};

}  // namespace freshet::log
