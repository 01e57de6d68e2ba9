// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/directory_conformance.h"
#include "tests/support/refused.h"

#include <poll.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace freshet {

namespace {
constexpr std::chrono::seconds kPatience{60};
}

void DirectoryConformance::SetUp() {
  world_ = GetParam().make();
  if (!world_->why_not().empty()) GTEST_SKIP() << world_->why_not();
}

std::unique_ptr<Directory> DirectoryConformance::open() {
  auto directory = world_->open();
  EXPECT_TRUE(directory) << directory.error().message();
  return directory ? std::move(*directory) : nullptr;
}

std::unique_ptr<Directory::Claim> DirectoryConformance::claim(Directory& directory, const std::string& model) {
  auto claimed = directory.claim(model);
  EXPECT_TRUE(claimed) << claimed.error().message();
  return claimed ? std::move(*claimed) : nullptr;
}

Directory::Entry DirectoryConformance::entry(std::uint64_t incarnation, const std::string& model) {
  return {.model = model,
          .pid = ::getpid(),
          .incarnation = incarnation,
          .control = "tcp://127.0.0.1:7070",
          .host = "boot/net",
          .also = {"ipc:///somewhere"}};
}

bool DirectoryConformance::hears(Directory::Watch& watch, const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd item{.fd = watch.descriptor(), .events = POLLIN, .revents = 0};
    if (::poll(&item, 1, static_cast<int>(left.count())) > 0) watch.take();
  }
  return true;
}

TEST_P(DirectoryConformance, AClaimIsExclusiveAndTellsWhoHasIt) {
  const auto one = open();
  const auto other = open();
  {
    const auto held = claim(*one);
    EXPECT_TRUE(is_refused(other->claim("demo"), Code::already_exists, std::to_string(::getpid())));
    EXPECT_EQ(one->claim("demo").error().code(), Code::already_exists);
    claim(*other, "demo-2");
  }
  claim(*other);
}

TEST_P(DirectoryConformance, NumbersAndIncarnationsOutliveTheClaim) {
  const auto one = open();
  const auto other = open();
  std::uint64_t first = 0;
  {
    const auto held = claim(*one);
    EXPECT_EQ(held->last_number(), 0U);
    const auto begun = held->begin_incarnation(1'700'000'000'123'456'789);
    ASSERT_TRUE(begun) << begun.error().message();
    first = *begun;
    EXPECT_EQ(first, 1'700'000'000'123'456'789U);
    ASSERT_TRUE(held->record_number(41));
    EXPECT_GE(held->last_number(), 41U);
  }
  const auto again = claim(*other);
  EXPECT_GE(again->last_number(), 41U);
  // The clock went back; incarnations do not.
  const auto second = again->begin_incarnation(5);
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, first + 1);
  const VersionNumber far = (VersionNumber{1} << 61) + 3;
  ASSERT_TRUE(again->record_number(far));
  EXPECT_GE(again->last_number(), far);
}

TEST_P(DirectoryConformance, AnEntryLivesAsLongAsItsClaim) {
  const auto one = open();
  const auto other = open();
  EXPECT_EQ(other->lookup("demo").error().code(), Code::not_found);
  {
    const auto held = claim(*one);
    EXPECT_EQ(other->lookup("demo").error().code(), Code::not_found);
    ASSERT_TRUE(held->advertise(entry(7)));
    const auto found = other->lookup("demo");
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(*found, entry(7));
    ASSERT_TRUE(held->advertise(entry(8)));
    EXPECT_EQ(other->lookup("demo")->incarnation, 8U);
  }
  EXPECT_EQ(other->lookup("demo").error().code(), Code::not_found);
}

