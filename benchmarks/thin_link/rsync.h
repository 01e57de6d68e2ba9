// SPDX-License-Identifier: Apache-2.0
#pragma once

/// rsync as a peer: the trainer writes a safetensors file, the server fetches it from an rsync daemon in the trainer's
/// host and reads it into buffers touched before. Both files lie in memory.

#include <memory>
#include <string>

#include "benchmarks/stream/pair.h"
#include "tests/support/net/lab/network.h"

namespace freshet::benchmarks {

/// One thread at a time.
class Rsync {
 public:
  /// unavailable when there is no rsync. The hosts must stay.
  static Result<std::unique_ptr<Rsync>> start(const lab::Host& trainer, const lab::Host& server,
                                              const std::string& trainer_address);
  ~Rsync();

  /// Milliseconds from the beginning of the file's writing until the server has read it. `whole_file`: without looking
  /// for parts that the server has already.
  Result<double> update(PublisherPeer& publisher, bool whole_file);

 private:
  Rsync(const lab::Host& trainer, const lab::Host& server) : trainer_(trainer), server_(server) {}
  const lab::Host& trainer_;
  const lab::Host& server_;
  std::string url_;
  std::string folder_;  ///< In memory.
  std::unique_ptr<Child> daemon_;
  std::vector<std::byte> read_;
};

}  // namespace freshet::benchmarks
