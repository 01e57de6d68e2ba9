// SPDX-License-Identifier: Apache-2.0
// Publishers that claim one name in a directory that they reach badly: they are stopped, cut off and killed, requests
// and answers are lost or come late, the directory forgets all it had. The real Lease against a model of the
// directory's steps, written from their description in scripts.h, on a clock of its own.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "core/base/format.h"
#include "tests/support/storm.h"
#include "transport/redis/lease.h"

namespace freshet::redis {
namespace {

constexpr Duration kSimLease = std::chrono::seconds(5);
constexpr Duration kTick = std::chrono::milliseconds(20);
constexpr Duration kRun = std::chrono::minutes(3);
constexpr Duration kLateMax = std::chrono::seconds(2);
constexpr VersionNumber kSimBlock = 8;
constexpr std::size_t kProcesses = 4;

enum class Sabotage {
  none,
  take_what_is_held,      ///< The directory gives a name away though its lease lasts.
  no_quarantine,          ///< A directory that forgot everything gives names away at once.
  forget_fence,           ///< Whoever had the name once may write it again.
  believe_the_stale,      ///< A directory that forgot everything believes whoever comes first that the name is his.
  give_without_asking,    ///< An owner gives numbers that it has not reserved.
  give_back_what_is_used  ///< An owner that leaves gives back numbers that it gave.
};

struct Outcome {
  std::string violation;
  std::uint64_t claims = 0, takeovers = 0, losses = 0, written_again = 0, refusals = 0, numbers = 0;
};

/// The directory, in one step for each request.
class Server {
 public:
  Server(Sabotage sabotage, Outcome& outcome) : sabotage_(sabotage), outcome_(outcome) {}

  Taken take(const std::string& owner, Time now) {
    lapse(now);
    if (claim_ && claim_->owner != owner && sabotage_ != Sabotage::take_what_is_held) {
      ++outcome_.refusals;
      return {.held_by = claim_->owner};
    }
    const bool held = claim_ && claim_->owner == owner;
    if (!held && !has_record_ && sabotage_ != Sabotage::no_quarantine) {
      if (!born_) born_ = now;
      if (now - *born_ < kSimLease) return {.young = kSimLease - (now - *born_)};
    }
    if (!held) ++record_.fence;
    has_record_ = true;
    if (!held && forgot_) begin_anew();
    grant(owner, now, /*is_new=*/true);
    return {.record = record_};
  }

  Kept keep(const std::string& owner, std::uint64_t fence, const Keep& wanted, Time now) {
    lapse(now);
    if (claim_ && claim_->owner != owner) return {.lost = claim_->owner};
    if (!claim_ && record_.fence > fence && sabotage_ != Sabotage::forget_fence) return {.lost = ""};
    if (!claim_ && !has_record_ && wanted.stale && sabotage_ != Sabotage::believe_the_stale) {
      if (!born_) born_ = now;
      if (now - *born_ < kSimLease) return {.young = kSimLease - (now - *born_)};
      begin_anew();
    }
    const bool again = !claim_;
    record_.number = std::max(record_.number, wanted.number);
    record_.incarnation = std::max(record_.incarnation, wanted.incarnation);
    record_.fence = fence;
    has_record_ = true;
    forgot_ = false;
    if (!born_) born_ = now;
    grant(owner, now, /*is_new=*/false);
    if (again) ++outcome_.written_again;
    return {.record = record_, .again = again};
  }

  void release(const std::string& owner, VersionNumber reserved, VersionNumber given, Time now) {
    lapse(now);
    if (!claim_ || claim_->owner != owner) return;
    if (record_.number == reserved) record_.number = given;
    claim_.reset();
  }

  void forget() {
    claim_.reset();
    record_ = {};
    has_record_ = false;
    born_.reset();
    forgot_ = true;
  }

  /// Whether it had the name since numbers began.
  bool knows(const std::string& owner) const { return past_owners_.contains(owner); }
  /// From whom the name went to whom, since the last call.
  std::optional<std::pair<std::string, std::string>> take_handover() { return std::exchange(handover_, std::nullopt); }
  /// It forgot everything, and nobody was there who wrote the name again: numbers begin anew.
  bool take_new_beginning() { return std::exchange(new_beginning_, false); }

