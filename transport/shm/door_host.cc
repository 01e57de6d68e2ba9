// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/door_host.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "transport/shm/socket_path.h"

namespace freshet::shm {
namespace {

constexpr std::size_t kDoorsMax = 4096;
/// Connected, but silent so far. An honest subscriber knocks with its next system call.
constexpr std::size_t kSilentDoorsMax = 256;
constexpr int kEventsPerPoll = 64;

bool peer_is_this_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == ::geteuid();
}

}  // namespace

DoorHost::Sent DoorHost::send_frame(int socket, const SlabFrame& frame, const std::vector<int>& descriptors) {
  std::vector<std::byte> bytes = encode(frame);
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kSlabsPerFrameMax)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return Sent::all;
  // Only a peer that is gone ends its door, which frees what it reads: whatever else fails (no memory, too many
  // descriptors on their way) is tried again.
  if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == ECONNREFUSED) return Sent::gone;
  return Sent::would_block;
}

Result<ParentsDescriptor> DoorHost::listen_at(const std::string& path) {
  // Bound aside and renamed once it listens: whoever finds the path and is refused knows that its publisher is dead.
  const std::string aside = path + ".new";
  FRESHET_ASSIGN(const SocketPath aside_path, SocketPath::of(aside));
  ParentsDescriptor listener(FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!listener) return fail_errno(errno, "make a door");
  const sockaddr_un address = aside_path.address();
  ::unlink(aside.c_str());
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return fail_errno(errno, "open door " + path);
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) return fail_errno(errno, "open door " + path);
  return listener;
}

Status DoorHost::watch(const FileDescriptor& epoll, const ParentsDescriptor& listener, const std::string& path) {
  epoll_event interest{.events = EPOLLIN, .data = {.u64 = 0}};
  if (!epoll || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener.get(), &interest) != 0) {
    return fail_errno(errno, "watch door " + path);
  }
  return {};
}

Result<std::unique_ptr<DoorHost>> DoorHost::open(const std::string& path) {
  FRESHET_ASSIGN(ParentsDescriptor listener, listen_at(path));
  FileDescriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  FRESHET_TRY(watch(epoll, listener, path));
  return std::unique_ptr<DoorHost>(new DoorHost(path, std::move(listener), std::move(epoll)));
}

Result<bool> DoorHost::tend() {
  std::error_code failure;
  if (std::filesystem::exists(path_, failure) || failure) return false;
  FRESHET_ASSIGN(ParentsDescriptor listener, listen_at(path_));
  FRESHET_TRY(watch(epoll_, listener, path_));
  listener_ = std::move(listener);  // The old one closes, and leaves the epoll with that.
  return true;
}

DoorHost::~DoorHost() { ::unlink(path_.c_str()); }

DoorHost::Events DoorHost::poll() {
  Events events;
  std::array<epoll_event, kEventsPerPoll> ready;
  const int count = ::epoll_wait(epoll_.get(), ready.data(), kEventsPerPoll, 0);
  for (int i = 0; i < count; ++i) {
    const DoorId id = ready[i].data.u64;
    if (id == 0) {
      accept_all();
      continue;
    }
    const auto at = doors_.find(id);
    if (at == doors_.end()) continue;
    bool alive = true;
    if ((ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) alive = read(id, at->second, events);
    if (alive && (ready[i].events & EPOLLOUT) != 0) alive = send_pending(id, at->second);
    if (!alive) forget(id, &events);
  }
  return events;
}

void DoorHost::accept_all() {
  for (;;) {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if ((errno == EMFILE || errno == ENFILE) && turn_one_away()) continue;
      return;
    }
    if (!peer_is_this_user(socket.get())) continue;
    if (doors_.size() >= kDoorsMax || doors_.size() - sessions_.size() >= kSilentDoorsMax) {
      const auto silent =
          std::find_if(doors_.begin(), doors_.end(), [](const auto& door) { return !door.second.knocked; });
      if (silent == doors_.end()) continue;
      doors_.erase(silent);
    }
    const DoorId id = next_door_++;
    epoll_event interest{.events = EPOLLIN, .data = {.u64 = id}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &interest) != 0) continue;
    doors_[id].socket = ParentsDescriptor(std::move(socket));
  }
}

