// SPDX-License-Identifier: Apache-2.0
/// Two providers join while versions are numbered and aliases moved, one call of one of them at a time, in an order
/// that a seed draws; any call, or its answer, may be lost, and a provider that joins may die at any of them, until it
/// is started again. Against what must hold at every moment, and what must be there without anybody else once both have
/// joined.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "repo/cluster/placement/numbers.h"
#include "repo/registrar/registrar_records.h"
#include "tests/repo/cluster/cluster_world.h"

namespace freshet {
namespace {

/// Runs threads by turns: all wait but one, which does what it does until it waits again, or ends.
class Turns {
 public:
  explicit Turns(std::uint64_t seed) : random_(seed) {}

  void add(std::function<void()> work) {
    const MutexLock lock(mutex_);
    const std::size_t who = states_.size();
    states_.push_back(State::waits);
    threads_.emplace_back([this, who, work = std::move(work)] {
      begin(who);
      work();
      const MutexLock end(mutex_);
      states_[who] = State::ended;
      changed_.notify_all();
    });
  }
  /// Of the thread that has the turn: gives it up until it comes again.
  void pass() {
    const std::size_t who = whose_;
    {
      const MutexLock lock(mutex_);
      states_[who] = State::waits;
      changed_.notify_all();
    }
    begin(who);
  }
  /// Until all have ended. REQUIRES: none is added any more.
  void run() {
    while (next()) {
    }
    threads_.clear();
  }

 private:
  enum class State { waits, runs, ended };

  void begin(std::size_t who) {
    const MutexLock lock(mutex_);
    while (states_[who] != State::runs) changed_.wait(mutex_);
    whose_ = who;
  }
  bool next() {
    const MutexLock lock(mutex_);
    while (std::ranges::find(states_, State::runs) != states_.end()) changed_.wait(mutex_);
    std::vector<std::size_t> waiting;
    for (std::size_t who = 0; who < states_.size(); ++who) {
      if (states_[who] == State::waits) waiting.push_back(who);
    }
    if (waiting.empty()) return false;
    states_[waiting[std::uniform_int_distribution<std::size_t>(0, waiting.size() - 1)(random_)]] = State::runs;
    changed_.notify_all();
    return true;
  }

  std::mt19937_64 random_;
  Mutex mutex_;
  CondVar changed_;
  std::size_t whose_ = 0;  ///< Of whom has the turn.
  std::vector<State> states_;
  std::vector<std::jthread> threads_;
};

/// A rule that the simulation breaks, to see that it would be noticed.
enum class JoinSabotage { none, nothing_is_handed_over, numbers_are_given_in_the_pause };

/// How a provider that joins reaches the others, and those who number.
class Sabotaged final : public LinkedRepository {
 public:
  Sabotaged(ProviderRepository& inner, std::function<Fate()> fate, JoinSabotage sabotage)
      : LinkedRepository(inner, std::move(fate)), sabotage_(sabotage) {}

  Result<std::vector<SharedRecord>> shared_records(const std::string& prefix, const std::string& after) const override {
    auto records = LinkedRepository::shared_records(prefix, after);
    if (records && sabotage_ == JoinSabotage::nothing_is_handed_over) records->clear();
    return records;
  }
  Status change_shared_records(std::span<const SharedRecord> expected, std::span<const SharedRecord> changes) override {
    const bool is_number = changes.size() == 1 && changes[0].key.starts_with(kNumberPrefix) && expected.size() == 2;
    const bool checked = sabotage_ != JoinSabotage::numbers_are_given_in_the_pause || !is_number;
    // Without the placement that they are given under.
    return LinkedRepository::change_shared_records(checked ? expected : expected.subspan(1), changes);
  }

 private:
  const JoinSabotage sabotage_;
};

class JoinSimulation {
 public:
  JoinSimulation(std::uint64_t seed, JoinSabotage sabotage)
      : random_(seed), sabotage_(sabotage), world_(1 + static_cast<int>(seed % 2)), turns_(seed) {}

  /// What went wrong first; empty when nothing did.
  std::string run() {
    store_versions();
    std::vector<Provider> added{world_.add(), world_.add()};
    for (const Provider& provider : added) turns_.add([this, provider] { join(provider); });
    for (int i = 0; i < 3; ++i) turns_.add([this] { number(); });
    turns_.add([this] { move_alias(); });
    turns_.run();
    // One that died half-way keeps the other one out until it is done.
    std::vector<Provider> left = added;
    for (std::size_t tries = 0; !left.empty() && tries < 2; ++tries) {
      std::erase_if(left, [&](const Provider& provider) { return finish_join(provider); });
    }
    if (!left.empty()) fail_with("a join cannot be finished");
    check_told();
    if (wrong_.empty()) check_alone();
    return wrong_;
  }

 private:
  static constexpr int kModels = 8;
  static constexpr VersionNumber kVersions = 3;

