// SPDX-License-Identifier: Apache-2.0
#include "repo/log/appender.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace freshet::log {
namespace {

constexpr Duration kAppendCall = std::chrono::seconds(2);
constexpr Duration kAppendPauseMin = std::chrono::milliseconds(50);
constexpr Duration kAppendPauseMax = std::chrono::seconds(1);

}  // namespace

void Appender::begin(Record record, Time now) {
  FRESHET_CHECK(!record_);
  bytes_ = encode(record);
  record_ = std::move(record);
  pause_ = kAppendPauseMin;
  may_come_ = false;
  trouble_.reset();
  send(now);
}

void Appender::send(Time now) {
  start_ = now;
  ticket_ = calls_.add(call::Create{.key = record_key(record_->number), .bytes = bytes_},
                       kAppendCall + time_to_carry(bytes_.size()));
}

void Appender::on_tick(Time now) {
  if (record_ && !ticket_ && now >= due_) send(now);
}

Appender::Step Appender::on_answer(Ticket ticket, const Answer& answer, Time now) {
  if (!ticket_ || *ticket_ != ticket) return Step::other;
  ticket_.reset();
  due_ = now + pause_;
  pause_ = std::min(2 * pause_, kAppendPauseMax);
  switch (answer.kind) {
    case Answer::Kind::created: return Step::created;
    case Answer::Kind::exists:
      may_come_ = true;  // What stands there may be this record: by a try whose answer was lost.
      return Step::exists;
    case Answer::Kind::refused: break;
    default: may_come_ = true;
  }
  trouble_ = answer.error;
  return Step::waits;
}

Record Appender::end() {
  ticket_.reset();
  bytes_.clear();
  Record record = std::move(*record_);
  record_.reset();
  return record;
}

}  // namespace freshet::log
