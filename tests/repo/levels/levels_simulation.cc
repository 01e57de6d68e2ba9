// SPDX-License-Identifier: Apache-2.0
#include "tests/repo/levels/levels_simulation.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "core/base/format.h"
#include "repo/levels/level_board.h"
#include "repo/levels/restart/restart_plan.h"
#include "tests/repo/levels/support/simulated_disks.h"
#include "transport/group/group_machine.h"

namespace freshet::sim {
namespace {

using group::GroupMachine;
using group::Rank;
using levels::Level;
using levels::LevelNote;
using levels::Version;

constexpr Duration kMs = std::chrono::milliseconds(1);
constexpr Duration kNoticedWithin = std::chrono::milliseconds(1300);
constexpr std::size_t kDisks = 6;

class World {
 public:
  World(std::uint64_t seed, LevelsSabotage sabotage) : random_(seed), sabotage_(sabotage) {
    losses_ = static_cast<std::uint32_t>(below(3));
  }

  LevelsOutcome run() {
    disks_.all.resize(kDisks);
    for (int life = 0; life < 8 && outcome_.violation.empty(); ++life) live_once();
    return outcome_;
  }

 private:
  enum class State { runs, stopped, dead };
  struct Member {
    Member(GroupMachine::Self self, Time now) : machine(std::move(self), {}, now) {}
    GroupMachine machine;
    State state = State::runs;
    Time since{};  ///< Not running, or cut off.
    bool cut = false;
    bool had_met = false;    ///< When trouble came.
    bool planned = false;    ///< It has the plan and goes on.
    VersionNumber next = 0;  ///< The next one that it captures.
  };
  struct Event {
    Time at;
    std::uint64_t order = 0;
    Rank to = 0;
    std::function<void()> act;
    bool operator<(const Event& other) const { return std::pair(at, order) > std::pair(other.at, other.order); }
  };

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  Duration some(Duration least, Duration most) {
    return least + Duration(static_cast<std::int64_t>(below(static_cast<std::uint64_t>((most - least).count()) + 1)));
  }
  void violate(std::string what) {
    if (outcome_.violation.empty()) outcome_.violation = std::move(what);
  }

  void at(Duration delay, Rank rank, std::function<void()> act) {
    events_.push_back({now_ + delay, ++order_, rank, std::move(act)});
    std::push_heap(events_.begin(), events_.end());
  }

