// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "core/base/mutex.h"
#include "tests/support/eventually.h"
#include "tests/transport/publish/byte_model.h"
#include "transport/publish/capture.h"

namespace freshet {
namespace {

using namespace std::chrono_literals;

/// A copier whose copies are done when the test says so, in any order. What it did not do by its end fails.
class LateCopier final : public TensorCopier {
 public:
  enum class Outcome { digested, copied, failed };

  ~LateCopier() override {
    while (!waiting_.empty()) complete(waiting_.begin()->first, Outcome::failed);
  }
  MemoryKind memory_kind() const override { return MemoryKind::host; }
  Status issue(std::vector<TensorCopy> copies, Done done) override {
    waiting_.emplace(++issued_, Issued{std::move(copies), std::move(done)});
    return {};
  }

  std::uint64_t issued() const { return issued_; }
  std::vector<std::uint64_t> waiting() const {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, issued] : waiting_) numbers.push_back(number);
    return numbers;
  }
  /// Copies that fail leave half of their bytes.
  void complete(std::uint64_t number, Outcome outcome) {
    Issued issued = std::move(waiting_.extract(number).mapped());
    std::vector<Digest> digests;
    for (const TensorCopy& copy : issued.copies) {
      const std::size_t bytes = outcome == Outcome::failed ? copy.from.size() / 2 : copy.from.size();
      if (bytes > 0) std::memcpy(copy.to.data(), copy.from.data(), bytes);
      if (outcome == Outcome::digested) digests.push_back(digest_of(copy.to));
    }
    if (outcome == Outcome::failed) return issued.done(fail(Code::io_error, "the device fell off the bus"));
    issued.done(std::move(digests));
  }

 private:
  struct Issued {
    std::vector<TensorCopy> copies;
    Done done;
  };
  std::uint64_t issued_ = 0;
  std::map<std::uint64_t, Issued> waiting_;
};

using Outcome = LateCopier::Outcome;
using Values = std::vector<std::vector<std::byte>>;

/// A loop that captures versions, and a receiver that compares each sealed one with the values of its step.
class LateRun {
 public:
  explicit LateRun(std::vector<std::uint64_t> sizes, double arena_copies = 8) : model_(std::move(sizes)) {
    auto copier = std::make_unique<LateCopier>();
    copier_ = copier.get();
    capture_ = *Capture::open({.name = "test", .arena_copies = arena_copies, .lock_memory = false},
                              {.on_sealed = [this](const SealedCapture& sealed) { return on_sealed(sealed); },
                               .on_failed =
                                   [this](std::uint64_t ticket, const Error& error) {
                                     MutexLock lock(mutex_);
                                     failed_.push_back(ticket);
                                     ended_.push_back(ticket);
                                     EXPECT_NE(error.message().find("copy the tensors"), std::string::npos);
                                   }},
                              std::move(copier));
    EXPECT_TRUE(capture_->prepare(model_.architecture()));
    used_bytes_ = used();
  }

  ByteModel& model() { return model_; }
  LateCopier& copier() { return *copier_; }
  Capture& capture() { return *capture_; }

  /// The tensors' memory is the copier's until it is done with them: so each step's values stay.
  void take(Capture::Kind kind, const std::vector<std::uint32_t>& indices = {}) {
    const auto views = views_of_step();
    const std::uint64_t first = first_issue_ != 0 ? std::exchange(first_issue_, 0) : copier_->issued() + 1;
    const std::uint64_t ticket = tickets_ + 1;
    {
      MutexLock lock(mutex_);
      kinds_[ticket] = kind;
    }
    ASSERT_TRUE(capture_->capture({.ticket = ticket, .tensors = views, .kind = kind, .indices = indices}));
    ++tickets_;
    MutexLock lock(mutex_);
    for (std::uint64_t number = first; number <= copier_->issued(); ++number) issues_[ticket].insert(number);
  }
  /// Captures these tensors of an open capture.
  void add(const std::vector<std::uint32_t>& indices) {
    if (first_issue_ == 0) first_issue_ = copier_->issued() + 1;
    ASSERT_TRUE(capture_->add(views_of_step(), indices));
  }
  void abandon() {
    capture_->abandon();
    first_issue_ = 0;
  }
  void complete(std::uint64_t number, Outcome outcome) {
    {
      MutexLock lock(mutex_);
      completed_.insert(number);
    }
    copier_->complete(number, outcome);
  }
  void complete_all(Outcome outcome) {
    for (const std::uint64_t number : copier_->waiting()) complete(number, outcome);
  }