 private:
  struct Claim {
    std::string owner;
    Time until{};
  };
  void begin_anew() {
    forgot_ = false;
    new_beginning_ = true;
    past_owners_.clear();
  }
  void lapse(Time now) {
    if (claim_ && claim_->until <= now) claim_.reset();
  }
  void grant(const std::string& owner, Time now, bool is_new) {
    claim_ = Claim{.owner = owner, .until = now + kSimLease};
    if (owner == last_owner_) return;
    // A claim under a new fence is a new one, whoever has it.
    if (!past_owners_.insert(owner).second && !is_new) {
      outcome_.violation = format("the name went back to {} though {} had it since", owner, last_owner_);
    }
    if (!last_owner_.empty()) handover_ = {last_owner_, owner};
    last_owner_ = owner;
  }

  const Sabotage sabotage_;
  Outcome& outcome_;
  std::optional<Claim> claim_;
  Record record_;
  bool has_record_ = false;
  std::optional<Time> born_;
  std::set<std::string> past_owners_;
  std::string last_owner_;
  std::optional<std::pair<std::string, std::string>> handover_;
  bool forgot_ = false;
  bool new_beginning_ = false;
};

/// A request on its way there, or its answer on its way back.
struct OnItsWay {
  enum class What { take, keep } what = What::keep;
  Time sent_at{};
  Time reaches_server{};
  Time comes_back{};
  bool reached = false;
  bool unheard = false;  ///< Nobody waits for the answer any more.
  std::uint64_t fence = 0;
  Keep wanted;
  Taken taken;
  Kept kept;
};

/// A process that wants to publish under the name, and counts.
struct Process {
  std::string id;
  std::unique_ptr<Lease> lease;
  std::uint64_t fence = 0;
  std::vector<OnItsWay> requests;
  VersionNumber last = 0;  ///< That it gave.
  Time stopped_until{};
  Time cut_until{};
  Time take_again_at{};
  Time kept_at{};
  Time well_since{};  ///< Neither stopped nor cut off since then.
  bool was_well = true;
};

class Simulation {
 public:
  Simulation(std::uint64_t seed, Sabotage sabotage) : random_(seed), sabotage_(sabotage), server_(sabotage, outcome_) {
    for (auto& process : processes_) start(process);
  }

  Outcome run() {
    const Time end = now_ + kRun;
    for (; now_ < end && outcome_.violation.empty(); now_ += kTick) {
      trouble();
      for (auto& process : processes_) tick(process);
      check_takeover();
    }
    if (outcome_.violation.empty()) check_that_it_recovers();
    return outcome_;
  }

 private:
  bool chance(double probability) { return std::uniform_real_distribution<>(0, 1)(random_) < probability; }
  Duration up_to(Duration most) {
    return Duration(std::uniform_int_distribution<std::int64_t>(0, most.count())(random_));
  }

  void start(Process& process) {
    process = Process{.id = format("owner {}", ++started_), .well_since = now_};
    process.take_again_at = now_ + up_to(std::chrono::seconds(3));
  }

  /// What happens to processes, network and directory; about once in a few seconds each.
  void trouble() {
    if (chance(0.0006)) restart_directory();
    for (auto& process : processes_) {
      if (chance(0.002)) process.stopped_until = now_ + up_to(3 * kSimLease);
      if (chance(0.003)) cut(process, now_ + up_to(2 * kSimLease));
      if (chance(0.0015)) {
        leave_on_the_way(process);
        start(process);
      }
      if (chance(0.0005) && process.lease && is_well(process)) leave(process);
    }
  }

  /// Empty. What was on its way goes with its connections.
  void restart_directory() {
    server_.forget();
    late_.clear();
    for (auto& process : processes_) {
      std::erase_if(process.requests, [](const OnItsWay& one) { return one.unheard && !one.reached; });
      const bool keeps = std::any_of(process.requests.begin(), process.requests.end(), [](const OnItsWay& one) {
        return !one.unheard && one.what == OnItsWay::What::keep;
      });
      process.requests.clear();
      if (!process.lease) continue;
      if (keeps) process.lease->on_failed(now_);
      process.lease->on_reconnected(now_);
    }
  }

