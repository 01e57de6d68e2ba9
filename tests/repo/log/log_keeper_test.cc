// SPDX-License-Identifier: Apache-2.0
/// Housekeeping of owners with short lives, as commands are: each finishes little, and the next one goes on.

#include "repo/log/log_keeper.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "core/base/format.h"
#include "repo/log/log_machine.h"
#include "tests/repo/log/log_oracle.h"

namespace freshet::log {
namespace {

constexpr std::int64_t kGraceOfLives = 100;

class ShortLives : public ::testing::Test {
 protected:
  static constexpr Duration kTick = std::chrono::milliseconds(50);

  /// One life: it owns the log, appends the batches, lives on for some ticks, and ends.
  template <typename MakeBatch>
  void live(int batches, int ticks, const MakeBatch& make_batch) {
    LogOptions options;
    options.self = {.id = {.high = 1, .low = ++lives_}, .address = "", .public_key = ""};
    options.first_token = {.high = 2, .low = 1000 * lives_};
    options.own_token_life_s = 50;
    options.records_per_snapshot = 10;
    options.grace_s = kGraceOfLives;
    LogMachine machine(options, now_);
    run(machine);
    machine.claim(now_);
    run(machine);
    ASSERT_EQ(machine.role(), Role::owns);
    for (int i = 0; i < batches; ++i) {
      ASSERT_TRUE(machine.append(make_batch(machine, i), now_));
      run(machine);
    }
    for (int i = 0; i < ticks; ++i) tick(machine);
    condemned_ = machine.state().condemned().size();
    tokens_ = machine.state().tokens().size();
    machine.give_up(now_);
    run(machine);
    EXPECT_EQ(machine.role(), Role::follows);
    EXPECT_FALSE(machine.error());
    EXPECT_EQ(oracle_.violation(), "");
  }
  void live(int batches, int ticks) {
    live(batches, ticks, [](const LogMachine&, int i) { return put(format("k{}", i), "v"); });
  }

  void tick(LogMachine& machine) {
    now_ += kTick;
    machine.on_tick(now_);
    run(machine);
  }

  static Batch put(const std::string& key, const std::string& value) {
    Batch batch;
    batch.changes.push_back({.key = key, .value = Value{.inlined = value, .places = {}}});
    return batch;
  }
  std::size_t listed(std::string_view prefix) {
    const call::List list{.prefix = std::string(prefix), .after = "", .keys_max = 100'000};
    return oracle_.apply({.ticket = 0, .within = kTick, .what = list}, unix_s_, {}).keys.size();
  }
  ObjectName upload(const LogMachine& machine) {
    const ObjectName name{.token = machine.own_token(), .draw = ++draws_};
    call::Create create{.key = object_key(name), .bytes = "bytes"};
    oracle_.apply({.ticket = 0, .within = kTick, .what = std::move(create)}, unix_s_, {});
    return name;
  }

  sim::LogOracle oracle_{kGraceOfLives};
  Time now_ = Time(std::chrono::hours(1));
  std::int64_t unix_s_ = 1'000'000;
  std::size_t condemned_ = 0;  ///< At the end of the last life.
  std::size_t tokens_ = 0;

 private:
  void run(LogMachine& machine) {
    for (auto calls = machine.take_calls(); !calls.empty(); calls = machine.take_calls()) {
      for (const Call& call : calls) machine.on_answer(call.ticket, oracle_.apply(call, unix_s_, {}), now_);
    }
  }

  std::uint64_t lives_ = 0;
  std::uint64_t draws_ = 0;
};

TEST_F(ShortLives, WriteASnapshotOnlyWhenItIsDueAndRemoveOldOnes) {
  for (int i = 0; i < 100; ++i) live(2, 3);
  const std::uint64_t records = oracle_.records();
  EXPECT_LE(oracle_.snapshots(), records / 10);
  EXPECT_GE(oracle_.snapshots(), records / 15);
  EXPECT_LE(listed(kSnapshotPrefix), 3u);
  EXPECT_LE(listed(kPartPrefix), 3u);
  EXPECT_GE(oracle_.emptied(), records - 40) << "of " << records << " records";
}

TEST_F(ShortLives, CountTheGraceTogether) {
  ObjectName name;
  live(2, 0, [&](const LogMachine& machine, int i) {
    if (i == 0) name = upload(machine);
    Batch batch;
    batch.changes.push_back({.key = "k", .value = std::nullopt});
    if (i == 0) batch.changes[0].value = Value{.inlined = "", .places = {{.object = name, .bytes = 5}}};
    return batch;
  });
  EXPECT_EQ(condemned_, 1u);
  EXPECT_EQ(oracle_.erased(), 0u);
  // Each life is far shorter than the grace. No snapshot carries anything from one to the next.
  for (int i = 0; i < 4; ++i) {
    live(0, 3);
    EXPECT_EQ(oracle_.erased(), 0u);
    unix_s_ += kGraceOfLives / 5;
  }
  unix_s_ += kGraceOfLives;
  for (int i = 0; i < 3; ++i) live(0, 3);
  EXPECT_EQ(oracle_.erased(), 1u);
  EXPECT_EQ(condemned_, 0u) << "its token has ended, and it is forgotten";
  EXPECT_EQ(oracle_.snapshots(), 0u + (oracle_.records() / 10));
  EXPECT_LE(tokens_, 7u) << "tokens of the first lives have ended";
}

}  // namespace
}  // namespace freshet::log