  void carry_out(Rank rank, GroupMachine::Outcome outcome) {
    Member& member = members_[rank];
    for (auto& [to, message] : outcome.sends) {
      if (to >= members_.size()) continue;
      // One link, one order: a message never overtakes another.
      Time& free = links_[{rank, to}];
      const Time arrives = std::max(free, now_ + some(Duration(20'000), 8 * kMs));
      free = arrives;
      at(arrives - now_, to, [this, from = rank, to = to, said = message] { deliver(from, to, said); });
    }
    if (outcome.to_decide) {
      auto decision = decide(outcome.to_decide->second);
      const std::uint64_t number = outcome.to_decide->first;
      carry_out(rank, member.machine.decide(number, std::move(decision), now_));
    }
    if (outcome.decided) on_decided(rank, outcome.decided->second);
    for (const group::Message& note : outcome.notes) on_note(rank, note.from, note.data);
    if (outcome.ended) on_ended(rank);
    if (outcome.met) {
      at(some(Duration(0), 5 * kMs), rank,
         [this, rank] { carry_out(rank, members_[rank].machine.contribute(1, encode(inventory(rank)), now_)); });
    }
  }

  void deliver(Rank from, Rank to, const group::Message& message) {
    // What a cut link held up is lost with the connection.
    if (members_[from].cut || members_[to].cut) return;
    carry_out(to, members_[to].machine.on_message(message, now_));
  }

  static group::Claims claims_of(const std::string& job) { return {{"model", "net"}, {"job", job}}; }

  /// A rank of another job, at this one's address.
  void send_stranger(Rank as) {
    GroupMachine& hub = members_[0].machine;
    if (hub.is_over()) return;
    ++outcome_.strangers;
    const bool had_met = hub.has_met();
    const group::Peer stranger{.address = "sim://stranger", .key = "", .host = ""};
    group::Message hello{.kind = group::Kind::hello, .from = as, .peers = {stranger}};
    hello.claims = claims_of(sabotage_ == LevelsSabotage::any_job_may_meet ? "ours" : "another");
    carry_out(0, hub.on_message(hello, now_));
    if (had_met && hub.is_over()) return violate("a rank of another job ended a meeting of this one's ranks");
    if (!had_met && !hub.is_over()) return violate("a rank of another job was taken in");
    over_ = over_ || !had_met;  // Both are told why.
  }

  void tick(Rank rank) {
    carry_out(rank, members_[rank].machine.on_tick(now_));
    at(some(kMs, 30 * kMs), rank, [this, rank] { tick(rank); });
  }

  levels::Inventory inventory(Rank rank) const {
    const SimulatedDisks::Disk& disk = disks_.of(rank);
    levels::Inventory inventory{.number_max = disk.number_max, .incarnation_max = disk.incarnation_max};
    inventory.acknowledged = disk.acknowledged;
    if (sabotage_ == LevelsSabotage::numbers_from_disk) inventory.number_max = 0;
    for (const levels::ShardKey& key : disk.shards) {
      inventory.held.push_back({.key = key, .step = disk.steps.at(key)});
      if (sabotage_ == LevelsSabotage::parity_made_up && losses_ > 0 && losses_ < key.ranks) {
        inventory.held.push_back(SimulatedDisks::parity_of(key, losses_));
      }
      if (sabotage_ != LevelsSabotage::restore_incomplete) continue;
      for (Rank other = 0; other < key.ranks; ++other) {
        levels::ShardKey claimed = key;
        claimed.rank = other;
        inventory.held.push_back({.key = claimed, .step = disk.steps.at(key)});
      }
    }
    for (const levels::ShardKey& key : disk.rebuilt) {
      inventory.held.push_back({.key = key, .step = key.version.number, .kind = levels::ShardKind::copy});
    }
    for (const auto& [key, losses] : disk.parity) inventory.held.push_back(SimulatedDisks::parity_of(key, losses));
    return inventory;
  }

  Result<std::vector<std::byte>> decide(const std::vector<std::vector<std::byte>>& parts) {
    std::vector<levels::Inventory> all;
    for (const auto& part : parts) {
      FRESHET_ASSIGN(levels::Inventory one, levels::decode_inventory(part));
      all.push_back(std::move(one));
    }
    std::vector<levels::StoredVersion> stored;
    for (const auto& [version, step] : repository_) stored.push_back({version, step, 0});
    levels::RestartPlanner planner(std::move(all), std::move(stored), {});
    Result<levels::RestartPlan> plan = planner.next();
    while (plan && plan->source == levels::RestartPlan::Source::rebuild) {
      for (const levels::RebuildTask& task : plan->rebuilds) {
        const levels::ShardKey key{plan->version, task.shard_rank, plan->ranks};
        if (!disks_.can_be_rebuilt(key))
          violate(format("version {}: a shard is rebuilt, and cannot be", plan->version.number));
        disks_.of(task.by).rebuilt.insert(key);
        ++outcome_.rebuilt;
      }
      planner.add_rebuilt(plan->version, plan->rebuilds);
      plan = planner.next();
    }
    if (!plan) return fail(plan.error());
    plan->final = true;
    plan->run = {.high = 1, .low = plan->source == levels::RestartPlan::Source::nothing ? below(1 << 30) : 2};
    plan->incarnation =
        std::max(planner.incarnation_max() + 1, static_cast<std::uint64_t>(now_.time_since_epoch().count()));
    plan->next_number = planner.number_max() + 1;
    return encode(*plan);
  }

  void on_decided(Rank rank, const group::Message& message) {
    Member& member = members_[rank];
    if (message.code != 0) {
      if (rank == 0) ++outcome_.refused;
      const bool should_be_whole = std::ranges::any_of(
          whole_, [&](const auto& entry) { return disks_.is_whole(entry.first, entry.second, true); });
      if (should_be_whole) violate("refused to go on, though a version is whole");
      over_ = true;
      return;
    }
    const auto plan = levels::decode_plan(message.data);
    if (!plan) return violate("a plan that cannot be read");
    if (plan->source == levels::RestartPlan::Source::shards && !disks_.is_whole(plan->version, plan->ranks)) {
      return violate(format("version {} is restored, and is not whole", plan->version.number));
    }
    // Nothing whole that was acknowledged is newer.
    for (const auto& [version, ranks] : whole_) {
      if (version.number > plan->version.number && disks_.is_whole(version, ranks, true)) {
        return violate(
            format("version {} was acknowledged, is whole, and {} is restored", version.number, plan->version.number));
      }
    }
    for (const auto& [version, step] : repository_) {
      if (version.number > plan->version.number) return violate("the repository had a newer version");
    }
    if (rank == 0 && plan->next_number <= number_used_)
      return violate(format("number {} is given again", plan->next_number));
    if (rank == 0) {
      ++outcome_.restored;
      if (plan->source == levels::RestartPlan::Source::nothing) --outcome_.restored;
      if (plan->ranks != 0 && plan->ranks != members_.size()) ++outcome_.resized;
      run_ = plan->run;
      incarnation_ = plan->incarnation;
      first_ = plan->next_number;
    }
    member.next = plan->next_number;
    member.planned = true;
    SimulatedDisks::Disk& disk = disks_.of(rank);
    disk.number_max = std::max(disk.number_max, plan->next_number + 200);
    disk.incarnation_max = std::max(disk.incarnation_max, plan->incarnation);
    at(some(kMs, 40 * kMs), rank, [this, rank] { capture(rank); });
  }

  Version version_of(VersionNumber number) const {
    return {.id = {.run = run_, .incarnation = incarnation_, .sequence = number - first_ + 1}, .number = number};
  }

  void say(Rank rank, const LevelNote& note) { carry_out(rank, members_[rank].machine.note(0, encode(note))); }

  void capture(Rank rank) {
    Member& member = members_[rank];
    if (member.machine.is_over()) return;
    const VersionNumber number = member.next++;
    number_used_ = std::max(number_used_, number);
    LevelNote note{.kind = LevelNote::Kind::captured, .version = number, .step = number};
    if (chance(0.02)) note.error = Error(Code::out_of_space, "no memory");
    if (!note.error) captured_[number].insert(rank);
    if (rank == 0) ++outcome_.captured;
    say(rank, note);
    at(some(5 * kMs, 120 * kMs), rank, [this, rank] { capture(rank); });
  }

  void on_note(Rank rank, Rank from, const std::vector<std::byte>& data) {
    const auto note = levels::decode_level_note(data);
    if (!note) return violate("a note that cannot be read");
    if (note->kind == LevelNote::Kind::captured || note->kind == LevelNote::Kind::done) {
      if (rank != 0) return;
      std::vector<LevelNote> said = board_->on_note(from, *note);
      if (sabotage_ == LevelsSabotage::one_rank_is_enough && note->kind == LevelNote::Kind::done) {
        for (Rank other = 0; other < members_.size(); ++other) {
          for (LevelNote& more : board_->on_note(other, *note)) said.push_back(std::move(more));
        }
      }
      check_ways(said);
      for (const LevelNote& one : said) {
        for (Rank to = 0; to < members_.size(); ++to) carry_out(0, members_[0].machine.note(to, encode(one)));
      }
      return;
    }
    if (note->kind == LevelNote::Kind::begin) return begin(rank, *note);
    if (note->kind == LevelNote::Kind::failed) {
      if (rank == 0) ++outcome_.failed;
      return;
    }
    reached(rank, *note);
  }

  /// With `skip`, at each level one version is under way and one waits at most: ranks keep what those need.
  void check_ways(const std::vector<LevelNote>& said) {
    for (const LevelNote& note : said) {
      if (note.kind == LevelNote::Kind::begin) continue;
      on_way_[note.level].erase(note.version);
      if (note.kind != LevelNote::Kind::reached) continue;
      const auto next = std::ranges::upper_bound(levels_, note.level);
      if (next != levels_.end()) on_way_[*next].insert(note.version);
    }
    for (const auto& [level, versions] : on_way_) {
      if (skips_ && versions.size() > 2)
        violate(format("{} versions are kept for {}", versions.size(), name_of(level)));
    }
  }

  void begin(Rank rank, const LevelNote& note) {
    const levels::ShardKey key{version_of(note.version), rank, static_cast<std::uint32_t>(members_.size())};
    const Duration work = some(kMs, 90 * kMs);
    const bool fails = chance(0.04);
    if (note.level == Level::external && rank != 0) return;
    const auto done = [this, rank, note, fails] {
      LevelNote said{.kind = LevelNote::Kind::done, .version = note.version, .step = note.step, .level = note.level};
      if (fails) said.error = Error(Code::io_error, "the disk");
      say(rank, said);
    };
    const auto sync = [this, rank, note, fails, key] {
      if (fails) return;
      if (note.level == Level::external) {
        repository_.emplace(key.version, note.step);
      } else if (note.level == Level::group) {
        disks_.of(rank).parity[key] = losses_;
      } else {
        SimulatedDisks::Disk& disk = disks_.of(rank);
        disk.shards.insert(key);
        disk.steps[key] = note.step;
      }
    };
    const bool lies = sabotage_ == LevelsSabotage::done_before_sync && note.level == Level::local;
    at(work, rank, lies ? std::function<void()>(done) : sync);
    at(work + some(kMs, 20 * kMs), rank, lies ? std::function<void()>(sync) : done);
  }

  void reached(Rank rank, const LevelNote& note) {
    if (healed_ && members_.size() > 1 && members_[rank].had_met)
      return violate(format("rank {} acknowledged version {} after it was lost", rank, note.version));
    const Version version = version_of(note.version);
    const auto ranks = static_cast<std::uint32_t>(members_.size());
    if (captured_[note.version].size() < members_.size()) {
      return violate(format("version {} reached {}, and not all captured it", note.version, name_of(note.level)));
    }
    if (note.level == Level::local) {
      if (!disks_.is_whole(version, ranks))
        return violate(format("version {} reached local, and is not whole", note.version));
      whole_.emplace(version, ranks);
      if (rank == 0) ++outcome_.local;
    }
    if (note.level == Level::group) {
      for (Rank other = 0; other < ranks; ++other) {
        if (!disks_.of(other).parity.contains({version, other, ranks})) {
          return violate(format("version {} reached group, and a rank has no parity", note.version));
        }
      }
      if (rank == 0) ++outcome_.group;
    }
    if (note.level == Level::external) {
      if (!repository_.contains(version)) return violate("a version reached external, and is not there");
      if (rank == 0) ++outcome_.external;
    }
    if (note.level == Level::memory) return;
    SimulatedDisks::Disk& disk = disks_.of(rank);
    VersionNumber& newest = disk.acknowledged[static_cast<std::size_t>(note.level)];
    newest = std::max(newest, note.version);
  }

  void on_ended(Rank rank) {
    const Member& member = members_[rank];
    for (const Rank lost : member.machine.lost()) {
      ++outcome_.lost;
      const Member& other = members_[lost];
      // One that runs is lost only where one of the two is cut off or was not running, or where it went itself.
      const bool excused = other.state != State::runs || other.cut || member.cut || other.machine.is_over() ||
                           now_ - other.since < kNoticedWithin || now_ - member.since < kNoticedWithin || trouble_;
      if (!excused) violate(format("rank {} named rank {} as lost, which runs", rank, lost));
    }
  }

  /// Somebody dies, stops or is cut off.
  void make_trouble() {
    if (over_ || members_.empty()) return;
    const auto rank = static_cast<Rank>(below(members_.size()));
    Member& member = members_[rank];
    trouble_ = true;
    trouble_at_ = now_;
    for (Member& one : members_) one.had_met = one.machine.has_met();
    const std::uint64_t kind = below(3);
    member.since = now_;
    if (kind == 0) {
      member.state = State::dead;
      // The kernel closes its connections: where they are not cut, the other end hears so.
      for (Rank other = 0; other < members_.size(); ++other) {
        if (other == rank || (rank != 0 && other != 0)) continue;
        at(some(Duration(50'000), 3 * kMs), other,
           [this, other, rank] { carry_out(other, members_[other].machine.on_gone(rank, now_)); });
      }
    } else if (kind == 1) {
      member.state = State::stopped;
    } else {
      member.cut = true;
    }
  }

  void live_once() {
    ++outcome_.lives;
    events_.clear();
    links_.clear();
    captured_.clear();
    on_way_.clear();
    members_.clear();
    disks_.of_rank.clear();
    over_ = trouble_ = healed_ = false;
    const std::size_t ranks = 1 + below(5);
    std::vector<std::size_t> disks(kDisks);
    for (std::size_t i = 0; i < kDisks; ++i) disks[i] = i;
    if (chance(0.3)) std::ranges::shuffle(disks, random_);
    if (chance(0.15)) {  // A host is lost, with what it had.
      const std::size_t lost = below(kDisks);
      disks_.all[lost] = SimulatedDisks::Disk();
      used_with_[lost] = 0;
    }
    disks_.of_rank.assign(disks.begin(), disks.begin() + static_cast<long>(ranks));
    // What is on a disk that nobody mounts is not to be had, and its promises are not known.
    number_used_ = 0;
    for (const std::size_t disk : disks_.of_rank) number_used_ = std::max(number_used_, used_with_[disk]);
    levels_ = {Level::memory, Level::local};
    if (losses_ > 0 && ranks > losses_) levels_.push_back(Level::group);
    if (chance(0.6)) levels_.push_back(Level::external);
    skips_ = chance(0.5);
    board_.emplace(
        levels::LevelBoard::Options{.ranks = static_cast<std::uint32_t>(ranks),
                                    .levels = levels_,
                                    .when_behind = skips_ ? levels::WhenBehind::skip : levels::WhenBehind::wait});
    for (Rank rank = 0; rank < ranks; ++rank) {
      members_.emplace_back(GroupMachine::Self{.rank = rank,
                                               .ranks = static_cast<Rank>(ranks),
                                               .claims = claims_of("ours"),
                                               .peer = {.address = format("sim://{}", rank)}},
                            now_);
      at(some(Duration(0), 50 * kMs), rank, [this, rank] { tick(rank); });
    }
    if (ranks > 1 && chance(0.1)) {
      const auto as = static_cast<Rank>(1 + below(ranks - 1));
      at(some(Duration(0), 80 * kMs), 0, [this, as] { send_stranger(as); });
    }
    const Time ends = now_ + some(500 * kMs, 4000 * kMs);
    const Time trouble = chance(0.8) ? now_ + some(200 * kMs, 3000 * kMs) : ends + 10'000 * kMs;
    bool troubled = false;
    while (!events_.empty() && outcome_.violation.empty()) {
      std::pop_heap(events_.begin(), events_.end());
      const Event event = std::move(events_.back());
      events_.pop_back();
      now_ = std::max(now_, event.at);
      ++outcome_.events;
      if (!troubled && now_ >= trouble) {
        troubled = true;
        make_trouble();
      }
      if (members_[event.to].state == State::runs) event.act();
      if (troubled && !healed_ && now_ - trouble_at_ > kNoticedWithin) {
        check_noticed();
        // Who was cut off is back, in a meeting that is over.
        for (Member& member : members_) member.cut = false;
        healed_ = true;
      }
      if (healed_ && now_ - trouble_at_ > 2 * kNoticedWithin) break;
      if (over_ || (!troubled && now_ >= ends)) break;
    }
    for (Rank rank = 0; rank < members_.size(); ++rank) {
      VersionNumber& used = used_with_[disks_.of_rank[rank]];
      if (members_[rank].planned) used = std::max(used, number_used_);
    }
    now_ += 2000 * kMs;
  }

  void check_noticed() {
    if (over_ || members_.size() < 2) return;
    for (Rank rank = 0; rank < members_.size(); ++rank) {
      const Member& member = members_[rank];
      if (member.state != State::runs || !member.machine.has_met()) continue;
      if (!member.machine.is_over()) return violate(format("rank {} did not notice within 1.3 s", rank));
    }
  }

  std::mt19937_64 random_;
  const LevelsSabotage sabotage_;
  std::uint32_t losses_ = 0;  ///< That the level `group` is for; 0: there is none.
  LevelsOutcome outcome_;
  Time now_ = Time(std::chrono::hours(1));
  std::uint64_t order_ = 0;
  std::vector<Event> events_;
  std::map<std::pair<Rank, Rank>, Time> links_;
  SimulatedDisks disks_;
  std::map<std::size_t, VersionNumber> used_with_;  ///< By disk: the greatest number that a job used with it.
  std::map<Version, std::uint64_t> repository_;
  std::map<Version, std::uint32_t> whole_;  ///< Versions that reached local, and of how many ranks.

  // Of one life.
  std::deque<Member> members_;
  std::optional<levels::LevelBoard> board_;
  std::vector<Level> levels_;
  bool skips_ = false;
  std::map<Level, std::set<VersionNumber>> on_way_;  ///< That reached the level before.
  std::map<VersionNumber, std::set<Rank>> captured_;
  VersionNumber number_used_ = 0;
  VersionNumber first_ = 0;
  RunId run_;
  std::uint64_t incarnation_ = 0;
  bool over_ = false;
  bool trouble_ = false;
  bool healed_ = false;
  Time trouble_at_{};
};

}  // namespace

LevelsOutcome simulate_levels(std::uint64_t seed, LevelsSabotage sabotage) { return World(seed, sabotage).run(); }

}  // namespace freshet::sim
