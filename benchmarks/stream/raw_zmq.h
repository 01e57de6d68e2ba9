// SPDX-License-Identifier: Apache-2.0
#pragma once

/// ZeroMQ as a peer, as a user would send a model with it: chunks from the trainer's memory through a PUSH socket,
/// received into buffers touched before, with CURVE; and a small message through PUB and SUB for news.

#include <memory>
#include <string>

#include "benchmarks/common/statistics.h"
#include "benchmarks/stream/stream_peer.h"

namespace freshet::benchmarks {

struct RawZmqOptions {
  Place sender;
  Place receiver;
  std::string address;  ///< Where the sender listens: "tcp://10.77.0.1:7071".
  std::uint64_t bytes = 0;
  std::uint64_t chunk_bytes = 0;
  bool curve = true;
};

/// One thread at a time.
class RawZmq {
 public:
  static Result<std::unique_ptr<RawZmq>> start(const RawZmqOptions& options);
  /// Milliseconds from the first chunk's sending until the receiver had copied the last one.
  Result<double> transfer();
  /// Microseconds from sending a small message until the receiver has it.
  Result<double> notify();

 private:
  std::unique_ptr<Child> sender_;
  std::unique_ptr<Child> receiver_;
  Result<double> exchange(const std::string& command);
};

/// `--role=raw-zmq-sender` and `--role=raw-zmq-receiver`.
int run_raw_zmq_sender(const std::vector<std::string>& arguments);
int run_raw_zmq_receiver(const std::vector<std::string>& arguments);

}  // namespace freshet::benchmarks
