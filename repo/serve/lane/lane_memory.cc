// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/lane/lane_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/env.h"
#include "core/base/file_descriptor.h"
#include "core/base/format.h"

namespace freshet::rpc {
namespace {

/// A page of its own behind the payload, whatever a page has.
constexpr std::uint64_t kMarkBytes = std::uint64_t{64} << 10;

Status check_size(std::uint64_t bytes) {
  if (bytes >= kLaneBytesMin && bytes <= kLaneBytesMax && bytes % kLaneBytesMin == 0) return {};
  return fail(Code::invalid_argument,
              format("a lane has {} to {} bytes in whole pages, not {}", kLaneBytesMin, kLaneBytesMax, bytes));
}

Result<FileDescriptor> reach(const LanePlace& place) {
  if (place.pid <= 0 || place.descriptor < 0) return fail(Code::corrupt, "a lane's place is invalid");
  const auto cannot = [&](int error) {
    return fail(Code::unavailable,
                format("descriptor {} of process {}: {}", place.descriptor, place.pid, std::strerror(error)));
  };
  // Whatever is there is looked at before it is opened: opening a device or a pipe may do something.
  const FileDescriptor found(::open(format("/proc/{}/fd/{}", place.pid, place.descriptor).c_str(), O_PATH | O_CLOEXEC));
  if (!found) return cannot(errno);
  struct stat status {};
  if (::fstat(found.get(), &status) != 0) return cannot(errno);
  // Such memory has no name. A file that has one may be locked by this process, and would not be any more once another
  // descriptor of it was closed.
  if (!S_ISREG(status.st_mode) || status.st_nlink != 0 || status.st_uid != ::geteuid()) {
    return fail(Code::unavailable,
                format("descriptor {} of process {} is not memory of this user", place.descriptor, place.pid));
  }
  FileDescriptor opened(
      ::open(format("/proc/self/fd/{}", found.get()).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!opened) return cannot(errno);
  return opened;
}

}  // namespace

Result<std::shared_ptr<LaneMemory>> LaneMemory::create(std::uint64_t bytes) {
  FRESHET_TRY(check_size(bytes));
  FRESHET_ASSIGN(Slab slab, Slab::create("lane", {.bytes = bytes + kMarkBytes, .lock = false}));
  LanePlace place{.pid = ::getpid(), .descriptor = slab.descriptor(), .bytes = bytes, .mark = {}};
  system_env().fill_random(std::as_writable_bytes(std::span(place.mark)));
  std::memcpy(slab.memory().data() + bytes, place.mark.data(), sizeof place.mark);
  return std::shared_ptr<LaneMemory>(new LaneMemory(std::move(slab), place));
}

Result<std::shared_ptr<const LaneMemory>> LaneMemory::open(const LanePlace& place) {
  FRESHET_TRY(check_size(place.bytes));
  FRESHET_ASSIGN(FileDescriptor opened, reach(place));
  FRESHET_ASSIGN(Slab slab, Slab::adopt(opened.release(), place.bytes + kMarkBytes));
  const Slab& mapped = slab;
  if (std::memcmp(mapped.memory().data() + place.bytes, place.mark.data(), sizeof place.mark) != 0) {
    return fail(Code::unavailable, format("pid {} names a different process here (another pid namespace?)", place.pid));
  }
  return std::shared_ptr<const LaneMemory>(new LaneMemory(std::move(slab), place));
}

}  // namespace freshet::rpc
