#include "bindings/runtime/repository_folder.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "core/format.h"

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
    std::istringstream words(line);
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
  if (error.code() != Code::unavailable) return error;
  const std::optional<long> owner = owner_of(folder);
  if (!owner) return error;
  return Error(Code::unavailable, format("{} (process {} owns it)", error.message(), *owner));
}

}  // namespace

bool is_repository_address(const std::string& place) {
  return place.find("://") != std::string::npos && !place.starts_with("file://");
}

Result<std::unique_ptr<Repository>> open_repository(const std::string& place, RepositoryAccess access) {
  if (is_rados_address(place)) {
    FRESHET_ASSIGN(RadosOptions options, parse_rados_address(place));
    options.create = access == RepositoryAccess::create;
    options.read_only = access == RepositoryAccess::read;
    FRESHET_ASSIGN(std::unique_ptr<Backend> pool, open_rados_backend(options));
    return Repository::open(std::move(pool), {});
  }
  if (is_repository_address(place)) {
    return fail(
        Code::unsupported,
        format("repository {}: this build opens folders; servers of repositories are not supported yet", place));
  }
  const std::string folder = place.starts_with("file://") ? place.substr(7) : place;
  Result<std::unique_ptr<Backend>> backend = open_rocks_backend(
      {.folder = folder, .create = access == RepositoryAccess::create, .read_only = access == RepositoryAccess::read});
  if (!backend) return fail(with_owner(std::move(backend).error(), folder));
  return Repository::open(std::move(*backend), {});
}

}  // namespace freshet
