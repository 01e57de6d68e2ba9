// SPDX-License-Identifier: Apache-2.0
/// How long a member of a log waits for its store.

#include "repo/log/log_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace freshet::log {
namespace {

class SlowLine : public ::testing::Test {
 protected:
  static LogOptions options() {
    LogOptions options;
    options.self = {.id = {.high = 1, .low = 1}, .address = "", .public_key = ""};
    options.first_token = {.high = 2, .low = 2};
    return options;
  }
  /// Answers all calls, but for creations of records from the second on: these are returned.
  std::vector<Call> run() {
    std::vector<Call> creations;
    for (auto calls = machine_.take_calls(); !calls.empty(); calls = machine_.take_calls()) {
      for (Call& call : calls) {
        Answer answer;
        answer.kind = Answer::Kind::done;
        if (std::holds_alternative<call::Get>(call.what)) answer.kind = Answer::Kind::not_found;
        if (const auto* create = std::get_if<call::Create>(&call.what)) {
          answer.kind = Answer::Kind::created;
          if (create->key != record_key(1)) {
            creations.push_back(std::move(call));
            continue;
          }
        }
        machine_.on_answer(call.ticket, answer, now_);
      }
    }
    return creations;
  }

  Time now_ = Time(std::chrono::hours(1));
  LogMachine machine_{options(), now_};
};

TEST_F(SlowLine, ACreationHasTimeForItsBytes) {
  run();
  machine_.claim(now_);
  run();
  ASSERT_EQ(machine_.role(), Role::owns);
  Batch batch;
  for (int i = 0; i < 1500; ++i) {
    batch.changes.push_back(
        {.key = "k" + std::to_string(i), .value = Value{.inlined = std::string(4000, 'x'), .places = {}}});
  }
  ASSERT_TRUE(machine_.append(batch, now_));
  const std::vector<Call> creations = run();
  ASSERT_EQ(creations.size(), 1u);
  EXPECT_GE(creations[0].within, std::chrono::seconds(8)) << "6 MB";
  EXPECT_LE(creations[0].within, std::chrono::seconds(9));
  // The batch itself waits so long as well.
  now_ += std::chrono::seconds(15);
  machine_.on_tick(now_);
  EXPECT_TRUE(machine_.take_ends().empty());
  now_ += std::chrono::seconds(5);
  machine_.on_tick(now_);
  EXPECT_EQ(machine_.take_ends().size(), 1u);
}

TEST_F(SlowLine, AReadThatFailedHasMoreTimeNextTime) {
  run();
  std::vector<Duration> times;
  for (int i = 0; i < 6; ++i) {
    now_ += std::chrono::seconds(2);
    machine_.on_tick(now_);
    const std::vector<Call> calls = machine_.take_calls();
    ASSERT_EQ(calls.size(), 1u);
    times.push_back(calls[0].within);
    Answer answer;
    if (i == 4) answer.kind = Answer::Kind::not_found;
    machine_.on_answer(calls[0].ticket, answer, now_);
  }
  EXPECT_TRUE(std::is_sorted(times.begin(), times.begin() + 4));
  EXPECT_GE(times[3], std::chrono::seconds(10)) << "a record of 8 MB on a line of 1 MB/s";
  EXPECT_LE(times[4], std::chrono::seconds(20));
  EXPECT_EQ(times[5], times[0]) << "a look is short again";
}

/// The short reads beside a long one have no answer.
TEST_F(SlowLine, AStoreThatIsFarAwayIsHeard) {
  run();
  constexpr Duration kWay = std::chrono::seconds(4);
  std::vector<std::pair<Call, Time>> under_way;
  bool had_trouble = false;
  const Time end = now_ + std::chrono::minutes(1);
  for (; now_ < end && !(had_trouble && !machine_.trouble()); now_ += std::chrono::milliseconds(50)) {
    machine_.on_tick(now_);
    for (Call& call : machine_.take_calls()) under_way.emplace_back(std::move(call), now_);
    std::erase_if(under_way, [&](const auto& one) {
      const auto& [call, asked] = one;
      const bool comes = call.within >= kWay;
      if (now_ < asked + (comes ? kWay : call.within / 2)) return false;
      Answer answer;
      if (comes) answer.kind = Answer::Kind::not_found;
      machine_.on_answer(call.ticket, answer, now_);
      return true;
    });
    had_trouble = had_trouble || machine_.trouble().has_value();
  }
  EXPECT_TRUE(had_trouble && !machine_.trouble());
}

TEST_F(SlowLine, ARecordThatTheLineCarriesJustInTimeComes) {
  run();
  machine_.claim(now_);
  std::string record;
  for (auto calls = machine_.take_calls(); record.empty() && !calls.empty(); calls = machine_.take_calls()) {
    for (const Call& call : calls) {
      if (const auto* create = std::get_if<call::Create>(&call.what)) record = create->bytes;
      Answer answer;
      answer.kind = Answer::Kind::not_found;
      machine_.on_answer(call.ticket, answer, now_);
    }
  }
  ASSERT_FALSE(record.empty());
  // It counts as 8 MB here, on a line of 1 MB/s, which all reads of it share.
  constexpr double kSeconds = 8;
  constexpr Duration kStep = std::chrono::milliseconds(50);
  struct Read {
    Call call;
    Time end;
    double left = kSeconds;
  };
  std::vector<Read> reads;
  LogOptions other = options();
  other.self.id = {.high = 3, .low = 3};
  LogMachine reader(other, now_);
  const Time end = now_ + std::chrono::minutes(5);
  for (; reader.state().position() == 0 && now_ < end; now_ += kStep) {
    reader.on_tick(now_);
    for (Call& call : reader.take_calls()) {
      Answer answer;
      const auto* get = std::get_if<call::Get>(&call.what);
      if (get != nullptr && get->key == record_key(1) && get->bytes_max >= kRecordBytesMax) {
        reads.push_back({.call = call, .end = now_ + call.within});
        continue;
      }
      answer.kind = get == nullptr ? Answer::Kind::done : Answer::Kind::not_found;
      if (get != nullptr && get->key == record_key(1)) {
        answer.kind = Answer::Kind::failed;
        answer.error = Error(Code::out_of_space, "it is larger");
      }
      reader.on_answer(call.ticket, answer, now_);
    }
    const double part =
        kStep / std::chrono::duration<double>(1) / static_cast<double>(std::max<std::size_t>(reads.size(), 1));
    for (Read& read : reads) {
      read.left -= part;
      Answer answer;
      answer.kind = read.left <= 0 ? Answer::Kind::found : Answer::Kind::failed;
      if (read.left <= 0) answer.bytes = record;
      if (read.left > 0) answer.error = Error(Code::timed_out, "no answer");
      if (read.left <= 0 || now_ >= read.end) reader.on_answer(read.call.ticket, answer, now_);
    }
    std::erase_if(reads, [&](const Read& read) { return read.left <= 0 || now_ >= read.end; });
  }
  EXPECT_EQ(reader.state().position(), 1u);
}

}  // namespace
}  // namespace freshet::log
