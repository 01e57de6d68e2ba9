// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The data channels of a repository's server, and the leases that are fetched through them. Nothing of it exists, no
/// port and no memory, before the first client asks for a lease; unless the channels were named, which is checked at
/// once. Private to this folder.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/provider_repository.h"
#include "repo/serve/server/read_desk.h"
#include "transport/channel/channel.h"
#include "transport/security/credentials.h"
#include "transport/security/socket_owner.h"

namespace freshet::rpc {

/// Any thread.
class BulkService {
 public:
  struct Options {
    ChannelChoice channels;  ///< As RepositoryServerOptions has it.
    std::string address;     ///< Of the server's socket, as it was bound.
    bool trusted_fabric = false;
    Neighbours neighbours = Neighbours::same_user;
    std::optional<ServerCredentials> credentials;
    ReadDesk::Limits limits;
  };
  /// `repository` outlives it. invalid_argument for channels that cannot be offered, and what a named one answers.
  static Result<std::unique_ptr<BulkService>> open(const ProviderRepository& repository, Options options);
  BulkService(const ProviderRepository& repository, Options options, std::uint64_t seed);
  ~BulkService();

  void begin_session(SessionId session, std::string_view key = {}) { desk_.begin_session(session, key); }
  void end_session(SessionId session);

  struct Lent {
    LeaseId lease = 0;
    VersionNumber version = 0;
    Duration lifetime{};
    std::uint64_t piece_bytes = 0;  ///< Of a piece at most.
    std::vector<protocol::ChannelOffer> channels;
  };
  /// unsupported when this server has no channels; the rest as ReadDesk::lend().
  Result<Lent> lend(SessionId session, ReadDesk::Subject subject);
  Status renew(SessionId session, LeaseId lease);
  void end(SessionId session, LeaseId lease) { desk_.end(session, lease); }
  /// About each second.
  void on_tick(Time now);

  std::uint64_t bytes_sent() const;
  ReadDesk::Stat stat() const { return desk_.stat(); }

 private:
  Status start() FRESHET_EXCLUDES(start_mutex_);
  void look_again();

  const Options options_;
  ReadDesk desk_;
  Mutex start_mutex_;
  std::optional<Status> started_ FRESHET_GUARDED_BY(start_mutex_);
  /// Filled once; read when `is_started_` says so. Destroyed before the desk.
  std::vector<std::unique_ptr<channel::ChannelServer>> channels_;
  std::atomic<bool> is_started_{false};
};

}  // namespace freshet::rpc
