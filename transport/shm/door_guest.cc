// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/door_guest.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/format.h"
#include "core/base/log.h"
#include "transport/shm/socket_path.h"

namespace freshet::shm {
namespace {

constexpr int kFramesPerRound = 64;

std::vector<FileDescriptor> take_descriptors(msghdr& message) {
  std::vector<FileDescriptor> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(header) + i * sizeof(int), sizeof value);
      taken.emplace_back(value);
    }
  }
  return taken;
}

}  // namespace

Result<std::unique_ptr<DoorGuest>> DoorGuest::knock(const std::string& path, const Knock& knock) {
  FRESHET_ASSIGN(const SocketPath socket_path, SocketPath::of(path));
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_errno(errno, "make a socket");
  const sockaddr_un address = socket_path.address();
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail(Code::unavailable, format("connect to the door {}: {}", path, std::strerror(errno)));
  }
  ucred peer{};
  socklen_t peer_bytes = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) != 0 || peer.uid != ::geteuid()) {
    return fail(Code::failed_precondition, format("door {} belongs to another user", path));
  }
  const std::vector<std::byte> bytes = encode(knock);
  if (::send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    return fail(Code::unavailable, format("connect to the door {}: {}", path, std::strerror(errno)));
  }
  return std::unique_ptr<DoorGuest>(new DoorGuest(ParentsDescriptor(std::move(socket))));
}

Result<bool> DoorGuest::receive() {
  bool any = false;
  // What is left makes the descriptor readable again; a flood must not keep the loop from everything else.
  for (int i = 0; i < kFramesPerRound; ++i) {
    FRESHET_ASSIGN(const bool got, receive_frame());
    if (!got) break;
    any = true;
  }
  return any;
}

Result<bool> DoorGuest::receive_frame() {
  std::array<std::byte, kSlabFrameBytesMax + 1> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kSlabsPerFrameMax)> control;
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < 0) return fail_errno(errno, "read from the publisher's door");
  std::vector<FileDescriptor> descriptors = take_descriptors(message);
  if (got == 0) return fail(Code::unavailable, "the publisher closed its door");
  FRESHET_ASSIGN(const SlabFrame frame, decode_slab_frame(Bytes(bytes.data(), static_cast<std::size_t>(got))));
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    if (!frame.is_on_device) {
      return fail(Code::out_of_space, "the publisher's slabs do not fit in this process's limit of open files");
    }
    descriptors.resize(std::max(descriptors.size(), frame.slab_bytes.size()));
  }
  if (frame.is_on_device && device_ == nullptr) {
    return fail(Code::corrupt, "slabs of device memory came through a door, and nobody asked for them");
  }
  std::vector<std::shared_ptr<const Slab>>& slabs = frame.is_on_device ? device_slabs_ : slabs_;
  if (frame.first_slab != slabs.size() || frame.slab_bytes.size() != descriptors.size()) {
    return fail(Code::corrupt, "a door's frame does not follow the one before it");
  }
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    if (frame.is_on_device) {
      slabs.push_back(import(std::move(descriptors[i]), frame.slab_bytes[i]));
      continue;
    }
    FRESHET_ASSIGN(Slab slab, Slab::adopt(descriptors[i].release(), frame.slab_bytes[i]));
    slabs.push_back(std::make_shared<const Slab>(std::move(slab)));
  }
  welcomed_ = true;
  return true;
}

/// Every version has a copy in host memory too, so a slab that this process cannot map loses none.
std::shared_ptr<const Slab> DoorGuest::import(FileDescriptor descriptor, std::uint64_t bytes) {
  auto slab =
      descriptor.get() < 0
          ? Result<Slab>(fail(Code::out_of_space, "the slab does not fit in this process's limit of open files"))
          : Slab::import(*device_, std::move(descriptor), bytes);
  if (slab) return std::make_shared<const Slab>(std::move(*slab));
  log_line(LogLevel::warning, format("the publisher's memory on the GPU is not used, its copy in host memory is: {}",
                                     slab.error().message()));
  return nullptr;
}

}  // namespace freshet::shm
