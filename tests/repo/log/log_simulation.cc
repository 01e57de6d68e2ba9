// SPDX-License-Identifier: Apache-2.0
#include "tests/repo/log/log_simulation.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/format.h"
#include "repo/log/log_machine.h"
#include "tests/repo/log/log_network.h"

namespace freshet::sim {
namespace {

using log::Answer;
using log::BrokenRule;
using log::LogId;
using log::LogMachine;
using log::Role;

constexpr std::size_t kNodes = 4;
constexpr std::size_t kReader = 3;  ///< Never claims.
constexpr std::size_t kWriters = 4;
constexpr std::int64_t kGrace = 6;
constexpr Duration kStormy = std::chrono::seconds(120);
constexpr Duration kQuiet = std::chrono::seconds(130);  ///< Longer than a write is late.

class LogWorld : LogNetwork {
 public:
  LogWorld(std::uint64_t seed, BrokenRule broken) : LogNetwork(seed, kGrace), broken_(broken) {
    records_per_snapshot_ = 4 + below(20);
    own_token_life_s_ = static_cast<std::uint32_t>(10 + below(60));
    append_ = chance(0.3) ? some(3 * kSecond, 12 * kSecond) : some(15 * kSecond, 60 * kSecond);
  }

  LogOutcome run() {
    for (std::size_t i = 0; i < kNodes; ++i) {
      nodes_[i].rate = 0.96 + 0.08 * unit();
      nodes_[i].offset = some(Duration(0), 1'000'000 * kSecond);
      start(i);
      tick(i);
      if (i != kReader) claim_now_and_then(i);
      trouble(i);
    }
    for (std::size_t i = 0; i < kWriters; ++i) write_on(i);
    run_until(now_ + kStormy);
    quiet_ = true;
    for (std::size_t i = 0; i < kNodes; ++i) {
      wake(i);
      if (!nodes_[i].machine) start(i);
    }
    run_until(now_ + 40 * kSecond);
    for (Writer& writer : writers_) writer.stopped = true;
    run_until(now_ + kQuiet);
    if (oracle_.violation().empty() && own_violation_.empty()) check_end();
    finish();
    return outcome_;
  }

 private:
  struct Node {
    std::unique_ptr<LogMachine> machine;
    std::uint64_t life = 0;
    double rate = 1;
    Duration offset{};
    bool asleep = false;
    std::optional<Duration> sleep_at_look;   ///< It falls asleep between its next look and the answer.
    Time slow_until{};                       ///< Its records go slowly.
    std::deque<std::function<void()>> held;  ///< What came while it slept.
    bool claimed = false;
    std::map<std::uint64_t, std::function<void(const log::BatchEnd&)>> batches;
  };
  struct Writer {
    LogId token;
    bool granted = false;
    std::vector<log::Place> uploaded;
    bool stopped = false;
  };
  Time local(const Node& node) const {
    return Time(node.offset +
                Duration(static_cast<std::int64_t>(node.rate * static_cast<double>(now_.time_since_epoch().count()))));
  }

  /// Something that happens to a life of a process: at once, when it wakes, or never.
  void to(std::size_t i, std::uint64_t life, std::function<void()> act) {
    Node& node = nodes_[i];
    if (node.life != life || !node.machine) return;
    if (node.asleep) {
      node.held.push_back([this, i, life, act = std::move(act)] { to(i, life, act); });
      return;
    }
    act();
    drain(i);
  }

  void start(std::size_t i) {
    Node& node = nodes_[i];
    ++node.life;
    log::LogOptions options;
    options.self = {.id = draw_id(), .address = format("sim://{}", i), .public_key = ""};
    options.first_token = draw_id();
    options.own_token_life_s = own_token_life_s_;
    options.append = append_;
    options.records_per_snapshot = records_per_snapshot_;
    options.snapshot_part_bytes = 300;
    options.grace_s = kGrace;
    options.ask_time = kSecond;
    options.broken = broken_;
    node.machine = std::make_unique<LogMachine>(options, local(node));
    node.claimed = false;
    node.batches.clear();
    drain(i);
  }

  void tick(std::size_t i) {
    Node& node = nodes_[i];
    to(i, node.life, [this, i] {
      Node& one = nodes_[i];
      one.machine->on_tick(local(one));
      if (chance(0.02)) look_at_state(i);
      if (chance(0.3)) ask(one);
      // A standby takes a log at once that was given up.
      const bool is_free = one.machine->has_seen_end() && !one.machine->state().owner();
      if (i != kReader && is_free && one.machine->role() == Role::follows && chance(0.2)) {
        one.machine->claim(local(one));
        one.claimed = true;
      }
    });
    at(some(30 * kMillisecond, 90 * kMillisecond), [this, i] { tick(i); });
  }

