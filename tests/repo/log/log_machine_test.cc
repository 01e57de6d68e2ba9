// SPDX-License-Identifier: Apache-2.0
/// How long a member of a log waits for its store.

#include "repo/log/log_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
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

}  // namespace
}  // namespace freshet::log
