// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Opens a repository: the one door for every kind of place.
///
///     place                        repository
///     "/data/runs", "file://…"     a folder of this host
///     "tcp://host:port", "ipc://…" the repository of a server (repo/serve/server.h). If several providers keep one
///                                  repository, any of their addresses names it, or several with commas
///     "rados://POOL/NAME",         a repository in a pool of RADOS or in a bucket: read beside its owner; written
///     "s3://BUCKET/PREFIX"         through the owner if it serves (freshet provider), or as the owner if none lives
///     "memory:"                    a new repository in this process's memory, for tests; it ends with its closing
///
/// A folder belongs to one process at a time, its owner. The owner serves it to this user's other processes, on a
/// socket inside the folder. A process that finds the folder owned goes through the owner, and sees and changes the
/// same repository. So a command works the same beside a long-running one.
///
/// The command line, the Python package, VELOC's interface and C++ programs share this folder, bindings/runtime. It
/// turns a person's text into objects of the other rooms. It never prints, parses no arguments, and installs no signal
/// handlers.

#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "repo/repository.h"
#include "repo/serve/server.h"
#include "transport/security.h"

namespace freshet {

class ProviderRepository;

enum class RepositoryAccess {
  read,    ///< Through the owner of the folder, if there is one; otherwise from the disk.
  write,   ///< Through the owner; if there is none, as the owner.
  create,  ///< As write; makes the folder if there is none.
  own,     ///< Only as the owner; makes the folder if there is none.
};

/// Closes the server that serves the repository to others, then the repository.
class CloseRepository {
 public:
  CloseRepository() = default;
  explicit CloseRepository(ProviderRepository& own, std::unique_ptr<RepositoryServer> server = nullptr)
      : own_(&own), server_(std::move(server)) {}
  void operator()(Repository* repository);
  /// Null if this process owns no folder, or could not serve it (a file system without sockets).
  const RepositoryServer* server() const { return server_.get(); }
  /// The repository's second interface (repo/provider_repository.h), for Freshet's own programs; null unless this
  /// process itself opened the folder or pool, or has the repository in its memory.
  ProviderRepository* own() const { return own_; }

 private:
  ProviderRepository* own_ = nullptr;
  std::unique_ptr<RepositoryServer> server_;
};
using OpenedRepository = std::unique_ptr<Repository, CloseRepository>;

struct RepositoryOptions {
  RepositoryAccess access = RepositoryAccess::read;  ///< For folders and pools.
  SecurityOptions security;                          ///< For addresses, and for the owner of a bucket or pool.
};

/// Any thread. Errors:
///   invalid_argument: the address is malformed; or the place is a server, and the access is `own`.
///   failed_precondition: keys are missing or refused.
///   not_found: the folder holds no repository.
///   unavailable: the folder's owner does not answer, and does not end either (a killed owner is waited for; the
///   message has the owner's process id, if the kernel tells it);
///     no process listens at the address; `own` was asked, and another process owns the folder; or write access was
///     asked to the folder of one provider of several, and no process owns this folder.
Result<OpenedRepository> open_repository(const std::string& place, const RepositoryOptions& options = {});
/// The providers at these addresses.
Result<OpenedRepository> open_repository(const std::vector<std::string>& addresses,
                                         const RepositoryOptions& options = {});

/// Makes this process a provider: serves a repository that it opened itself (a folder with access `own` or as the first
/// to write, a pool, memory) at one more address. The server must end before the repository does. Errors of
/// RepositoryServer::open(); failed_precondition: another process owns the repository.
Result<std::unique_ptr<RepositoryServer>> serve_repository(const OpenedRepository& repository,
                                                           RepositoryServerOptions options);
/// Joins a served, empty repository to the providers at the addresses `others`, of which one must answer: together they
/// keep one repository from then on. `address` is where the others reach this one. A second join changes nothing but
/// the address. failed_precondition: the repository has models already, or another process owns it.
Status join_repository(const OpenedRepository& repository, const std::string& address,
                       const std::vector<std::string>& others, const SecurityOptions& security = {});

/// True: this process itself opened a folder that keeps one provider's part of a repository. The other providers' parts
/// are then not visible.
bool is_part(const OpenedRepository& repository);

/// True if `place` names a server rather than a folder: "tcp://…" and every other SCHEME://, except "file://".
bool is_repository_address(const std::string& place);

}  // namespace freshet
