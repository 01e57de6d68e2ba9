// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which of a publisher's channels a subscriber uses, and why: `shm` where memory can be shared, `nccl` or `ucx`
/// on a trusted fabric, `zmq` elsewhere, `file` where nothing else is left. A channel that failed is avoided for a
/// pause that grows; among those that carry bytes, one that was measured clearly faster lately is preferred (what is
/// measured has the load of the moment in it). A pure value: no I/O, no clock. One thread at a time.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "transport/protocol/messages.h"

namespace freshet::protocol {

class ChannelSelector {
 public:
  struct Options {
    std::uint32_t usable = bit(ChannelKind::shm);  ///< Those that this process can use at all.
    bool trusted_fabric = false;                   ///< Without it `ucx` and `nccl` go no further than this host.
    std::optional<ChannelKind> only;               ///< Asked for by the operator: no other is taken.
    Duration pause_min = std::chrono::seconds(1);  ///< After a first failure; doubles with each.
    Duration pause_max = std::chrono::seconds(60);
    Duration pause_alone_max = std::chrono::seconds(2);  ///< When all that could be used failed lately.
    Duration measured_for = std::chrono::seconds(60);    ///< After that a measurement says nothing any more.
  };
  ChannelSelector() : ChannelSelector(Options{}) {}
  explicit ChannelSelector(Options options) : options_(options) {}

  struct Choice {
    ChannelOffer offer;
    std::string why;    ///< For `freshet top`: "zmq: the publisher is on another host; ucx avoided, it failed: …".
    Time not_before{};  ///< Later than now when all that could be used failed lately.
  };
  /// unsupported when none of the offers can be used, with what was offered and what not.
  Result<Choice> choose(const std::vector<ChannelOffer>& offers, bool same_host, Time now) const;

  void failed(ChannelKind kind, std::string why, Time now);
  void worked(ChannelKind kind);
  /// Another publisher answers: what failed before may work with it.
  void forget_failures();
  /// A fetch of that many bytes took so long. Small ones, which tell of latency alone, are passed over.
  void measured(ChannelKind kind, std::uint64_t bytes, Duration took, Time now);
  /// Bytes per second, of late; 0 when not known.
  double bandwidth(ChannelKind kind, Time now) const;

  const Options& options() const { return options_; }

 private:
  struct Record {
    int failures = 0;  ///< Since it last worked.
    std::string why;
    Time failed_at{};
    Time avoid_until{};
    double bytes_per_second = 0;
    Time measured_at{};
  };
  bool may_use(ChannelKind kind, bool same_host) const;
  std::string reason(ChannelKind kind, bool same_host) const;
  Record& of(ChannelKind kind) { return records_[static_cast<std::size_t>(kind)]; }
  const Record& of(ChannelKind kind) const { return records_[static_cast<std::size_t>(kind)]; }

  Options options_;
  std::array<Record, kChannelKindLast + 1> records_;
};

}  // namespace freshet::protocol
