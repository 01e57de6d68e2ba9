// SPDX-License-Identifier: Apache-2.0
/// The machines of repo/cluster/protocol.h, many at a time, over providers whose every call may be lost, done without
/// an answer, or done late, and whose drivers die at any point; against what must hold at every moment, and what must
/// be left when all is settled.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <variant>

#include "tests/repo/cluster/cluster_world.h"

namespace freshet {
namespace {

using cluster::Call;
using cluster::Reply;

/// A rule that the simulation breaks, to see that it would be noticed.
enum class Sabotage { none, settle_only_asks, refer_not_at_all };

class ClusterRun {
 public:
  ClusterRun(std::uint64_t seed, Sabotage sabotage)
      : random_(seed), sabotage_(sabotage), world_(1 + static_cast<int>(seed % 4)) {}

  /// What went wrong first; empty when nothing did.
  std::string run(int steps) {
    for (int step = 0; step < steps && wrong_.empty(); ++step) {
      act();
      if (step % 8 == 0) check_references();
    }
    if (wrong_.empty()) finish();
    return wrong_;
  }

 private:
  struct Put {
    TestVersion version;
    Placed placed;
    cluster::PutMachine machine;
  };
  struct Retire {
    VersionId id;
    cluster::RetireMachine machine;
  };
  struct Settle {
    cluster::SettleMachine machine;
  };
  struct Withdraw {
    VersionId id;
    cluster::RetireMachine machine;
  };
  struct Client {
    std::variant<Put, Retire, Settle, Withdraw> does;
    std::vector<Call> ready;
  };
  /// A call that was told to be lost and comes all the same.
  struct Late {
    std::shared_ptr<Client> client;
    Call call;
  };

  std::size_t dice(std::size_t sides) { return std::uniform_int_distribution<std::size_t>(0, sides - 1)(random_); }

  void act() {
    const std::size_t what = dice(100);
    if (what < 12) {
      begin_put();
    } else if (what < 18) {
      begin_retire();
    } else if (what < 20) {
      begin_settle();
    } else if (what < 22) {
      if (!world_.at(dice(world_.size())).gc({}, {})) wrong_ = "gc failed";
    } else if (what < 24 && !clients_.empty()) {
      clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(dice(clients_.size())));  // It dies.
    } else if (what < 28 && !late_.empty()) {
      const std::size_t which = dice(late_.size());
      const Late late = late_[which];
      late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(which));
      (void)execute(*late.client, late.call);
    } else if (!clients_.empty()) {
      deliver(clients_[dice(clients_.size())]);
    }
  }