TEST_P(DirectoryConformance, TheLivingAreListedByName) {
  const auto one = open();
  const auto other = open();
  const auto beta = claim(*one, "beta");
  const auto alpha = claim(*one, "alpha");
  auto gone = claim(*one, "gone");
  const auto silent = claim(*one, "silent");
  ASSERT_TRUE(beta->advertise(entry(1, "beta")));
  ASSERT_TRUE(alpha->advertise(entry(2, "alpha")));
  ASSERT_TRUE(gone->advertise(entry(3, "gone")));
  gone.reset();
  const auto entries = other->list();
  ASSERT_TRUE(entries) << entries.error().message();
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_EQ(entries->at(0), entry(2, "alpha"));
  EXPECT_EQ(entries->at(1), entry(1, "beta"));
}

TEST_P(DirectoryConformance, CurrentMovesForwardByCompareAndSwap) {
  const auto one = open();
  const auto other = open();
  EXPECT_EQ(*one->current("demo"), CurrentVersion{});
  const CurrentVersion first{.epoch = 0, .version = 17};
  const CurrentVersion held{.epoch = (1ULL << 60) + 1, .version = 3, .hold = true};
  const CurrentVersion released{.epoch = held.epoch + 1, .version = (1ULL << 60) + 5};
  ASSERT_TRUE(one->compare_and_swap_current("demo", {}, first));
  EXPECT_EQ(*other->current("demo"), first);
  EXPECT_EQ(*other->current("demo-2"), CurrentVersion{});

  EXPECT_TRUE(is_refused(other->compare_and_swap_current("demo", {}, {.epoch = 1, .version = 1}),
                         Code::failed_precondition, "version 17"));

  EXPECT_EQ(*other->compare_and_swap_current("demo", first, held), held);
  EXPECT_EQ(*one->current("demo"), held);
  // The hold is part of what is expected.
  CurrentVersion not_held = held;
  not_held.hold = false;
  EXPECT_EQ(one->compare_and_swap_current("demo", not_held, released).error().code(), Code::failed_precondition);
  for (const CurrentVersion& back : {CurrentVersion{.epoch = held.epoch, .version = 3}, first,
                                     CurrentVersion{.epoch = held.epoch + 1, .version = ~0ULL}}) {
    EXPECT_EQ(one->compare_and_swap_current("demo", held, back).error().code(), Code::invalid_argument);
  }
  EXPECT_EQ(*one->compare_and_swap_current("demo", held, released), released);
  EXPECT_EQ(*other->current("demo"), released);
}

TEST_P(DirectoryConformance, AClaimSwapsCurrentToo) {
  const auto one = open();
  const auto other = open();
  const CurrentVersion first{.epoch = 1, .version = 5};
  const CurrentVersion second{.epoch = 2, .version = 4, .hold = true};
  {
    const auto held = claim(*one);
    EXPECT_EQ(held->current(), CurrentVersion{});
    EXPECT_EQ(*held->compare_and_swap_current({}, first), first);
    EXPECT_EQ(held->current(), first);
    EXPECT_TRUE(is_refused(held->compare_and_swap_current({}, second), Code::failed_precondition));
    EXPECT_EQ(held->compare_and_swap_current(first, first).error().code(), Code::invalid_argument);
    EXPECT_EQ(*held->compare_and_swap_current(first, second), second);
  }
  // It outlives the claim: a late joiner obeys a hold of a publisher that is gone.
  EXPECT_EQ(*other->current("demo"), second);
  EXPECT_EQ(claim(*other)->current(), second);
}

TEST_P(DirectoryConformance, OfManySwapsOneWins) {
  constexpr int kSwappers = 6;
  constexpr std::uint64_t kRounds = 20;
  std::vector<std::unique_ptr<Directory>> directories;
  for (int i = 0; i < kSwappers; ++i) directories.push_back(open());
  std::vector<std::uint64_t> wins(kSwappers, 0);
  std::vector<std::thread> swappers;
  for (int i = 0; i < kSwappers; ++i) {
    swappers.emplace_back([&, i] {
      for (CurrentVersion now = *directories[i]->current("demo"); now.epoch < kRounds;
           now = *directories[i]->current("demo")) {
        if (directories[i]->compare_and_swap_current("demo", now, {.epoch = now.epoch + 1, .version = 1})) ++wins[i];
      }
    });
  }
  for (std::thread& swapper : swappers) swapper.join();
  std::uint64_t total = 0;
  for (const std::uint64_t won : wins) total += won;
  EXPECT_EQ(total, kRounds);
}

