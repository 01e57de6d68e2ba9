// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Opens the repository that a person named: a folder, or the address of a server (repo/serve/server.h); of several
/// providers that keep one repository, any of their addresses, or several with a comma between them.
///
/// A folder belongs to one process at a time. Whoever owns one offers it to this user's other processes, on a socket
/// inside of the folder; whoever finds the folder owned goes through its owner, and sees and changes the same. So a
/// command works the same beside a long-running one.
///
/// This room, runtime, is what the ways in share: it turns what a person wrote into the other rooms' parts, and prints,
/// parses arguments and installs signal handlers for nobody. A way in (cli, and whatever comes) is a sibling folder
/// that builds on it.

#include <memory>
#include <string>

#include "core/result.h"
#include "repo/repository.h"
#include "repo/serve/server.h"
#include "transport/security.h"

namespace freshet {

enum class RepositoryAccess {
  read,    ///< Through the owner of the folder, if there is one; otherwise as it is on the disk.
  write,   ///< Through the owner, or as it.
  create,  ///< As write; makes the folder when there is none.
  own,     ///< As its owner alone; makes the folder when there is none.
};

/// Ends what offers the repository to others, then the repository.
class CloseRepository {
 public:
  CloseRepository() = default;
  explicit CloseRepository(std::unique_ptr<RepositoryServer> server) : server_(std::move(server)) {}
  void operator()(Repository* repository);
  /// Null when this process does not own a folder, or could not offer it (a file system without sockets).
  const RepositoryServer* server() const { return server_.get(); }

 private:
  std::unique_ptr<RepositoryServer> server_;
};
using OpenedRepository = std::unique_ptr<Repository, CloseRepository>;

/// `security` is for addresses. Errors: not_found when the folder holds no repository; unavailable when its owner does
/// not answer, with the owner's process id where the kernel tells it, when nobody is at the address, when the folder is
/// to be owned and another process does, or when it is to be changed, nobody owns it, and it is one provider of several;
/// those of connect_repository().
Result<OpenedRepository> open_repository(const std::string& place, RepositoryAccess access,
                                         const SecurityOptions& security = {});

/// True for a repository in a folder that keeps one provider's part of what several keep: it knows nothing of the
/// others'.
bool is_part(Repository& repository);

/// True for what names a server rather than a folder: "tcp://…" and every other SCHEME://, but not "file://".
bool is_repository_address(const std::string& place);

}  // namespace freshet