  /// A client asks for a name.
  void ask(const Node& node) {
    if (node.machine->may_answer(local(node))) oracle_.on_answered(node.machine->state());
  }

  void look_at_state(std::size_t i) {
    const LogMachine& machine = *nodes_[i].machine;
    if (!machine.error()) oracle_.on_state(machine.state());
  }

  // A process sleeps or is killed now and then.
  void trouble(std::size_t i) {
    at(some(2 * kSecond, 25 * kSecond), [this, i] {
      if (quiet_) return;
      Node& node = nodes_[i];
      if (node.machine && !node.asleep) {
        if (chance(0.7)) {
          const Duration how_long = some(kSecond, chance(0.5) ? 8 * kSecond : 40 * kSecond);
          if (chance(0.5)) {
            sleep(i, how_long);
          } else {
            node.sleep_at_look = how_long;
          }
        } else {
          ++outcome_.kills;
          node.machine.reset();
          ++node.life;
          at(some(kSecond, 8 * kSecond), [this, i] {
            if (!nodes_[i].machine) start(i);
          });
        }
      }
      trouble(i);
    });
  }

  void sleep(std::size_t i, Duration how_long) {
    if (nodes_[i].asleep) return;
    ++outcome_.sleeps;
    nodes_[i].asleep = true;
    at(how_long, [this, i] { wake(i); });
  }

  void wake(std::size_t i) {
    Node& node = nodes_[i];
    if (!node.asleep) return;
    node.asleep = false;
    // What a woken process does first is not given: its clock may tick before it reads an answer.
    std::deque<std::function<void()>> held = std::exchange(node.held, {});
    if (chance(0.5)) {
      to(i, node.life, [this, i] { nodes_[i].machine->on_tick(local(nodes_[i])); });
    }
    // A client's question that waited in its socket.
    to(i, node.life, [this, i] { ask(nodes_[i]); });
    for (auto& act : held) act();
  }

  void claim_now_and_then(std::size_t i) {
    at(some(kSecond, 6 * kSecond), [this, i] {
      Node& node = nodes_[i];
      to(i, node.life, [this, i] {
        Node& one = nodes_[i];
        const bool suspects = std::ranges::none_of(nodes_, [](const Node& other) {
          return other.machine && !other.asleep && other.machine->role() == Role::owns;
        });
        if (one.machine->role() == Role::follows && chance(suspects ? 0.8 : quiet_ ? 0.0 : 0.1)) {
          one.machine->claim(local(one));
          one.claimed = true;
        } else if (one.machine->role() == Role::owns && !quiet_) {
          if (chance(0.15)) {
            ++outcome_.ends;
            one.machine->give_up(local(one));
          } else if (chance(0.3)) {
            one.machine->sweep();
          }
        }
      });
      claim_now_and_then(i);
    });
  }

  /// After each event of a machine.
  void drain(std::size_t i) {
    Node& node = nodes_[i];
    LogMachine& machine = *node.machine;
    if (machine.error() && own_violation_.empty()) {
      own_violation_ = "a member stopped: " + machine.error()->message();
      return;
    }
    if (node.claimed && machine.claim_error()) {
      node.claimed = false;
      ++outcome_.refused_claims;
    }
    for (log::Call& call : machine.take_calls()) {
      const log::Ticket ticket = call.ticket;
      const auto* create = std::get_if<log::call::Create>(&call.what);
      const auto* get = std::get_if<log::call::Get>(&call.what);
      if (get != nullptr && get->key.starts_with(log::kRecordPrefix) && node.sleep_at_look) {
        sleep(i, *std::exchange(node.sleep_at_look, std::nullopt));
      }
      const bool appends = create != nullptr && create->key.starts_with(log::kRecordPrefix);
      const bool worst = appends && fault(machine.role() == Role::ending ? 0.6 : 0.03);
      if (appends && machine.role() == Role::claims && fault(0.7)) wake_all_soon();
      const auto told = [this, i, life = node.life, ticket](const Answer& answer) {
        to(i, life, [this, i, ticket, answer] {
          Node& one = nodes_[i];
          one.machine->on_answer(ticket, answer, local(one));
          if (chance(0.3)) ask(one);
        });
      };
      if (!worst) {
        send(std::move(call), told, appends && now_ < node.slow_until ? some(Duration(0), kSecond) : Duration(0));
        continue;
      }
      lose_answer(i, std::move(call), told);
    }
    for (const log::BatchEnd& end : machine.take_ends()) {
      auto told = node.batches.extract(end.batch);
      if (!told.empty()) told.mapped()(end);
    }
  }