TEST_P(DirectoryConformance, ServersAreKnownUntilTheirTimeIsOver) {
  const auto one = open();
  const auto other = open();
  EXPECT_TRUE(one->servers("demo")->empty());
  const Directory::Server relay{.address = "tcp://10.0.0.2:7070", .number = 17};
  const Directory::Server second{.address = "tcp://10.0.0.3:7070", .number = 1ULL << 60};
  ASSERT_TRUE(one->serve("demo", second, std::chrono::minutes(1)));
  ASSERT_TRUE(one->serve("demo", relay, std::chrono::minutes(1)));
  ASSERT_TRUE(one->serve("demo-2", relay, std::chrono::minutes(1)));
  EXPECT_EQ(*other->servers("demo"), (std::vector<Directory::Server>{relay, second}));
  const Directory::Server later{.address = relay.address, .number = 18};
  ASSERT_TRUE(other->serve("demo", later, std::chrono::minutes(1)));
  ASSERT_TRUE(other->stop_serving("demo", second.address));
  EXPECT_EQ(*one->servers("demo"), std::vector<Directory::Server>{later});
  ASSERT_TRUE(one->serve("demo", later, Duration::zero()));
  EXPECT_TRUE(other->servers("demo")->empty());
  EXPECT_EQ(other->servers("demo-2")->size(), 1U);
}

TEST_P(DirectoryConformance, AWatchHearsOfWhatChanges) {
  const auto one = open();
  const auto other = open();
  auto watch = other->watch("demo");
  ASSERT_TRUE(watch) << watch.error().message();
  ASSERT_GE((*watch)->descriptor(), 0);
  const auto held = claim(*one);
  ASSERT_TRUE(held->advertise(entry(7)));
  EXPECT_TRUE(hears(**watch, [&] { return (*watch)->entry().value_or(Directory::Entry()) == entry(7); }));
  ASSERT_TRUE(held->compare_and_swap_current({}, {.epoch = 1, .version = 5}));
  EXPECT_TRUE(hears(**watch, [&] { return (*watch)->current().value_or(CurrentVersion()).version == 5; }));
  ASSERT_TRUE(one->serve("demo", {.address = "tcp://10.0.0.2:7070", .number = 5}, std::chrono::minutes(1)));
  EXPECT_TRUE(hears(**watch, [&] { return (*watch)->servers()->size() == 1; }));
  // One that comes late finds what is there.
  auto late = other->watch("demo");
  ASSERT_TRUE(late);
  EXPECT_TRUE(hears(**late, [&] { return (*late)->current().value_or(CurrentVersion()).version == 5; }));
}

TEST_P(DirectoryConformance, BadNamesAndEntriesAreRefused) {
  const auto one = open();
  EXPECT_EQ(one->claim("../demo").error().code(), Code::invalid_argument);
  EXPECT_EQ(one->lookup("").error().code(), Code::invalid_argument);
  EXPECT_EQ(one->current("a b").error().code(), Code::invalid_argument);
  EXPECT_EQ(one->watch("{x}").error().code(), Code::invalid_argument);
  EXPECT_EQ(one->servers("*").error().code(), Code::invalid_argument);
  const auto held = claim(*one);
  Directory::Entry bad = entry(1);
  bad.control.assign(5000, 'x');
  EXPECT_EQ(held->advertise(bad).error().code(), Code::invalid_argument);
  bad = entry(1);
  bad.also.assign(100, "tcp://127.0.0.1:1");
  EXPECT_EQ(held->advertise(bad).error().code(), Code::invalid_argument);
  EXPECT_EQ(one->serve("demo", {.address = "a\nb"}, std::chrono::seconds(1)).error().code(), Code::invalid_argument);
}

}  // namespace freshet
