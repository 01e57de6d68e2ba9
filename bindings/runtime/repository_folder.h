#pragma once

/// Opens the repository that a person named. Today that is a folder; an address (of a repository server) is told apart
/// and answered plainly.
///
/// This room, runtime, is what the ways in share: it turns what a person wrote into the other rooms' parts, and prints,
/// parses arguments and installs signal handlers for nobody. A way in (cli, and whatever comes) is a sibling folder
/// that builds on it.

#include <memory>
#include <string>

#include "core/result.h"
#include "repo/repository.h"

namespace freshet {

enum class RepositoryAccess {
  read,    ///< Beside whoever owns the folder; sees what was durable when it was opened.
  write,   ///< Owns the folder.
  create,  ///< Owns it, and makes it when there is none.
};

/// Errors: unsupported for an address; not_found when the folder holds no repository; unavailable, with the owner's
/// process id where the kernel tells it, when another process owns the folder and `access` is not `read`.
Result<std::unique_ptr<Repository>> open_repository(const std::string& place, RepositoryAccess access);

/// True for what names a server rather than a folder: "tcp://…" and every other SCHEME://, but not "file://".
bool is_repository_address(const std::string& place);

}  // namespace freshet