  /// The worst moment: the record is made, its answer is lost, and its owner sleeps until another one may own the log.
  void lose_answer(std::size_t i, log::Call call, const std::function<void(const Answer&)>& told) {
    at(some(3 * kMillisecond, 30 * kMillisecond), [this, made = std::move(call)] { apply(made); });
    Answer none;
    none.kind = Answer::Kind::unsettled;
    at(2 * kSecond, [told, none] { told(none); });
    if (nodes_[i].machine->role() != Role::ending) sleep(i, some(kSecond, 25 * kSecond));
  }

  /// Owners that slept wake while another member takes the log, with a slow way to the store.
  void wake_all_soon() {
    for (std::size_t i = 0; i < kNodes; ++i) {
      if (!nodes_[i].asleep) continue;
      at(some(Duration(0), 60 * kMillisecond), [this, i] {
        nodes_[i].slow_until = now_ + kSecond;
        wake(i);
      });
    }
  }

  // Writers, each a client of whichever process owns the log.

  std::optional<std::size_t> some_owner() {
    std::vector<std::size_t> owners;
    for (std::size_t i = 0; i < kNodes; ++i) {
      // One that sleeps still has its socket. The client goes on to another one, or waits.
      if (nodes_[i].machine && !nodes_[i].asleep && nodes_[i].machine->role() == Role::owns) owners.push_back(i);
    }
    if (owners.empty()) return std::nullopt;
    return owners[below(owners.size())];
  }

  using Told = std::function<void(log::BatchEnd::Outcome)>;

  /// Appends the batch, with its number in a value.
  void append(log::Batch batch, const Told& told) {
    const auto owner = some_owner();
    if (!owner) return at(kSecond, [told] { told(log::BatchEnd::Outcome::not_applied); });
    const std::uint64_t id = ++batch_;
    batch.changes.push_back(
        {.key = format("n{}", id % 5), .value = log::Value{.inlined = format("B{}", id), .places = {}}});
    Node& node = nodes_[*owner];
    const auto number = node.machine->append(std::move(batch), local(node));
    if (!number) {
      oracle_.on_not_applied(id);
      return at(kSecond, [told] { told(log::BatchEnd::Outcome::not_applied); });
    }
    node.batches[*number] = [this, id, told](const log::BatchEnd& end) {
      if (end.outcome == log::BatchEnd::Outcome::applied) oracle_.on_applied(id);
      if (end.outcome == log::BatchEnd::Outcome::not_applied) oracle_.on_not_applied(id);
      if (end.outcome == log::BatchEnd::Outcome::unknown) ++outcome_.unknown;
      told(end.outcome);
    };
    drain(*owner);
  }

  void write_on(std::size_t w) {
    at(some(Duration(0), 700 * kMillisecond), [this, w] {
      if (!writers_[w].stopped) write_once(w);
    });
    // A process that is killed tells its clients nothing: each has a turn again all the same.
    at(some(300 * kMillisecond, 1500 * kMillisecond), [this, w] {
      if (!writers_[w].stopped) write_on(w);
    });
  }

  void write_once(std::size_t w) {
    Writer& writer = writers_[w];
    const std::string key = format("k{}", below(12));
    const double what = unit();
    if (what < 0.25)
      return append(
          {.grants = {},
           .changes = {{.key = key, .value = log::Value{.inlined = format("v{}", below(1000)), .places = {}}}},
           .ends = {},
           .condemned = {},
           .forgotten = {}},
          [](auto) {});
    if (what < 0.4)
      return append({.grants = {},
                     .changes = {{.key = key, .value = std::nullopt}},
                     .ends = {},
                     .condemned = {},
                     .forgotten = {}},
                    [](auto) {});
    if (what < 0.5) return grant(w);
    if (what < 0.65) return upload_as_owner(key);
    if (!writer.granted) return;
    if (what < 0.8) {
      const log::Place place = place_of(writer.token);
      upload(place, [this, w, place] {
        if (writers_[w].token == place.object.token) writers_[w].uploaded.push_back(place);
      });
    } else if (!writer.uploaded.empty()) {
      // Perhaps one that was named before, and dropped since.
      name(key, writer.uploaded[below(writer.uploaded.size())]);
    }
  }