/// Without a descriptor for it, a connection would wait in the listener and wake the loop for ever.
bool DoorHost::turn_one_away() {
  { const FileDescriptor closed = std::move(spare_); }
  bool any = false;
  {
    const FileDescriptor turned_away(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    any = static_cast<bool>(turned_away);  // The kernel asks for a descriptor before it looks for a connection.
  }
  spare_ = FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return any && spare_;
}

bool DoorHost::read(DoorId id, Door& door, Events& events) {
  std::array<std::byte, kKnockBytes + 1> bytes;
  const ssize_t got = ::recv(door.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0) return errno != ECONNRESET && errno != ENOTCONN;
  // An empty packet cannot be told from the end of the connection; nobody honest sends one.
  if (got == 0 || door.knocked) return false;
  const auto knock = decode_knock(Bytes(bytes.data(), static_cast<std::size_t>(got)));
  if (!knock) return false;
  door.knocked = true;
  events.knocked.push_back({.door = id, .knock = *knock});
  return true;
}

void DoorHost::admit(DoorId id, protocol::SessionId session, std::shared_ptr<const SlabList> slabs,
                     std::shared_ptr<const SlabList> device_slabs) {
  const auto at = doors_.find(id);
  if (at == doors_.end()) return;
  if (sessions_.contains(session)) return turn_away(id);
  at->second.session = session;
  at->second.slabs = std::move(slabs);
  at->second.device_slabs = std::move(device_slabs);
  sessions_[session] = id;
  // A peer that is gone already is noticed by the next poll().
  send_pending(id, at->second);
}

void DoorHost::turn_away(DoorId id) { doors_.erase(id); }

bool DoorHost::send_pending(DoorId id, Door& door) {
  if (!door.slabs) return true;
  for (;;) {
    const bool has_more = !door.welcomed || door.slabs_sent < door.slabs->size();
    const bool has_more_on_device = door.takes_device_slabs && door.device_slabs_sent < door.device_slabs->size();
    if (!has_more && !has_more_on_device) break;
    const Sent sent = send_next(door, /*is_on_device=*/!has_more);
    if (sent == Sent::gone) return false;
    if (sent == Sent::would_block) {
      watch_for_room(id, door, true);
      return true;
    }
    door.welcomed = true;
  }
  watch_for_room(id, door, false);
  return true;
}

DoorHost::Sent DoorHost::send_next(Door& door, bool is_on_device) {
  const SlabList& slabs = is_on_device ? *door.device_slabs : *door.slabs;
  std::size_t& slabs_sent = is_on_device ? door.device_slabs_sent : door.slabs_sent;
  SlabFrame frame{.first_slab = slabs_sent, .slab_bytes = {}, .is_on_device = is_on_device};
  std::vector<int> descriptors;
  const std::size_t end = std::min(slabs.size(), slabs_sent + kSlabsPerFrameMax);
  for (std::size_t slab = slabs_sent; slab < end; ++slab) {
    frame.slab_bytes.push_back(slabs[slab].bytes);
    descriptors.push_back(slabs[slab].descriptor);
  }
  const Sent sent = send_frame(door.socket.get(), frame, descriptors);
  if (sent == Sent::all) slabs_sent = end;
  return sent;
}

void DoorHost::lend_device_slabs(protocol::SessionId session) {
  const auto at = sessions_.find(session);
  if (at == sessions_.end()) return;
  Door& door = doors_.at(at->second);
  door.takes_device_slabs = door.device_slabs != nullptr;
  send_pending(at->second, door);
}

void DoorHost::watch_for_room(DoorId id, Door& door, bool wanted) {
  if (door.waits_for_room == wanted) return;
  door.waits_for_room = wanted;
  epoll_event interest{.events = EPOLLIN | (wanted ? EPOLLOUT : 0U), .data = {.u64 = id}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, door.socket.get(), &interest);
}

void DoorHost::send_new_slabs(protocol::SessionId session) {
  const auto at = sessions_.find(session);
  if (at != sessions_.end()) send_pending(at->second, doors_.at(at->second));
}

void DoorHost::send_new_slabs() {
  for (const auto& [session, id] : sessions_) send_pending(id, doors_.at(id));
}

void DoorHost::close(protocol::SessionId session) {
  const auto at = sessions_.find(session);
  if (at != sessions_.end()) forget(at->second, nullptr);
}

void DoorHost::close_all_of(const std::shared_ptr<SlabList>& slabs) {
  std::vector<DoorId> doomed;
  for (const auto& [session, id] : sessions_) {
    if (doors_.at(id).slabs == slabs) doomed.push_back(id);
  }
  for (const DoorId id : doomed) forget(id, nullptr);
}

void DoorHost::forget(DoorId id, Events* events) {
  const auto at = doors_.find(id);
  if (at == doors_.end()) return;
  if (at->second.slabs) {
    if (events != nullptr) events->closed.push_back(at->second.session);
    sessions_.erase(at->second.session);
  }
  doors_.erase(at);
}

}  // namespace freshet::shm