  bool is_well(const Process& process) const { return process.stopped_until <= now_ && process.cut_until <= now_; }

  /// The client hears of it at once. What it sent may reach the directory all the same, and late.
  void cut(Process& process, Time until) {
    process.cut_until = until;
    bool kept = false;
    for (OnItsWay& request : process.requests) {
      kept = kept || (!request.unheard && request.what == OnItsWay::What::keep);
      request.unheard = true;
      if (!request.reached && chance(0.5)) request.reaches_server = now_ + up_to(kLateMax);
    }
    if (kept && process.lease) process.lease->on_failed(now_);
    process.take_again_at = now_ + std::chrono::milliseconds(200);
  }

  void leave_on_the_way(Process& process) {
    for (OnItsWay& request : process.requests) {
      if (request.reached) continue;
      request.unheard = true;
      late_.push_back({process.id, request});
    }
  }

  /// In good order.
  void leave(Process& process) {
    const bool too_much = sabotage_ == Sabotage::give_back_what_is_used && process.lease->given() > 2;
    const VersionNumber given = process.lease->given() - (too_much ? 2 : 0);
    if (!process.lease->lost()) server_.release(process.id, process.lease->reserved(), given, now_);
    leave_on_the_way(process);
    start(process);
  }

  void tick(Process& process) {
    for (OnItsWay& request : process.requests) reach(process.id, request);
    for (auto& [id, request] : late_) reach(id, request);
    std::erase_if(late_, [](const auto& one) { return one.second.reached; });
    if (process.stopped_until > now_) {
      process.was_well = false;
      return;
    }
    hear(process);
    const bool well = is_well(process);
    if (well && !process.was_well) {
      process.well_since = now_;
      if (process.lease) process.lease->on_reconnected(now_);
    }
    process.was_well = well;
    if (!well) return publish(process);
    send(process);
    publish(process);
  }

  void reach(const std::string& id, OnItsWay& request) {
    if (request.reached || request.reaches_server > now_) return;
    request.reached = true;
    if (request.what == OnItsWay::What::take) {
      request.taken = server_.take(id, now_);
    } else {
      request.kept = server_.keep(id, request.fence, request.wanted, now_);
    }
  }

  void hear(Process& process) {
    for (OnItsWay& request : process.requests) {
      if (request.unheard || !request.reached || request.comes_back > now_) continue;
      request.unheard = true;
      if (request.what == OnItsWay::What::take) {
        taken(process, request.taken, request.sent_at);
      } else if (process.lease) {
        process.lease->on_kept(request.kept, now_);
        if (request.kept.record) process.kept_at = now_;
        if (process.lease->lost()) {
          ++outcome_.losses;
          return start(process);
        }
      }
    }
    std::erase_if(process.requests, [](const OnItsWay& one) { return one.unheard && one.reached; });
  }

  void taken(Process& process, const Taken& answer, Time asked_at) {
    process.take_again_at = now_ + std::max<Duration>(answer.young, std::chrono::milliseconds(500));
    if (!answer.record) return;
    process.fence = answer.record->fence;
    process.lease = std::make_unique<Lease>(
        Lease::Options{.lease = kSimLease, .block = kSimBlock, .taken_at = asked_at}, "demo", *answer.record);
    process.lease->begin(answer.record->incarnation + 1);
    ++outcome_.claims;
  }

  void send(Process& process) {
    const bool waits =
        std::any_of(process.requests.begin(), process.requests.end(), [](const OnItsWay& one) { return !one.unheard; });
    if (waits) return;
    OnItsWay request{
        .sent_at = now_, .reaches_server = now_ + up_to(std::chrono::milliseconds(100)), .fence = process.fence};
    request.comes_back = request.reaches_server + up_to(std::chrono::milliseconds(100));
    if (!process.lease) {
      if (process.take_again_at > now_) return;
      request.what = OnItsWay::What::take;
    } else {
      if (process.lease->next_keep() > now_) return;
      request.wanted = process.lease->begin_keep(now_);
    }
    process.requests.push_back(std::move(request));
  }