  void grant(std::size_t w) {
    Writer& writer = writers_[w];
    log::Batch batch;
    if (writer.granted && chance(0.5)) batch.ends.push_back(writer.token);
    const LogId token = draw_id();
    batch.grants.push_back({.token = token, .life_s = static_cast<std::uint32_t>(5 + below(30))});
    append(batch, [this, w, token](log::BatchEnd::Outcome outcome) {
      if (outcome == log::BatchEnd::Outcome::applied)
        writers_[w] = {.token = token, .granted = true, .uploaded = {}, .stopped = writers_[w].stopped};
    });
  }

  log::Place place_of(const LogId& token) {
    return {.object = {.token = token, .draw = draw()}, .offset = 0, .bytes = 5, .digest = {}};
  }

  void upload_as_owner(const std::string& key) {
    const auto owner = some_owner();
    if (!owner) return;
    const log::Place place = place_of(nodes_[*owner].machine->own_token());
    upload(place, [this, key, place] { name(key, place); });
  }

  void upload(const log::Place& place, const std::function<void()>& done) {
    log::Call call{.ticket = 0,
                   .within = 2 * kSecond,
                   .what = log::call::Create{.key = log::object_key(place.object), .bytes = "bytes"}};
    send(std::move(call), [this, done](const Answer& answer) {
      const bool stands = answer.kind == Answer::Kind::created || answer.kind == Answer::Kind::exists;
      if (stands) at(chance(0.7) ? Duration(0) : some(Duration(0), 20 * kSecond), done);
    });
  }

  void name(const std::string& key, const log::Place& place) {
    append({.grants = {},
            .changes = {{.key = key, .value = log::Value{.inlined = "", .places = {place}}}},
            .ends = {},
            .condemned = {},
            .forgotten = {}},
           [](auto) {});
  }

  // All went quiet: somebody owns the log, works, and leaves nothing behind.
  void check_end() {
    const auto owner = some_owner();
    if (!owner) {
      own_violation_ = "nobody owns the log in the end";
      return;
    }
    bool applied = false;
    append({}, [&applied](log::BatchEnd::Outcome outcome) { applied = outcome == log::BatchEnd::Outcome::applied; });
    log::Batch ends;
    for (const Writer& writer : writers_) {
      if (writer.granted && nodes_[*owner].machine->state().tokens().contains(writer.token))
        ends.ends.push_back(writer.token);
    }
    append(ends, [](auto) {});
    run_until(now_ + 12 * kSecond);
    if (!applied) {
      own_violation_ = "the last owner cannot append";
      return;
    }
    run_until(now_ + 40 * kSecond);
    nodes_[*owner].machine->sweep();
    run_until(now_ + 20 * kSecond);
    oracle_.check_all_swept();
    // A reader that comes late sees the same.
    start(kReader);
    run_until(now_ + 8 * kSecond);
    const std::uint64_t records = oracle_.records();  // The owner may append while the reader looks.
    run_until(now_ + 2 * kSecond);
    const log::LogState& state = nodes_[kReader].machine->state();
    look_at_state(kReader);
    if (state.position() < records)
      own_violation_ = format("a reader got to record {} of {}", state.position(), records);
  }

  void finish() {
    outcome_.violation = !oracle_.violation().empty() ? oracle_.violation() : own_violation_;
    outcome_.events = events_done_;
    outcome_.late_writes = late_writes_;
    outcome_.records = oracle_.records();
    outcome_.batches = oracle_.batches();
    outcome_.shared = oracle_.shared();
    outcome_.challenges = oracle_.challenges();
    outcome_.ownerships = oracle_.ownerships();
    outcome_.snapshots = oracle_.snapshots();
    outcome_.emptied = oracle_.emptied();
    outcome_.erased = oracle_.erased();
    outcome_.answers = oracle_.answers();
  }

  const BrokenRule broken_;
  std::uint64_t records_per_snapshot_ = 0;
  Duration append_{};
  std::uint32_t own_token_life_s_ = 0;
  LogOutcome outcome_;
  Node nodes_[kNodes];
  Writer writers_[kWriters];
  std::uint64_t batch_ = 0;
};

}  // namespace

LogOutcome simulate_log(std::uint64_t seed, log::BrokenRule broken) { return LogWorld(seed, broken).run(); }

}  // namespace freshet::sim
