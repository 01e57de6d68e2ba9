// SPDX-License-Identifier: Apache-2.0
/// What many servers cost the trainer: eight on one host behind one relay, which fetches once for all; a chain of
/// relays from host to host; and what a host behind a relay gets from the trainer itself, which is nothing.

#include "benchmarks/stream/pair.h"
#include "benchmarks/stream/program.h"
#include "benchmarks/stream/route.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr int kWarmUps = 2;
constexpr std::uint64_t kTensors = 16;
constexpr int kNeighbours = 8;
constexpr int kChain = 8;
/// Between hosts of the chain, so that what is measured is the line and not how many processes share two processors.
constexpr std::uint64_t kChainBitsPerSecond = 250'000'000;

using Subscribers = std::vector<std::unique_ptr<SubscriberPeer>>;

/// Hosts of a lab with a trainer in the first one. One thread at a time.
class Site {
 public:
  static Result<std::unique_ptr<Site>> create(const std::vector<std::string>& hosts, std::uint64_t model_bytes) {
    std::unique_ptr<Site> site(new Site());
    FRESHET_ASSIGN(site->network_, lab::Network::create(hosts));
    FRESHET_ASSIGN(site->scratch_, ScratchFolder::create());
    FRESHET_ASSIGN(site->keys_, KeyFolder::create(site->scratch_->path()));
    site->model_bytes_ = model_bytes;
    site->trainer_host_ = hosts.at(0);
    return site;
  }

  lab::Host& host(const std::string& name) { return network_->host(name); }
  PublisherPeer& trainer() { return *trainer_; }
  const std::string& trainer_address() const { return trainer_->address(); }

  Status start_trainer() {
    FRESHET_ASSIGN(const std::string directory, scratch_->folder("host-" + trainer_host_));
    FRESHET_ASSIGN(trainer_, PublisherPeer::start(place(trainer_host_), {.directory = directory,
                                                                         .security = keys_.trainer(),
                                                                         .bytes = model_bytes_,
                                                                         .tensors = kTensors,
                                                                         .listen = listen(trainer_host_)}));
    return {};
  }

  /// Follows `at` and, as a relay, serves again; its address is where others follow it.
  Result<std::unique_ptr<SubscriberPeer>> start_server(const std::string& where, const std::string& at, bool relay,
                                                       std::string* address = nullptr) {
    FRESHET_ASSIGN(const std::string directory, scratch_->folder("host-" + where));
    PeerOptions options{.directory = directory, .security = keys_.server(at != trainer_address()), .at = at};
    options.channel = "zmq";
    if (relay) options.serve = listen(where);
    if (address != nullptr) *address = options.serve;
    return SubscriberPeer::start(place(where), options);
  }

  /// Follows whoever serves the model on that host, in its memory.
  Result<std::unique_ptr<SubscriberPeer>> start_neighbour(const std::string& where) {
    FRESHET_ASSIGN(const std::string directory, scratch_->folder("host-" + where));
    return SubscriberPeer::start(place(where),
                                 {.directory = directory, .security = keys_.server(true), .channel = "shm"});
  }

 private:
  Site() = default;
  Place place(const std::string& name) { return {.space = &host(name).space(), .environment = {}}; }
  std::string listen(const std::string& name) { return format("tcp://{}:{}", host(name).address(), next_port()); }

  std::unique_ptr<lab::Network> network_;
  std::unique_ptr<ScratchFolder> scratch_;
  KeyFolder keys_;
  std::uint64_t model_bytes_ = 0;
  std::string trainer_host_;
  std::unique_ptr<PublisherPeer> trainer_;
};

struct Measured {
  Samples ms;         ///< From publish() until the last subscriber has swapped.
  Samples egress_mb;  ///< Of the trainer's host, for one update.
};

/// Updates until all of `subscribers` serve them.
Result<Measured> measure_updates(Site& site, const lab::Host& trainer, const Subscribers& subscribers,
                                 int repetitions) {
  Measured measured;
  for (int round = -kWarmUps; round < repetitions; ++round) {
    FRESHET_TRY(site.trainer().rewrite(static_cast<std::uint64_t>(round + 100)));
    FRESHET_ASSIGN(const lab::InterfaceCounters before, trainer.counters());
    FRESHET_ASSIGN(const Published published, site.trainer().publish());
    std::int64_t last_ns = 0;
    for (const auto& subscriber : subscribers) {
      FRESHET_ASSIGN(const Swapped swapped, subscriber->wait_for(published.version));
      last_ns = std::max(last_ns, swapped.at_ns);
    }
    FRESHET_ASSIGN(const lab::InterfaceCounters after, trainer.counters());
    if (round == -1) FRESHET_TRY(check_same(site.trainer(), *subscribers.back()));
    if (round < 0) continue;
    measured.ms.add(static_cast<double>(last_ns - published.start_ns) / 1e6);
    measured.egress_mb.add(static_cast<double>(after.sent_bytes - before.sent_bytes) / 1e6);
  }
  return measured;
}

