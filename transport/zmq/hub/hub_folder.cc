// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/hub/hub_folder.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "transport/shm/socket_path.h"

namespace freshet {
namespace {

constexpr Duration kTendEvery = std::chrono::seconds(1);
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

Result<HubFolder::Files> HubFolder::choose(const std::string& folder) {
  sweep(folder);
  std::uint32_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return fail_errno(errno, "choose a socket's name");
  const std::string stem = format("{}/{}{}-{:08x}", folder, kPrefix, ::getpid(), random);
  return Files{.door = stem + std::string(kDoor), .control = stem + std::string(kControl)};
}

void HubFolder::tend(Time now, Directory& directory, shm::DoorHost& door, ControlSocket& control,
                     const std::function<Result<bool>()>& tend_models) {
  if (now < tend_at_) return;
  tend_at_ = now + kTendEvery;
  const auto tend_all = [&]() -> Result<bool> {
    FRESHET_ASSIGN(const bool folder, directory.tend());
    // The door first, as when the hub was opened.
    FRESHET_ASSIGN(const bool door_file, door.tend());
    FRESHET_ASSIGN(const bool control_file, control.tend_file());
    FRESHET_ASSIGN(const bool models, tend_models());
    return folder || door_file || control_file || models;
  };
  tell(directory.folder(), tend_all());
}

void HubFolder::tell(const std::string& folder, const Result<bool>& tended) {
  std::string error = tended ? "" : tended.error().message();
  if (tended && *tended) {
    log_line(LogLevel::warning,
             format("somebody removed files of this process in {}; they are there again, and others find it", folder));
  } else if (!tended && error != told_) {
    log_line(LogLevel::warning, format("somebody removed files of this process in {}, and nobody finds it there until "
                                       "they can be made again: {}",
                                       folder, error));
  }
  told_ = std::move(error);
}

}  // namespace freshet