  std::uint64_t tickets() const { return tickets_; }
  std::vector<std::uint64_t> ended() {
    MutexLock lock(mutex_);
    return ended_;
  }
  std::vector<std::uint64_t> failed() {
    MutexLock lock(mutex_);
    return failed_;
  }
  bool is_in_flight(std::uint64_t ticket) {
    MutexLock lock(mutex_);
    return std::ranges::find(ended_, ticket) == ended_.end();
  }
  void end() { capture_.reset(); }
  /// Nothing is in flight: what is not free is the newest version's.
  void expect_no_segment_is_lost() {
    MutexLock lock(mutex_);
    capture_->free(newest_.segments);
    EXPECT_EQ(used(), used_bytes_);
  }

 private:
  std::uint64_t used() const { return capture_->stat().arena_bytes - capture_->stat().arena_free_bytes; }
  std::vector<TensorView> views_of_step() {
    Values values;
    for (std::size_t i = 0; i < model_.size(); ++i) values.push_back(model_[i]);
    auto views = model_.views();
    MutexLock lock(mutex_);
    const Values& kept = values_[tickets_ + 1].emplace_back(std::move(values));
    for (std::size_t i = 0; i < views.size(); ++i) views[i].data = kept[i];
    return views;
  }
  /// On the worker.
  bool on_sealed(const SealedCapture& sealed) {
    MutexLock lock(mutex_);
    ended_.push_back(sealed.ticket);
    for (const std::uint64_t number : issues_[sealed.ticket]) EXPECT_TRUE(completed_.contains(number)) << number;
    const Values& values = values_.at(sealed.ticket).back();
    std::vector<std::uint32_t> differing;
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(capture_->bytes(sealed.places[i]), values[i]))
          << "ticket " << sealed.ticket << ", tensor " << i;
      EXPECT_EQ(sealed.digests[i], digest_of(values[i]));
      if (newest_.digests.empty() || newest_.digests[i] != sealed.digests[i]) differing.push_back(i);
    }
    EXPECT_TRUE(std::ranges::includes(sealed.changed, differing));
    if (kinds_[sealed.ticket] == Capture::Kind::find) {
      EXPECT_EQ(sealed.changed, differing);
    }
    std::vector<SegmentIndex> unnamed;
    for (const SegmentIndex segment : newest_.segments) {
      if (std::ranges::find(sealed.segments, segment) == sealed.segments.end()) unnamed.push_back(segment);
    }
    capture_->free(unnamed);
    newest_ = sealed;
    return true;
  }
  ByteModel model_;
  LateCopier* copier_ = nullptr;
  std::uint64_t tickets_ = 0;
  std::uint64_t first_issue_ = 0;  ///< Of the open capture.
  std::uint64_t used_bytes_ = 0;

  Mutex mutex_;
  std::map<std::uint64_t, std::vector<Values>> values_ FRESHET_GUARDED_BY(mutex_);      ///< By ticket; the last is all.
  std::map<std::uint64_t, std::set<std::uint64_t>> issues_ FRESHET_GUARDED_BY(mutex_);  ///< By ticket.
  std::map<std::uint64_t, Capture::Kind> kinds_ FRESHET_GUARDED_BY(mutex_);
  std::set<std::uint64_t> completed_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> ended_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> failed_ FRESHET_GUARDED_BY(mutex_);
  SealedCapture newest_ FRESHET_GUARDED_BY(mutex_);

  std::unique_ptr<Capture> capture_;  ///< Last: its worker uses the rest.
};

constexpr auto kNamed = Capture::Kind::only;
constexpr auto kCompared = Capture::Kind::find;
constexpr std::uint64_t kSteps = 400;
using Tickets = std::vector<std::uint64_t>;

TEST(TensorCopier, AVersionIsSealedWhenItsCopiesAreComplete) {
  LateRun run({100, 5000, 0, 70000});
  run.take(kCompared);
  run.model().fill(1, 1);
  run.take(kCompared);
  run.complete(2, Outcome::digested);
  EXPECT_EQ(run.capture().wait_idle(10ms).error().code(), Code::timed_out);
  EXPECT_EQ(run.ended(), Tickets{}) << "the second waits for the first";
  run.complete(1, Outcome::copied);
  ASSERT_TRUE(run.capture().wait_idle(60s));
  EXPECT_EQ(run.ended(), (Tickets{1, 2}));
  run.expect_no_segment_is_lost();
}

TEST(TensorCopier, AFailedCopyRefusesTheVersionsThatNeedIt) {
  LateRun run({100, 5000, 3000});
  run.take(kCompared);
  run.complete_all(Outcome::digested);
  ASSERT_TRUE(run.capture().wait_idle(60s));
  run.model().fill(0, 1);
  run.take(kNamed, {0});
  run.model().fill(1, 2);
  run.take(kNamed, {1});
  run.complete(3, Outcome::digested);
  run.complete(2, Outcome::failed);
  ASSERT_TRUE(run.capture().wait_idle(60s));
  EXPECT_EQ(run.failed(), (Tickets{2, 3}));
  run.take(kNamed, {});
  run.complete_all(Outcome::digested);
  ASSERT_TRUE(run.capture().wait_idle(60s));
  EXPECT_EQ(run.ended(), (Tickets{1, 2, 3, 4}));
  EXPECT_EQ(run.failed(), (Tickets{2, 3})) << "the fourth took what the second and the third lost";
  run.expect_no_segment_is_lost();
}

