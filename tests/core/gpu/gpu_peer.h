// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A neighbour in a process of its own (gpu_peer.cc), so that a case can kill it.

#include <fcntl.h>
#include <sys/socket.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/core/gpu/descriptor_passing.h"
#include "tests/core/gpu/gpu_conformance.h"
#include "tests/support/child_process.h"
#include "tests/support/this_build.h"

namespace freshet::gpu {

/// A gpu_peer and the socket to it.
class Peer {
 public:
  Peer(const char* role, const EngineCase& engine, std::uint64_t seed) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    ours_ = FileDescriptor(ends[0]);
    FileDescriptor theirs(ends[1]);
    ::fcntl(theirs.get(), F_SETFD, 0);
    child_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{test::built("tests/gpu_peer"), role, engine.is_host ? "host" : "driver",
                                 std::to_string(seed), std::to_string(theirs.get())});
  }

  int socket() const { return ours_.get(); }
  ChildProcess& process() { return *child_; }

  /// The slab that an exporter passes.
  Received slab(std::uint64_t bytes) {
    send_descriptor(socket(), -1, bytes);
    Received received = receive_descriptor(socket());
    if (!received.came) throw std::runtime_error("the exporter: " + child_->line().value_or("no word"));
    return received;
  }

 private:
  FileDescriptor ours_;
  std::unique_ptr<ChildProcess> child_;
};

}  // namespace freshet::gpu