  void publish(Process& process) {
    if (!process.lease || process.lease->lost() || !chance(0.3)) return;
    const VersionNumber number = std::max(process.last, process.lease->given()) + 1;
    const bool asks = process.lease->give(number) != 0;
    if (asks && sabotage_ != Sabotage::give_without_asking) return;
    process.last = number;
    ++outcome_.numbers;
    if (server_.take_new_beginning()) given_.clear();
    // Cut off since before numbers began anew: what it gives is of the time before.
    if (!server_.knows(process.id)) return;
    const auto [before, is_new] = given_.emplace(number, process.id);
    if (!is_new) {
      outcome_.violation = format("number {} was given by {} and again by {}", number, before->second, process.id);
    }
  }

  /// The name went from one to another: was the first one gone?
  void check_takeover() {
    const auto handover = server_.take_handover();
    if (!handover) return;
    for (const Process& process : processes_) {
      if (process.id != handover->first || !process.lease) continue;
      ++outcome_.takeovers;
      // It had a whole lease in which nothing kept it from writing its name, and did. (One that was silent for longer,
      // and came back to a directory that forgot everything, waits like any other.)
      const bool well = is_well(process) && process.was_well && now_ - process.well_since > kSimLease;
      if (well && now_ - process.kept_at <= kSimLease) {
        outcome_.violation = format("{} took the name of {}, which was well", handover->second, process.id);
      }
    }
  }

  /// After the storm everybody but one goes, and that one gets the name.
  void check_that_it_recovers() {
    for (auto& process : processes_) {
      leave_on_the_way(process);
      process = Process{.id = "nobody", .stopped_until = Time::max()};
    }
    Process& last = processes_.front();
    last = Process{.id = "the last", .well_since = now_};
    const Time end = now_ + kLateMax + 3 * kSimLease;
    for (; now_ < end && !last.lease; now_ += kTick) tick(last);
    if (!last.lease) outcome_.violation = "nobody got the name of those who are gone";
  }

  std::mt19937_64 random_;
  const Sabotage sabotage_;
  Outcome outcome_;
  Server server_;
  Time now_ = Time(std::chrono::hours(1));
  int started_ = 0;
  std::array<Process, kProcesses> processes_;
  std::vector<std::pair<std::string, OnItsWay>> late_;  ///< Of processes that are gone.
  std::map<VersionNumber, std::string> given_;
};

TEST(LeaseSimulation, ANameHasOneOwnerAndANumberIsGivenOnce) {
  test::expect_eventful_storm<Outcome>(40, [](std::uint64_t seed) { return Simulation(seed, Sabotage::none).run(); },
                                       {{"claims", &Outcome::claims, 1},
                                        {"claims from an owner that was silent", &Outcome::takeovers, 0.25},
                                        {"losses", &Outcome::losses, 0.25},
                                        {"claims written again", &Outcome::written_again, 0.25},
                                        {"numbers", &Outcome::numbers, 100}});
}

using BrokenRule = test::BrokenRuleCase<Sabotage>;

class BrokenLeaseRule : public ::testing::TestWithParam<BrokenRule> {};

TEST_P(BrokenLeaseRule, IsNoticed) {
  test::expect_noticed(40, GetParam().noticed_as,
                       [](std::uint64_t seed) { return Simulation(seed, GetParam().sabotage).run().violation; });
}

INSTANTIATE_TEST_SUITE_P(LeaseSimulation, BrokenLeaseRule,
                         ::testing::Values(BrokenRule{"take_what_is_held", Sabotage::take_what_is_held, "was well"},
                                           BrokenRule{"no_quarantine", Sabotage::no_quarantine, "was well"},
                                           BrokenRule{"believe_the_stale", Sabotage::believe_the_stale, "went back"},
                                           BrokenRule{"forget_fence", Sabotage::forget_fence, "went back"},
                                           BrokenRule{"give_without_asking", Sabotage::give_without_asking, "again by"},
                                           BrokenRule{"give_back_what_is_used", Sabotage::give_back_what_is_used,
                                                      "again by"}),
                         test::kNameOfRule);

}  // namespace
}  // namespace freshet::redis
