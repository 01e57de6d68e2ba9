// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Passes descriptors, and words beside them, over a pair of sockets that a test and its child share.

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "core/base/file_descriptor.h"

namespace freshet::gpu {

/// What a rank of a collective sends to a gpu_peer.
inline constexpr std::uint64_t kCollectivePeerBytes = (1 << 20) + 5;

/// Without a descriptor when it is -1. False when the other side is gone.
inline bool send_descriptor(int socket, int descriptor, std::uint64_t word) {
  iovec part{.iov_base = &word, .iov_len = sizeof word};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof word);
}

struct Received {
  bool came = false;  ///< False: the other side is gone.
  std::uint64_t word = 0;
  FileDescriptor descriptor;
};

inline Received receive_descriptor(int socket) {
  Received received;
  iovec part{.iov_base = &received.word, .iov_len = sizeof received.word};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  received.came = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == static_cast<ssize_t>(sizeof received.word);
  const cmsghdr* const header = received.came ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    received.descriptor = FileDescriptor(descriptor);
  }
  return received;
}

}  // namespace freshet::gpu