TEST(TensorCopier, AFirstVersionThatFailsIsTakenAgain) {
  LateRun run({100, 5000});
  run.take(kNamed, {1});
  run.complete_all(Outcome::failed);
  ASSERT_TRUE(run.capture().wait_idle(60s));
  run.take(kNamed, {});
  run.complete_all(Outcome::copied);
  ASSERT_TRUE(run.capture().wait_idle(60s));
  EXPECT_EQ(run.failed(), Tickets{1});
  EXPECT_EQ(run.ended(), (Tickets{1, 2}));
  run.expect_no_segment_is_lost();
}

TEST(TensorCopier, WhatIsGivenUpKeepsItsSegmentsUntilItIsCopied) {
  LateRun run({4096, 8192}, 2);
  run.take(kCompared);
  run.complete_all(Outcome::digested);
  ASSERT_TRUE(run.capture().wait_idle(60s));
  const std::uint64_t free_bytes = run.capture().stat().arena_free_bytes;
  ASSERT_TRUE(run.capture().begin());
  run.add({1});
  run.abandon();
  EXPECT_EQ(run.capture().stat().arena_free_bytes, free_bytes - 8192);
  run.complete_all(Outcome::digested);
  ASSERT_TRUE(run.capture().wait_idle(60s));
  EXPECT_EQ(run.capture().stat().arena_free_bytes, free_bytes);
  run.expect_no_segment_is_lost();
}

TEST(TensorCopier, ACaptureEndsWhateverIsOnItsWay) {
  LateRun run({100, 5000, 3000});
  run.take(kCompared);
  run.take(kCompared);
  EXPECT_EQ(run.capture().drop_unbegun(), Tickets{2});
  run.end();
  EXPECT_EQ(run.failed(), Tickets{1});

  LateRun open({100, 5000, 3000});
  open.take(kCompared);
  ASSERT_TRUE(open.capture().begin());
  open.add({1});
  open.end();
  EXPECT_EQ(open.failed(), Tickets{1});
}

TEST(TensorCopier, CompletionsInAnyOrderLoseNothing) {
  for (const std::uint64_t seed : {std::uint64_t{3}, std::uint64_t{std::random_device()()}}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    LateRun run({10, 64, 4096, 5000, 0, 20000, 300});
    std::set<std::uint32_t> touched;
    const auto touch = [&] {
      for (std::uint32_t i = 0; i < run.model().size(); ++i) {
        if (random() % 3 != 0) continue;
        run.model().fill(i, random());
        touched.insert(i);
      }
      return std::vector<std::uint32_t>(touched.begin(), touched.end());
    };
    const auto outcome = [&] { return random() % 8 == 0 ? Outcome::failed : static_cast<Outcome>(random() % 2); };
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      // The third capture would wait for the first.
      const std::uint64_t tickets = run.tickets();
      const bool has_room = (tickets < 2 || !run.is_in_flight(tickets - 1)) && run.copier().waiting().size() < 2;
      if (has_room && random() % 2 == 0) {
        const auto indices = touch();
        if (tickets > 0 && random() % 3 == 0) {
          ASSERT_TRUE(run.capture().begin());
          run.add({static_cast<std::uint32_t>(random() % run.model().size())});
          if (random() % 3 == 0) {
            run.abandon();
            run.complete_all(outcome());
            ASSERT_TRUE(run.capture().wait_idle(60s));
          }
        }
        run.take(static_cast<Capture::Kind>(random() % 3), indices);
        touched.clear();
      } else if (const auto waiting = run.copier().waiting(); !waiting.empty()) {
        run.complete(waiting[random() % waiting.size()], outcome());
      } else {
        ASSERT_TRUE(run.capture().wait_idle(60s));
      }
    }
    run.complete_all(Outcome::copied);
    ASSERT_TRUE(run.capture().wait_idle(60s));
    Tickets all(run.tickets());
    for (std::uint64_t ticket = 1; ticket <= all.size(); ++ticket) all[ticket - 1] = ticket;
    EXPECT_EQ(run.ended(), all);
    EXPECT_FALSE(run.failed().empty());
    EXPECT_LT(run.failed().size(), all.size() / 2);
    run.expect_no_segment_is_lost();
  }
}

}  // namespace
}  // namespace freshet
