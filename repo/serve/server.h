// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Offers a repository to other processes, who open it with connect_repository() (repo/serve/remote_repository.h).
///
/// Closed by default, as everything of Freshet that listens (transport/security.h): a Unix socket, whose folder says
/// who may connect, or loopback; any other address takes keys and an allow-list. Everything that comes is verified and
/// bounded; a client that says what no client of ours says is put out.
///
/// The server's own thread never waits for the repository: questions are worked on by a few others.

#include <cstddef>
#include <memory>
#include <string>

#include "core/clock.h"
#include "core/result.h"
#include "repo/repository.h"
#include "transport/security.h"

namespace freshet {

struct RepositoryServerOptions {
  /// "ipc://" and an absolute path, or "tcp://ADDRESS:PORT" as transport/zmq/address.h has it; port "*" takes a free
  /// one.
  std::string address;
  SecurityOptions security;
  std::size_t clients_max = 1024;
  /// What the tensors of puts that are under way may take of this process's memory; those that find no room wait.
  std::uint64_t upload_bytes_max = std::uint64_t{8} << 30;
  /// How tensors may come and go beside the connection: "auto" for the data channels that make sense on this address,
  /// "none", or kinds ("zmq", "auto,shm"). "shm", which "auto" leaves out: lanes, memory that is shared with clients of
  /// this user on this host, for puts and large reads; never where there are keys. "ucx", "zmq": data channels for large reads
  /// (transport/channel/channel.h). The same security: ucx on loopback and trusted fabrics alone, zmq with the keys of
  /// `security` where there are any. What has none of them goes over the same connection as all else.
  std::string channels = "auto";
  /// The memory in which what is read for the channels waits to be sent, taken when it is first needed.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
  Duration lease = std::chrono::seconds(30);  ///< How long what a client is to fetch is kept for it, if not renewed.
  std::size_t readers = 0;  ///< Threads that work on quick questions; 0: as many as the machine has processors, to 8.
};

/// Any thread. Destroying it ends every connection, once what is being worked on is done: that may take as long as a
/// put or a verify takes.
class RepositoryServer {
 public:
  /// `repository` outlives the server. invalid_argument for addresses and options, already_exists for an address that
  /// is taken, unavailable.
  static Result<std::unique_ptr<RepositoryServer>> open(Repository& repository, RepositoryServerOptions options);
  virtual ~RepositoryServer() = default;

  /// As clients on this host are to take it.
  virtual const std::string& address() const = 0;

  /// Lets nobody new in, and waits until everybody has left, or `at_most` has passed: so that a short-lived owner of a
  /// folder does not end in the middle of what others do through it.
  virtual void drain(Duration at_most) = 0;

  struct Stat {
    std::size_t clients = 0;
    std::size_t calls = 0;  ///< That are being worked on.
    std::uint64_t upload_bytes = 0;
    std::size_t leases = 0;           ///< On what clients are fetching.
    std::uint64_t channel_bytes = 0;  ///< That were sent to them.
    std::uint64_t staged_bytes = 0;   ///< Read for them, and not sent yet.
    std::uint64_t lane_bytes = 0;     ///< Of tensors that came by lanes, or were read by them.
    std::uint64_t lane_room = 0;      ///< What lanes have of this host's memory.
    std::uint64_t rejected = 0;       ///< Messages that were none of this protocol.
  };
  virtual Stat stat() const = 0;
};

}  // namespace freshet
