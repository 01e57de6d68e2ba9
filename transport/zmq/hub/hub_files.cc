// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/hub/hub_files.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "transport/shm/socket_path.h"

namespace freshet {
namespace {

constexpr std::string_view kPrefix = "hub-";
constexpr std::string_view kDoor = ".door";
constexpr std::string_view kControl = ".control";
/// Of hubs before protocol 3, which had one more.
constexpr std::string_view kNews = ".news";
constexpr std::size_t kFilesLookedAtMax = 4096;

bool refuses_connections(const std::string& door) {
  const auto path = SocketPath::of(door);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!path || !socket) return false;
  const sockaddr_un address = path->address();
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ECONNREFUSED;
}

void sweep(const std::string& folder) {
  std::error_code failure;
  std::vector<std::string> stems;
  std::size_t seen = 0;
  for (std::filesystem::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    if (++seen > kFilesLookedAtMax) break;
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kDoor)) continue;
    stems.push_back(folder + "/" + name.substr(0, name.size() - kDoor.size()));
  }
  for (const std::string& stem : stems) {
    const std::string door = stem + std::string(kDoor);
    if (!refuses_connections(door)) continue;
    // The door last: as long as it is there, another sweep finds the rest.
    ::unlink((stem + std::string(kControl)).c_str());
    ::unlink((stem + std::string(kNews)).c_str());
    ::unlink(door.c_str());
  }
}

}  // namespace

Result<HubFiles> HubFiles::choose(const std::string& folder) {
  sweep(folder);
  std::uint32_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return fail_errno(errno, "choose a socket's name");
  const std::string stem = format("{}/{}{}-{:08x}", folder, kPrefix, ::getpid(), random);
  return HubFiles{.door = stem + std::string(kDoor), .control = stem + std::string(kControl)};
}

}  // namespace freshet
