// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/host_collective.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/format.h"

namespace freshet::gpu {
namespace {

constexpr int kHostSocket = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

/// A name in the kernel's own name space, so that no file is left behind.
struct HostAddress {
  explicit HostAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t bytes = 0;
};

std::string socket_name(const CollectiveId& id) {
  const auto* const text = reinterpret_cast<const char*>(id.bytes.data());
  return {text, ::strnlen(text, sizeof(sockaddr_un::sun_path) - 1)};
}

/// Bytes on their way through one socket.
struct HostLeg {
  int descriptor = -1;
  MutableBytes left;
  bool sends = false;

  /// True when it is done. A peer that is gone is one that does not answer.
  bool go_on() {
    while (!left.empty()) {
      const ssize_t moved = sends ? ::send(descriptor, left.data(), left.size(), MSG_NOSIGNAL)
                                  : ::recv(descriptor, left.data(), left.size(), 0);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return false;
      left = left.subspan(static_cast<std::size_t>(moved));
    }
    return true;
  }
};

/// Rank 0 has a socket to each other rank, each other rank one to rank 0. A rank that joins sends its number; when all
/// have, rank 0 sends each a byte.
class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(const CollectiveSeat& seat, FileDescriptor door)
      : seat_(seat),
        name_(socket_name(seat.id)),
        door_(std::move(door)),
        peers_(static_cast<std::size_t>(seat.ranks)) {}

  Status broadcast(MutableBytes bytes) override {
    if (seat_.rank != 0) return receive(bytes, 0);
    for (int rank = 1; rank < seat_.ranks; ++rank) FRESHET_TRY(begin(rank, bytes, true));
    return {};
  }
  Status send(Bytes bytes, int rank) override {
    return begin(rank, {const_cast<std::byte*>(bytes.data()), bytes.size()}, true);
  }
  Status receive(MutableBytes bytes, int rank) override { return begin(rank, bytes, false); }

  Result<bool> poll() override {
    if (!joined_) {
      FRESHET_TRY(seat_.rank == 0 ? admit() : knock());
      if (!joined_) return false;
    }
    std::erase_if(legs_, [](HostLeg& leg) { return leg.go_on(); });
    return legs_.empty();
  }
  void abort() override {
    legs_.clear();
    peers_.clear();
    door_ = FileDescriptor();
  }

 private:
  Status begin(int rank, MutableBytes bytes, bool sends) {
    if (bytes.size() > kCollectiveBytesMax) return refuse(format("{} bytes at once", bytes.size()));
    if (rank < 0 || static_cast<std::size_t>(rank) >= peers_.size() || !peers_[static_cast<std::size_t>(rank)]) {
      return refuse(format("rank {} is no peer of rank {}", rank, seat_.rank));
    }
    legs_.push_back({.descriptor = peers_[static_cast<std::size_t>(rank)].get(), .left = bytes, .sends = sends});
    return {};
  }

  /// Rank 0: takes those that have come.
  Status admit() {
    while (true) {
      FileDescriptor peer(::accept4(door_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!peer) break;
      guests_.push_back(std::move(peer));
    }
    for (FileDescriptor& guest : guests_) {
      std::uint8_t rank = 0;
      if (::recv(guest.get(), &rank, sizeof rank, 0) != sizeof rank || rank == 0 || rank >= seat_.ranks) continue;
      peers_[rank] = std::move(guest);
      ++here_;
    }
    std::erase_if(guests_, [](const FileDescriptor& guest) { return !guest; });
    if (here_ + 1 != seat_.ranks) return {};
    joined_ = true;
    for (int rank = 1; rank < seat_.ranks; ++rank) FRESHET_TRY(begin(rank, MutableBytes(&word_, 1), true));
    return {};
  }

  /// Another rank: connects, says its number, and waits for rank 0's word.
  Status knock() {
    if (!peers_[0]) {
      FileDescriptor socket(::socket(AF_UNIX, kHostSocket, 0));
      if (!socket) return fail_errno(errno, "make a Unix socket");
      const HostAddress address(name_);
      if (::connect(socket.get(), address.get(), address.bytes) != 0) return {};  // Not there yet, or not any more.
      const auto rank = static_cast<std::uint8_t>(seat_.rank);
      if (::send(socket.get(), &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank) return {};
      peers_[0] = std::move(socket);
    }
    joined_ = HostLeg{.descriptor = peers_[0].get(), .left = MutableBytes(&word_, 1)}.go_on();
    return {};
  }

  const CollectiveSeat seat_;
  const std::string name_;
  FileDescriptor door_;                 ///< Rank 0's.
  std::vector<FileDescriptor> guests_;  ///< Whose rank has not come.
  std::vector<FileDescriptor> peers_;   ///< By rank.
  int here_ = 0;
  bool joined_ = false;
  std::byte word_{};
  std::vector<HostLeg> legs_;
};

}  // namespace

Result<CollectiveId> HostCollective::make_id() {
  const MutexLock lock(mutex_);
  const std::string name = format("freshet-collective-{}-{}-{}", ::getpid(), static_cast<const void*>(this), ++made_);
  FileDescriptor door(::socket(AF_UNIX, kHostSocket, 0));
  if (!door) return fail_errno(errno, "make a Unix socket");
  const HostAddress address(name);
  if (::bind(door.get(), address.get(), address.bytes) != 0 || ::listen(door.get(), kRanksMax) != 0) {
    return fail_errno(errno, "listen for ranks");
  }
  doors_[name] = std::move(door);
  CollectiveId id;
  std::memcpy(id.bytes.data(), name.data(), name.size());
  return id;
}

Result<std::unique_ptr<Communicator>> HostCollective::join(const CollectiveSeat& seat) {
  if (seat.ranks < 2 || seat.ranks > kRanksMax || seat.rank < 0 || seat.rank >= seat.ranks) {
    return refuse(format("rank {} of {}", seat.rank, seat.ranks));
  }
  FileDescriptor door;
  if (seat.rank == 0) {
    const MutexLock lock(mutex_);
    const auto made = doors_.find(socket_name(seat.id));
    if (made == doors_.end()) return refuse("rank 0 joins with an id that it did not make");
    door = std::move(made->second);
    doors_.erase(made);
  }
  return std::unique_ptr<Communicator>(std::make_unique<HostCommunicator>(seat, std::move(door)));
}

}  // namespace freshet::gpu
