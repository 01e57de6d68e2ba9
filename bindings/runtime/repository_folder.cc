// SPDX-License-Identifier: Apache-2.0
#include "bindings/runtime/repository_folder.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "bindings/runtime/bucket_place.h"
#include "bindings/runtime/ending_process.h"
#include "bindings/runtime/folder_socket.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/text.h"
#include "core/words/classic_locale.h"
#include "repo/cluster/placement/membership.h"
#include "repo/cluster/providers.h"
#include "repo/provider_repository.h"
#include "repo/serve/remote_repository.h"

namespace freshet {
namespace {

/// Who holds RocksDB's lock on the folder; nothing when it is on another host, or was just let go. Read from the
/// kernel's table: opening and closing the lock file here would let go of a lock that this very process holds.
std::optional<long> owner_of(const std::string& folder) {
  struct stat file {};
  if (::stat((folder + "/LOCK").c_str(), &file) != 0) return std::nullopt;
  const std::string wanted =
      format("{:02x}:{:02x}:{}", gnu_dev_major(file.st_dev), gnu_dev_minor(file.st_dev), file.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    WordStream words(line);
    std::string number;
    std::string kind;
    std::string nature;
    std::string mode;
    std::string place;
    long process = 0;
    if (words >> number >> kind >> nature >> mode >> process >> place && place == wanted && process > 0) return process;
  }
  return std::nullopt;
}

Error with_owner(Error error, const std::string& folder) {
  const bool is_told = error.message().find("owns it") != std::string::npos;  // By the connection to the owner.
  if (error.code() != Code::unavailable || is_told) return error;
  const std::optional<long> owner = owner_of(folder);
  if (!owner) return error;
  return Error(Code::unavailable, format("{} (process {} owns it)", error.message(), *owner));
}

constexpr std::string_view kMemoryPlace = "memory:";
constexpr Duration kOwnerComesUp = std::chrono::seconds(2);
constexpr Duration kOwnerEnds = std::chrono::minutes(2);
/// Those who came through this process's folder may finish what they do.
constexpr Duration kLastGuests = std::chrono::seconds(2);
constexpr Duration kLookAgain = std::chrono::milliseconds(20);

Result<OpenedRepository> open_here(std::unique_ptr<Backend> backend) {
  FRESHET_ASSIGN(std::unique_ptr<ProviderRepository> repository, ProviderRepository::open(std::move(backend), {}));
  ProviderRepository& own = *repository;
  return OpenedRepository(repository.release(), CloseRepository(own));
}

Result<OpenedRepository> open_read_only(const std::string& folder) {
  FRESHET_ASSIGN(std::unique_ptr<Backend> backend,
                 open_rocks_backend({.folder = folder, .create = false, .read_only = true}));
  return open_here(std::move(backend));
}

/// What is changed behind the back of the other providers of a repository, they would not know.
Status check_is_whole(const ProviderRepository& repository, const std::string& folder) {
  const Result<Placement> placement = cluster::placement_at(repository);
  if (!placement && placement.error().code() == Code::not_found) return {};
  if (!placement) return fail(Error(placement.error()).with_context(folder));
  return fail(Code::unavailable, format("{} is one provider of several, and it does not run: start it (freshet "
                                        "provider --repo {}), then change the repository through it",
                                        folder, folder));
}

/// Offers what this process owns. That it cannot be offered is no reason not to use it.
OpenedRepository offered(OpenedRepository repository, const std::string& folder) {
  const Result<std::string> address = folder_socket(folder);
  if (!address || !prepare_folder_socket(folder)) return repository;
  ProviderRepository& own = *repository.get_deleter().own();
  auto server = RepositoryServer::open(own, {.address = *address, .security = {}});
  if (!server) return repository;
  return OpenedRepository(repository.release(), CloseRepository(own, std::move(*server)));
}

Result<OpenedRepository> connect(const std::string& address, const SecurityOptions& security) {
  // One provider of several leads to all.
  FRESHET_ASSIGN(std::unique_ptr<Repository> repository, open_providers(address, {.security = security}));
  return OpenedRepository(repository.release(), CloseRepository());
}

Result<OpenedRepository> through_owner(const std::string& folder) {
  FRESHET_ASSIGN(const std::string address, folder_socket(folder));
  Result<OpenedRepository> repository = connect(address, {});
  if (!repository) return fail(with_owner(std::move(repository).error().with_context(folder), folder));
  return repository;
}

Result<OpenedRepository> open_to_read(const std::string& folder) {
  if (is_folder_offered(folder)) {
    Result<OpenedRepository> repository = through_owner(folder);
    // An owner that is stopped, or ends just now: what is durable can be read all the same.
    if (repository || repository.error().code() == Code::unsupported) return repository;
  }
  return open_read_only(folder);
}

Result<OpenedRepository> open_to_write(const std::string& folder, RepositoryAccess access) {
  const Time began = system_clock().now();
  // An owner that ends answers nobody any more, and soon lets go of the folder.
  const auto is_late = [&] {
    const std::optional<long> owner = owner_of(folder);
    return system_clock().now() - began >= (owner && is_ending(*owner) ? kOwnerEnds : kOwnerComesUp);
  };
  bool is_last_look = false;
  const bool create = access == RepositoryAccess::create || access == RepositoryAccess::own;
  for (;;) {
    Result<std::unique_ptr<Backend>> backend =
        open_rocks_backend({.folder = folder, .create = create, .read_only = false});
    if (backend) {
      FRESHET_ASSIGN(OpenedRepository repository, open_here(std::move(*backend)));
      ProviderRepository& own = *repository.get_deleter().own();
      if (access != RepositoryAccess::own) FRESHET_TRY(check_is_whole(own, folder));
      // An owner by its trade is one for long. A command that owns the folder while it runs is to be quick.
      if (access == RepositoryAccess::own) own.prepare_match();
      return offered(std::move(repository), folder);
    }
    const bool owned = backend.error().code() == Code::unavailable;
    if (!owned || access == RepositoryAccess::own) return fail(with_owner(std::move(backend).error(), folder));
    if (is_folder_offered(folder)) {
      Result<OpenedRepository> repository = through_owner(folder);
      const bool gone = !repository && repository.error().code() == Code::unavailable;
      if (!gone || is_last_look) return repository;
    }
    if (is_last_look) return fail(with_owner(std::move(backend).error(), folder));
    // Its owner may be about to offer it, or to end: while it was asked in vain, it may have let go of the folder.
    is_last_look = is_late();
    FRESHET_TRY(Interruption::check());
    std::this_thread::sleep_for(kLookAgain);
  }
}

Result<OpenedRepository> open_in_bucket(const std::string& place, const RepositoryOptions& options) {
  FRESHET_ASSIGN(OpenedBucket opened, open_bucket(place, options.access, options.security));
  if (opened.through) return OpenedRepository(opened.through.release(), CloseRepository());
  return open_here(std::move(opened.backend));
}

Result<std::string> place_of(const std::vector<std::string>& addresses) {
  std::string place;
  for (const std::string& address : addresses) {
    if (!is_repository_address(address) || address.find(',') != std::string::npos) {
      return fail(Code::invalid_argument,
                  format("\"{}\" is no address of a provider: give tcp://HOST:PORT or ipc://PATH", shown(address)));
    }
    place += (place.empty() ? "" : ",") + address;
  }
  if (place.empty()) return fail(Code::invalid_argument, "open a repository: no address was given");
  return place;
}

Result<ProviderRepository*> owned(const OpenedRepository& repository, std::string_view what) {
  ProviderRepository* const own = repository ? repository.get_deleter().own() : nullptr;
  if (own != nullptr) return own;
  return fail(Code::failed_precondition,
              format("{} a repository: another process owns it; open it with RepositoryAccess::own", what));
}

}  // namespace

void CloseRepository::operator()(Repository* repository) {
  if (server_) server_->drain(kLastGuests);
  server_.reset();
  delete repository;
}

bool is_part(const OpenedRepository& repository) {
  const ProviderRepository* const own = repository.get_deleter().own();
  return own != nullptr && cluster::placement_at(*own).has_value();
}

bool is_repository_address(const std::string& place) {
  return place.find("://") != std::string::npos && !place.starts_with("file://");
}

Result<OpenedRepository> open_repository(const std::string& place, const RepositoryOptions& options) {
  if (place == kMemoryPlace) return open_here(make_memory_backend());
  if (is_store_place(place)) return open_in_bucket(place, options);
  if (is_repository_address(place)) {
    if (options.access == RepositoryAccess::own) return fail(Code::invalid_argument, place + " is not a folder");
    return connect(place, options.security);
  }
  const std::string folder = place.starts_with("file://") ? place.substr(7) : place;
  return options.access == RepositoryAccess::read ? open_to_read(folder) : open_to_write(folder, options.access);
}

Result<OpenedRepository> open_repository(const std::vector<std::string>& addresses, const RepositoryOptions& options) {
  FRESHET_ASSIGN(const std::string place, place_of(addresses));
  return open_repository(place, options);
}

Result<std::unique_ptr<RepositoryServer>> serve_repository(const OpenedRepository& repository,
                                                           RepositoryServerOptions options) {
  FRESHET_ASSIGN(ProviderRepository* const own, owned(repository, "serve"));
  return RepositoryServer::open(*own, std::move(options));
}

Status join_repository(const OpenedRepository& repository, const std::string& address,
                       const std::vector<std::string>& others, const SecurityOptions& security) {
  FRESHET_ASSIGN(ProviderRepository* const own, owned(repository, "join"));
  FRESHET_ASSIGN(const std::string place, place_of(others));
  const Result<Placement> placement = join_providers(*own, address, place, {.security = security});
  if (!placement) return fail(Error(placement.error()).with_context("join " + place));
  return {};
}

}  // namespace freshet
