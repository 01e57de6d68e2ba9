// SPDX-License-Identifier: Apache-2.0
#include "tests/support/net/lab/network.h"

#include <fstream>
#include <sstream>

#include "core/base/format.h"

namespace freshet::lab {
namespace {

constexpr const char* kLossChain = "LOSS";
/// A buffer of packets that large sends at the rate without pauses; what would wait longer than this is lost.
constexpr const char* kTokenBurst = "256kb";
constexpr const char* kTokenWait = "100ms";

Result<InterfaceCounters> parse_counters(const std::string& interface) {
  std::ifstream file("/proc/thread-self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t begin = line.find_first_not_of(' ');
    if (colon == std::string::npos || line.substr(begin, colon - begin) != interface) continue;
    std::istringstream numbers(line.substr(colon + 1));
    std::uint64_t skipped = 0;
    InterfaceCounters counters;
    numbers >> counters.received_bytes >> counters.received_packets;
    for (int i = 0; i < 6; ++i) numbers >> skipped;
    if (numbers >> counters.sent_bytes >> counters.sent_packets) return counters;
  }
  return fail(Code::not_found, format("no counters of interface {}", interface));
}

}  // namespace

Result<InterfaceCounters> Host::counters(const std::string& interface) const {
  Result<InterfaceCounters> counters = InterfaceCounters{};
  FRESHET_TRY(space_.run([&]() -> Status {
    counters = parse_counters(interface);
    return {};
  }));
  return counters;
}

Status Host::set_rate(std::uint64_t bits_per_second) {
  return space_.command({"tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate",
                         format("{}bit", bits_per_second), "burst", kTokenBurst, "latency", kTokenWait});
}

Status Host::set_loss(double share) {
  FRESHET_TRY(space_.command({"iptables", "-F", kLossChain}));
  if (share <= 0) return {};
  return space_.command({"iptables", "-A", kLossChain, "-i", "eth0", "-m", "statistic", "--mode", "random",
                         "--probability", format("{:.6f}", share), "-j", "DROP"});
}

Result<std::uint64_t> Host::lost_packets() const {
  FRESHET_ASSIGN(const std::string table, space_.output_of({"iptables", "-L", kLossChain, "-v", "-x", "-n"}));
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::uint64_t packets = 0;
    if (line.find(" DROP ") != std::string::npos && words >> packets) return packets;
  }
  return 0;
}

Status Host::count_from(const Host& other) {
  return space_.command({"iptables", "-I", "INPUT", "-s", other.address()});
}

Result<std::uint64_t> Host::bytes_from(const Host& other) const {
  FRESHET_ASSIGN(const std::string table, space_.output_of({"iptables", "-L", "INPUT", "-v", "-x", "-n"}));
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    if (line.find(" " + other.address() + " ") != std::string::npos && words >> packets >> bytes) return bytes;
  }
  return fail(Code::not_found, format("{} does not count what comes from {}", name_, other.name()));
}

Status Host::set_big_packets(bool on) {
  const std::string segments = on ? "65535" : "1";
  return space_.command({"ip", "link", "set", "eth0", "gso_max_segs", segments});
}

Result<std::unique_ptr<Network>> Network::create(const std::vector<std::string>& host_names) {
  FRESHET_ASSIGN(NetworkNamespace bridge, NetworkNamespace::create());
  std::unique_ptr<Network> network(new Network(std::move(bridge)));
  FRESHET_TRY(network->bridge_.command({"ip", "link", "add", "switch0", "type", "bridge"}));
  FRESHET_TRY(network->bridge_.command({"ip", "link", "set", "switch0", "up"}));
  for (const std::string& name : host_names) {
    FRESHET_ASSIGN(NetworkNamespace space, NetworkNamespace::create());
    const std::size_t number = network->hosts_.size() + 1;
    std::unique_ptr<Host> host(new Host(name, format("10.77.0.{}", number), std::move(space)));
    FRESHET_TRY(network->plug_in(*host, format("port{}", number)));
    network->hosts_[name] = std::move(host);
  }
  return network;
}

Status Network::plug_in(const Host& host, const std::string& port) {
  FRESHET_TRY(bridge_.command(
      {"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.space().path()}));
  FRESHET_TRY(bridge_.command({"ip", "link", "set", port, "master", "switch0", "up"}));
  FRESHET_TRY(host.space().command({"ip", "address", "add", host.address() + "/24", "dev", "eth0"}));
  FRESHET_TRY(host.space().command({"ip", "link", "set", "eth0", "up"}));
  FRESHET_TRY(host.space().command({"iptables", "-N", kLossChain}));
  return host.space().command({"iptables", "-I", "INPUT", "-j", kLossChain});
}

Result<std::unique_ptr<DelayLink>> Network::add_line(const std::string& first, const std::string& second,
                                                     DelayLinkOptions options) {
  if (options.first_address.empty()) options.first_address = "10.78.0.1";
  if (options.second_address.empty()) options.second_address = "10.78.0.2";
  return DelayLink::open(host(first).space(), host(second).space(), std::move(options));
}

}  // namespace freshet::lab