void report_case(const std::string& name, const Measured& measured, Report& report) {
  report.add_row(name, "time_to_fresh", "ms", measured.ms);
  report.add_row(name, "trainer_egress", "MB", measured.egress_mb);
}

struct Plan {
  std::uint64_t model_bytes;
  int repetitions;
};

/// One server on the host, then eight behind a relay there.
Status measure_host(const Plan& plan, Report& report) {
  Measured one;
  {
    FRESHET_ASSIGN(const auto site, Site::create({"trainer", "leaf"}, plan.model_bytes));
    FRESHET_TRY(site->start_trainer());
    Subscribers subscribers(1);
    FRESHET_ASSIGN(subscribers[0], site->start_server("leaf", site->trainer_address(), false));
    FRESHET_ASSIGN(one, measure_updates(*site, site->host("trainer"), subscribers, plan.repetitions));
  }
  report_case("1_server", one, report);
  FRESHET_ASSIGN(const auto site, Site::create({"trainer", "leaf"}, plan.model_bytes));
  FRESHET_TRY(site->start_trainer());
  FRESHET_ASSIGN(const auto relay, site->start_server("leaf", site->trainer_address(), true));
  FRESHET_TRY(site->trainer().publish());
  FRESHET_TRY(relay->wait_for(1));
  Subscribers subscribers(kNeighbours);
  for (auto& subscriber : subscribers) {
    FRESHET_ASSIGN(subscriber, site->start_neighbour("leaf"));
  }
  FRESHET_ASSIGN(const Measured eight, measure_updates(*site, site->host("trainer"), subscribers, plan.repetitions));
  report_case("8_servers_1_relay", eight, report);
  report.set_ratio("egress_one_vs_eight", one.egress_mb.median() / eight.egress_mb.median());
  report.set_ratio("fresh_one_vs_eight", one.ms.median() / eight.ms.median());
  return {};
}

/// A server `relays` hosts away, over lines of equal rate.
Result<Measured> measure_chain_of(int relays, const Plan& plan) {
  std::vector<std::string> hosts = {"trainer"};
  for (int i = 1; i <= relays; ++i) hosts.push_back(format("relay{}", i));
  hosts.push_back("leaf");
  FRESHET_ASSIGN(const auto site, Site::create(hosts, plan.model_bytes));
  for (const std::string& host : hosts) FRESHET_TRY(site->host(host).set_rate(kChainBitsPerSecond));
  FRESHET_TRY(site->start_trainer());
  FRESHET_TRY(site->host("leaf").count_from(site->host("trainer")));
  std::string at = site->trainer_address();
  Subscribers chain;
  for (int i = 1; i <= relays; ++i) {
    std::string next;
    FRESHET_ASSIGN(auto relay, site->start_server(hosts[static_cast<std::size_t>(i)], at, true, &next));
    chain.push_back(std::move(relay));
    at = next;
  }
  Subscribers last(1);
  FRESHET_ASSIGN(last[0], site->start_server("leaf", at, false));
  FRESHET_ASSIGN(Measured measured, measure_updates(*site, site->host("trainer"), last, plan.repetitions));
  if (relays == 0) return measured;
  FRESHET_ASSIGN(const std::uint64_t stray, site->host("leaf").bytes_from(site->host("trainer")));
  if (stray > 0) return fail(Code::failed_precondition, format("{} bytes came from the trainer itself", stray));
  return measured;
}

Status measure_chain(const Plan& plan, Report& report) {
  FRESHET_ASSIGN(const Measured direct, measure_chain_of(0, plan));
  report_case("direct_line", direct, report);
  FRESHET_ASSIGN(const Measured chain, measure_chain_of(kChain, plan));
  report_case("chain_of_8_relays", chain, report);
  report.set_ratio("fresh_direct_vs_chain", direct.ms.median() / chain.ms.median());
  report.add_row("chain_of_8_relays", "trainer_to_leaf", "bytes", 0.0);
  return {};
}

Status measure(const ProgramOptions& options, Report& report) {
  if (!lab::why_no_lab().empty()) {
    report.skip("fanout", lab::why_no_lab());
    return {};
  }
  const int repetitions = options.repetitions_or(3, 9);
  const std::uint64_t mebibytes = options.quick ? 16 : 64;
  const Plan plan{.model_bytes = mebibytes << 20, .repetitions = repetitions};
  report.skip_failed("host", measure_host(plan, report));
  report.skip_failed("chain", measure_chain(plan, report));
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(argc, argv,
                     {.name = "fanout",
                      .about = "Many servers behind relays: the trainer's egress and the time to fresh",
                      .measure = measure});
}
