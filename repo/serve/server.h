// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Serves a repository to other processes. Programs serve one with serve_repository(), and open a served one with
/// open_repository() (bindings/runtime/repository_folder.h).
///
/// Closed by default, as every listener of Freshet (transport/security.h): a Unix socket (the rights of its folder
/// decide who may connect) or loopback. Any other address needs keys and an allow-list. The server verifies and bounds
/// every message. It disconnects a client that sends a message which no client of Freshet sends.
///
/// The server's own thread never waits for the repository. A few other threads work on questions.

#include <cstddef>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/serve/served_owner.h"
#include "transport/channel_kind.h"
#include "transport/security.h"

namespace freshet {

class ProviderRepository;

struct RepositoryServerOptions {
  /// "ipc://" and an absolute path, or "tcp://ADDRESS:PORT" as transport/zmq/address.h has it; port "*" takes a free
  /// one.
  std::string address;
  SecurityOptions security;
  std::size_t clients_max = 1024;
  /// The most memory of this process for the tensors of running puts. Puts that find no room wait.
  std::uint64_t upload_bytes_max = std::uint64_t{8} << 30;
  /// Data channels for large reads: `ucx` only on loopback and trusted fabrics, `zmq` with the keys of `security`, if
  /// there are any. Not set: the suitable ones for this address. A tensor without a channel uses the connection.
  ChannelChoice channels;
  /// Memory for bytes that were read for the channels and wait to be sent. Taken when it is first needed.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
  Duration lease = std::chrono::seconds(30);  ///< Bytes stay for a client's fetch for this time after a renewal.
  /// Other servers stand by for this one: when it is gone, its clients look for the server that took over.
  bool moves = false;
  std::size_t readers = 0;  ///< Threads for quick questions; 0: one per processor of the machine, 2 to 8.
};

/// Any thread. The destructor finishes the running calls, then ends every connection. This may take as long as a put or
/// a verify takes.
class RepositoryServer {
 public:
  /// `repository` outlives the server. invalid_argument for addresses and options, already_exists for an address that
  /// is taken, unavailable.
  static Result<std::unique_ptr<RepositoryServer>> open(ProviderRepository& repository,
                                                        RepositoryServerOptions options);
  /// Serves no repository, but tells each client who owns it: `owner` is asked for each, by the server's own thread,
  /// and does not wait. Any other question to such a server is unavailable.
  static Result<std::unique_ptr<RepositoryServer>> stand_by(std::function<ServedOwner()> owner,
                                                            RepositoryServerOptions options);
  virtual ~RepositoryServer() = default;

  /// The address for clients on this host.
  virtual const std::string& address() const = 0;

  /// Admits no new clients, and waits until all clients have left, or `at_most` has passed. So a short-lived owner of a
  /// folder does not end in the middle of other processes' calls. The stop token ends the wait. Until::calls_ended:
  /// clients stay, and the wait is for running calls. New ones do not begin, and their clients wait. So clients ask the
  /// successor when this server is gone.
  enum class Until { clients_left, calls_ended };
  virtual void drain(Duration at_most, const std::stop_token& stop = {}, Until until = Until::clients_left) = 0;

  /// Answers nobody from here on, as a stopped process: clients and standbys look for another server at once. Running
  /// calls go on, unheard. For an owner that lost its ownership, and whose calls wait for a store that does not answer.
  virtual void fall_silent() = 0;

  struct Stat {
    std::size_t clients = 0;
    std::size_t calls = 0;  ///< Running calls.
    std::uint64_t upload_bytes = 0;
    std::size_t leases = 0;           ///< Leases on bytes that clients are fetching.
    std::uint64_t channel_bytes = 0;  ///< Bytes sent by the channels.
    std::uint64_t staged_bytes = 0;   ///< Bytes read for the channels and not sent yet.
    std::uint64_t rejected = 0;       ///< Messages that do not belong to this protocol.
  };
  virtual Stat stat() const = 0;
};

}  // namespace freshet