  std::size_t dice(std::size_t sides) { return std::uniform_int_distribution<std::size_t>(0, sides - 1)(random_); }
  std::string model(std::size_t which) const { return format("net{}", which); }
  void fail_with(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  void store_versions() {
    const auto architecture = test_architecture({8});
    const auto repository = world_.open();
    for (int which = 0; which < kModels; ++which) {
      for (VersionNumber number = 1; number <= kVersions; ++number) {
        const VersionId id = test_id(static_cast<std::uint64_t>(which) * kVersions + number);
        if (!put(*repository, make_version(model(which), id, architecture, nullptr, {}, random_))) fail_with("no put");
      }
      last_[model(which)] = kVersions;
    }
  }

  // Started up to three times; it dies after so many calls, if it is not done by then.
  void join(const Provider& provider) {
    for (int starts = 0; starts < 3; ++starts) {
      const auto fate = [this, left = std::make_shared<std::size_t>(1 + dice(40))] {
        turns_.pass();
        if (*left == 0) return Fate::lost;
        return --*left == 0 && dice(2) == 0 ? Fate::answer_lost : Fate::done;
      };
      const cluster::Connect connect = [this, fate](const Provider& to) -> Result<std::shared_ptr<ProviderRepository>> {
        return std::make_shared<Sabotaged>(world_.at(to.id), fate, sabotage_);
      };
      if (cluster::join(world_.placement(), provider, connect)) return;
    }
  }

  // As the provider does it that is started again.
  bool finish_join(const Provider& provider) {
    const auto joined = cluster::join(world_.placement(), provider, world_.connect());
    if (joined) newest_ = *joined;
    return joined.has_value();
  }
  void check_told() {
    if (const auto newest = cluster::newest_placement(newest_, world_.connect())) newest_ = *newest;
    for (const Provider& one : newest_.providers()) {
      if (cluster::placement_at(world_.at(one.id)) != newest_) fail_with(one.id + " was not told");
    }
  }

  cluster::Connect unreliable() {
    return [this](const Provider& to) -> Result<std::shared_ptr<ProviderRepository>> {
      const auto fate = [this] {
        turns_.pass();
        const std::size_t drawn = dice(16);
        return drawn == 0 ? Fate::lost : drawn == 1 ? Fate::answer_lost : Fate::done;
      };
      return std::make_shared<Sabotaged>(world_.at(to.id), fate, sabotage_);
    };
  }

  void number() {
    Placement known = world_.placement();
    for (int i = 0; i < 12; ++i) {
      const std::string name = model(dice(kModels));
      const VersionNumber before = last_[name];
      const Provider& registrar = known.providers()[known.registrar(name)];
      const auto given = cluster::Member(registrar, unreliable()).ask([&](ProviderRepository& at) {
        return cluster::next_number(at, known, name, 0);
      });
      if (given && !given_.emplace(name, *given).second) fail_with(format("{}@{} was given twice", name, *given));
      if (given && *given <= before) fail_with(format("{}@{} was given after {}", name, *given, before));
      if (given) last_[name] = std::max(last_[name], *given);
      if (given || given.error().code() != Code::failed_precondition) continue;
      if (const auto newest = cluster::newest_placement(known, unreliable())) known = *newest;
    }
  }

  // Each one as a whole, between the calls of the others.
  void move_alias() {
    const auto repository = world_.open();
    for (int i = 0; i < 12; ++i) {
      for (std::size_t waits = dice(6); waits > 0; --waits) turns_.pass();
      const std::string name = model(dice(kModels));
      const VersionNumber number = 1 + dice(kVersions);
      const Status moved = repository->set_alias(name, "best", std::nullopt, number);
      if (moved) aliases_[name] = number;
      if (!moved && moved.error().code() == Code::unavailable) continue;  // A provider joins.
      if (!moved) fail_with(moved.error().message());
      const auto read = repository->aliases(name);
      if (!read || read->size() != 1 || read->front().number != number) fail_with("an alias is not what it was set to");
    }
  }

  // What a model's registrar knows must do, whoever else is away.
  void check_alone() {
    for (int which = 0; which < kModels; ++which) {
      const std::string name = model(which);
      const Provider& registrar = newest_.providers()[newest_.registrar(name)];
      for (const Provider& other : newest_.providers()) {
        if (other.id != registrar.id) world_.cut(other.id);
      }
      const auto next = cluster::Member(registrar, world_.connect()).ask([&](ProviderRepository& at) {
        return cluster::next_number(at, newest_, name, 0);
      });
      if (!next) fail_with(next.error().message());
      if (next && *next <= last_[name]) fail_with(format("{}@{} is given after {}", name, *next, last_[name]));
      const auto aliases = world_.at(registrar.id).shared_record(kAliasesPrefix + name);
      const auto meant = aliases_.find(name);
      const std::optional<std::string> expected =
          meant == aliases_.end() ? std::nullopt : std::optional(format("best {}\n", meant->second));
      if (!aliases || aliases->value != expected) fail_with(format("the aliases of {} were lost", name));
      for (const Provider& other : newest_.providers()) world_.mend(other.id);
    }
  }

  std::mt19937_64 random_;
  const JoinSabotage sabotage_;
  ClusterWorld world_;
  Turns turns_;
  Placement newest_;
  std::map<std::string, VersionNumber> last_;  ///< Told to somebody.
  std::set<std::pair<std::string, VersionNumber>> given_;
  std::map<std::string, VersionNumber> aliases_;
  std::string wrong_;
};

TEST(JoinSimulation, NoNumberIsGivenTwiceAndNobodyElseIsNeededAfterwards) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    EXPECT_EQ(JoinSimulation(seed, JoinSabotage::none).run(), "") << "seed " << seed;
  }
}

bool is_join_noticed(JoinSabotage sabotage) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    if (!JoinSimulation(seed, sabotage).run().empty()) return true;
  }
  return false;
}

TEST(JoinSimulation, NoticesWhenNothingIsHandedOver) {
  EXPECT_TRUE(is_join_noticed(JoinSabotage::nothing_is_handed_over));
}
TEST(JoinSimulation, NoticesWhenNumbersAreGivenInThePause) {
  EXPECT_TRUE(is_join_noticed(JoinSabotage::numbers_are_given_in_the_pause));
}

}  // namespace
}  // namespace freshet