  void begin_put() {
    if (clients_.size() > 8) return;
    const TestVersion* ancestor = stored_.empty() || dice(8) == 0 ? nullptr : &stored_[dice(stored_.size())];
    const VersionId id = test_id(++last_id_);
    std::vector<std::uint32_t> changed;
    for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      if (dice(3) == 0) changed.push_back(tensor);
    }
    TestVersion version = make_version("net", id, architecture_, ancestor, changed, random_);
    version.manifest.name.number = last_id_;
    const Placement& placement = world_.placement();
    cluster::PutMachine::Plan plan{.version = id, .attempt = random_(), .home = placement.home(id)};
    Placed placed{.placement = 1, .attempt = plan.attempt};
    std::map<std::size_t, std::vector<SegmentName>> inherited;
    for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      const SegmentName& owner = version.manifest.owners[tensor];
      const std::size_t at = placement.home(owner.writer);
      if (at == plan.home) continue;
      placed.elsewhere.push_back(tensor);
      inherited[at].push_back(owner);
    }
    for (const auto& [at, segments] : inherited) plan.inherited.push_back({at, segments});
    Put put{std::move(version), std::move(placed), cluster::PutMachine(plan)};
    auto client = std::make_shared<Client>(Client{std::move(put), {}});
    client->ready = std::get<Put>(client->does).machine.start();
    clients_.push_back(std::move(client));
  }

  void begin_retire() {
    if (stored_.empty() || clients_.size() > 8) return;
    const TestVersion& version = stored_[dice(stored_.size())];
    const VersionId id = version.manifest.id;
    const std::size_t home = world_.placement().home(id);
    const auto record = world_.at(home).get(version.manifest.name);
    if (!record) return;
    std::set<std::size_t> others;
    for (const std::uint32_t tensor : record->placed->elsewhere) {
      others.insert(world_.placement().home(record->manifest.owners[tensor].writer));
    }
    retiring_.insert(id);
    Retire retire{id, cluster::RetireMachine(id, record->placed->attempt, home,
                                             std::vector<std::size_t>(others.begin(), others.end()))};
    auto client = std::make_shared<Client>(Client{std::move(retire), {}});
    client->ready = std::get<Retire>(client->does).machine.start();
    clients_.push_back(std::move(client));
  }

  void begin_settle() {
    const std::size_t provider = dice(world_.size());
    std::vector<cluster::SettleMachine::Referrer> list;
    const auto referrers = world_.at(provider).referrers();
    for (const ExternalReferrer& referrer : *referrers) {
      list.push_back({referrer.version, referrer.attempt, world_.placement().index_of(referrer.home)});
    }
    auto client = std::make_shared<Client>(Client{Settle{cluster::SettleMachine(provider, std::move(list))}, {}});
    client->ready = std::get<Settle>(client->does).machine.start();
    clients_.push_back(std::move(client));
  }

  void deliver(const std::shared_ptr<Client>& client) {
    if (client->ready.empty()) {
      const std::shared_ptr<Client> done = client;  // Another one may begin where it ends.
      finished(*done);
      clients_.erase(std::find(clients_.begin(), clients_.end(), done));
      return;
    }
    const std::size_t which = dice(client->ready.size());
    const Call call = client->ready[which];
    client->ready.erase(client->ready.begin() + static_cast<std::ptrdiff_t>(which));
    const std::size_t fate = healthy_ ? 0 : dice(20);
    Reply reply{.error = Error(dice(4) == 0 ? Code::cancelled : Code::unavailable, "no answer")};
    if (fate == 1) late_.push_back({client, call});
    if (fate == 2) {
      (void)execute(*client, call);
    } else if (fate > 3 || fate == 0) {
      // Who hears nothing for a while asks again.
      if (fate == 4) (void)execute(*client, call);
      reply = execute(*client, call);
    }
    std::vector<Call> next = std::visit([&](auto& does) { return does.machine.on_reply(call, reply); }, client->does);
    for (Call& one : next) client->ready.push_back(std::move(one));
  }

  static Reply reply_of(const auto& answer) { return answer ? Reply{} : Reply{.error = answer.error()}; }

  Reply execute(Client& client, const Call& call) {
    ProviderRepository& at = world_.at(call.provider);
    switch (call.kind) {
      case Call::Kind::refer:
        if (sabotage_ == Sabotage::refer_not_at_all && dice(4) == 0) return {};
        return reply_of(
            at.add_referrer({.version = call.version,
                             .attempt = call.attempt,
                             .home = world_.placement().providers()[world_.placement().home(call.version)].id,
                             .segments = call.segments}));
      case Call::Kind::commit: {
        const Put& put = std::get<Put>(client.does);
        const auto stored = at.put(put.version.manifest, put.version.bytes_of(),
                                   {.placed = put.placed, .ancestor_may_be_retired = true});
        if (stored) exists(put.version);
        return reply_of(stored);
      }
      case Call::Kind::settle: {
        if (sabotage_ == Sabotage::settle_only_asks) {
          const auto record = at.get({.model = "net", .number = call.version.sequence});
          return {.there = record && record->placed->attempt == call.attempt};
        }
        const auto there = at.settle_put(call.version, call.attempt);
        if (!there) return {.error = there.error()};
        return {.there = *there};
      }
      case Call::Kind::drop: return reply_of(at.drop_referrer(call.version, call.attempt));
      case Call::Kind::retire: {
        const auto retired = at.retire({.model = "net", .number = call.version.sequence}, {});
        if (retired) live_.erase(call.version);
        return reply_of(retired);
      }
      case Call::Kind::number: break;
    }
    return {};
  }

  void exists(const TestVersion& version) {
    if (withdrawn_.contains(version.manifest.id)) wrong_ = "what was withdrawn came back";
    live_[version.manifest.id] = version;
    stored_.push_back(version);
  }

  // Whoever put it knows it under another identity by now.
  void begin_withdraw(const Put& put) {
    const VersionId id = put.version.manifest.id;
    std::set<std::size_t> others;
    for (const std::uint32_t tensor : put.placed.elsewhere) {
      others.insert(world_.placement().home(put.version.manifest.owners[tensor].writer));
    }
    retiring_.insert(id);
    Withdraw withdraw{id, cluster::RetireMachine(id, put.placed.attempt, world_.placement().home(id),
                                                 std::vector<std::size_t>(others.begin(), others.end()),
                                                 /*is_withdrawal=*/true)};
    auto client = std::make_shared<Client>(Client{std::move(withdraw), {}});
    client->ready = std::get<Withdraw>(client->does).machine.start();
    clients_.push_back(std::move(client));
  }

  // What a client was told must be so.
  void finished(const Client& client) {
    if (const Withdraw* withdraw = std::get_if<Withdraw>(&client.does)) {
      if (!withdraw->machine.done()) wrong_ = "a withdrawal ended without an end";
      if (!withdraw->machine.error() && live_.contains(withdraw->id)) wrong_ = "what was withdrawn is there";
      if (!withdraw->machine.error()) withdrawn_.insert(withdraw->id);
    }
    const Put* put = std::get_if<Put>(&client.does);
    if (put == nullptr) return;
    if (put->machine.is_undecided() && dice(2) == 0) begin_withdraw(*put);
    const VersionId id = put->version.manifest.id;
    if (!put->machine.done()) wrong_ = "a put ended without an end";
    if (!put->machine.error() && !live_.contains(id) && !retiring_.contains(id)) wrong_ = "an acknowledged put is gone";
    if (put->machine.error() && !Reply{.error = put->machine.error()}.unknown() && live_.contains(id)) {
      wrong_ = "a put that was refused is there";
    }
  }

  // What every live version names is stored, and known to be named where it is.
  void check_references() {
    std::vector<std::set<std::pair<VersionId, SegmentName>>> named(world_.size());
    for (std::size_t i = 0; i < world_.size(); ++i) {
      const auto referrers = world_.at(i).referrers();
      for (const ExternalReferrer& referrer : *referrers) {
        for (const SegmentName& segment : referrer.segments) named[i].emplace(referrer.version, segment);
      }
    }
    for (const auto& [id, version] : live_) {
      const std::size_t home = world_.placement().home(id);
      for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        const SegmentName& owner = version.manifest.owners[tensor];
        const std::size_t at = world_.placement().home(owner.writer);
        if (at != home && !named[at].contains({id, owner})) wrong_ = to_string(id) + " names what nobody knows of";
        std::vector<std::byte> out(version.bytes[tensor].size());
        const std::vector<ProviderRepository::SegmentRead> read{
            {.segment = owner, .digest = version.manifest.digests[tensor], .out = out}};
        if (!world_.at(at).read_segments(read)) wrong_ = to_string(id) + " lost " + to_string(owner);
        if (!wrong_.empty()) return;
      }
    }
  }

  // All come to their end, all is settled, and exactly what is live is left.
  void finish() {
    healthy_ = true;
    while (!clients_.empty() && wrong_.empty()) deliver(clients_.front());
    for (const Late& late : late_) (void)execute(*late.client, late.call);
    late_.clear();
    check_references();
    if (!wrong_.empty()) return;
    const auto repository = world_.open();
    if (const auto collected = repository->gc({}, {}); !collected) wrong_ = collected.error().message();
    std::set<SegmentName> unique;
    std::uint64_t bytes = 0;
    std::set<std::pair<VersionId, std::size_t>> expected;
    for (const auto& [id, version] : live_) {
      for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        const SegmentName& owner = version.manifest.owners[tensor];
        if (unique.insert(owner).second) bytes += version.bytes[tensor].size();
        const std::size_t at = world_.placement().home(owner.writer);
        if (at != world_.placement().home(id)) expected.emplace(id, at);
      }
      const auto read = read_all(*repository, version.manifest.name);
      if (!read || *read != version.bytes) wrong_ = to_string(id) + " is not read back";
    }
    std::set<std::pair<VersionId, std::size_t>> referrers;
    for (std::size_t i = 0; i < world_.size(); ++i) {
      const auto all = world_.at(i).referrers();
      for (const ExternalReferrer& referrer : *all) referrers.emplace(referrer.version, i);
    }
    const auto stat = repository->stat();
    if (referrers != expected) wrong_ = "references are left over, or missing";
    if (stat->live_bytes != bytes) wrong_ = format("{} bytes are kept, {} are needed", stat->live_bytes, bytes);
    if (stat->versions != live_.size()) wrong_ = "other versions are live";
    check_match(*repository);
  }

  // All have one architecture: the best is the best by quality, commit and name, over all providers.
  void check_match(ClusterRepository& repository) {
    const auto answer = repository.match({.graph = MatchGraph::of(*architecture_), .top = 1000});
    if (!answer || answer->top.size() != live_.size()) {
      wrong_ = "a match misses versions";
      return;
    }
    for (std::size_t i = 1; i < answer->top.size(); ++i) {
      if (better(Objective::layers, answer->top[i], answer->top[i - 1])) wrong_ = "a match is out of order";
    }
  }

  static constexpr std::uint32_t kTensors = 5;
  std::mt19937_64 random_;
  const Sabotage sabotage_;
  ClusterWorld world_;
  std::shared_ptr<const Architecture> architecture_ = test_architecture({8, 16, 24, 32, 40});
  std::uint64_t last_id_ = 0;
  bool healthy_ = false;
  std::vector<std::shared_ptr<Client>> clients_;
  std::vector<Late> late_;
  std::vector<TestVersion> stored_;        ///< Ever.
  std::map<VersionId, TestVersion> live_;  ///< As the providers did it, told or not.
  std::set<VersionId> retiring_;
  std::set<VersionId> withdrawn_;
  std::string wrong_;
};

TEST(ClusterSimulation, NothingThatIsNamedIsLostAndNothingIsLeftOver) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    EXPECT_EQ(ClusterRun(seed, Sabotage::none).run(600), "") << "seed " << seed;
  }
}

bool is_noticed(Sabotage sabotage) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    if (!ClusterRun(seed, sabotage).run(600).empty()) return true;
  }
  return false;
}

TEST(ClusterSimulation, NoticesWhenSettlingOnlyAsks) { EXPECT_TRUE(is_noticed(Sabotage::settle_only_asks)); }
TEST(ClusterSimulation, NoticesWhenReferencesAreNotMade) { EXPECT_TRUE(is_noticed(Sabotage::refer_not_at_all)); }

}  // namespace
}  // namespace freshet
