// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Some hosts at one switch: a namespace each, joined by veth pairs to a bridge in a namespace of its own. Everything
/// goes when the process that made it is gone.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/net/lab/delay_link.h"
#include "tests/support/net/lab/network_namespace.h"

namespace freshet::lab {

/// Bytes that crossed an interface, with all headers.
struct InterfaceCounters {
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_packets = 0;
  std::uint64_t sent_packets = 0;
};

/// One thread at a time.
class Host {
 public:
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }  ///< "10.77.0.2"
  const NetworkNamespace& space() const { return space_; }

  /// Of its interface to the switch, or of another.
  Result<InterfaceCounters> counters(const std::string& interface = "eth0") const;

  /// What it sends is slowed down to this rate (a token bucket).
  Status set_rate(std::uint64_t bits_per_second);
  /// So large a share of the packets that come for it is lost. 0 ends it; 1 is a cable that is cut.
  Status set_loss(double share);
  /// How many packets were lost so.
  Result<std::uint64_t> lost_packets() const;
  /// Counts from now on what comes from that host, by whatever way.
  Status count_from(const Host& other);
  Result<std::uint64_t> bytes_from(const Host& other) const;
  /// Whether the kernel may hand over segments of 64 KiB, as it does by default. Without, each packet is one frame, as
  /// on a real wire, and each is lost on its own.
  Status set_big_packets(bool on);

 private:
  friend class Network;
  Host(std::string name, std::string address, NetworkNamespace space)
      : name_(std::move(name)), address_(std::move(address)), space_(std::move(space)) {}
  std::string name_;
  std::string address_;
  NetworkNamespace space_;
};

/// One thread at a time.
class Network {
 public:
  static Result<std::unique_ptr<Network>> create(const std::vector<std::string>& host_names);

  /// REQUIRES: it was named at create().
  Host& host(const std::string& name) { return *hosts_.at(name); }

  /// A further, long line between two of the hosts; which network they use follows from the address that they connect
  /// to: theirs at this line's ends is in the options (10.78.0.1 and 10.78.0.2 unless said otherwise).
  Result<std::unique_ptr<DelayLink>> add_line(const std::string& first, const std::string& second,
                                              DelayLinkOptions options);

 private:
  explicit Network(NetworkNamespace bridge) : bridge_(std::move(bridge)) {}
  Status plug_in(const Host& host, const std::string& port);
  NetworkNamespace bridge_;
  std::map<std::string, std::unique_ptr<Host>> hosts_;
};

}  // namespace freshet::lab
