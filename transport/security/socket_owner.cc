// SPDX-License-Identifier: Apache-2.0
#include "transport/security/socket_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/model/tensor.h"
#include "core/words/classic_locale.h"

namespace freshet {
namespace {

/// The kernel answers before send() returns; this is for one that is ill.
constexpr timeval kAskPatience{.tv_sec = 1, .tv_usec = 0};

constexpr std::string_view kWayIn = "keys or --open-loopback admit others";

tl::unexpected<Error> nobody() {
  return fail(Code::not_found, "no process of this host has the connection's other end");
}

const sockaddr_in& v4(const sockaddr_storage& address) { return reinterpret_cast<const sockaddr_in&>(address); }
const sockaddr_in6& v6(const sockaddr_storage& address) { return reinterpret_cast<const sockaddr_in6&>(address); }

in_port_t port_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET ? v4(address).sin_port : v6(address).sin6_port;
}

void put_address(const sockaddr_storage& address, __be32* to) {
  if (address.ss_family == AF_INET) {
    std::memcpy(to, &v4(address).sin_addr, sizeof(in_addr));
  } else {
    std::memcpy(to, &v6(address).sin6_addr, sizeof(in6_addr));
  }
}

/// An IPv4 peer of a socket that takes both families is one of IPv4.
sockaddr_storage plain(const sockaddr_storage& address) {
  if (address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6(address).sin6_addr)) return address;
  sockaddr_storage mapped{};
  auto& to = reinterpret_cast<sockaddr_in&>(mapped);
  to.sin_family = AF_INET;
  to.sin_port = v6(address).sin6_port;
  std::memcpy(&to.sin_addr, v6(address).sin6_addr.s6_addr + 12, sizeof to.sin_addr);
  return mapped;
}

/// Whether a socket in this state has an owner that the kernel names. Half open or already waiting out its end, it
/// names root.
bool has_owner(unsigned state, std::uint64_t inode) {
  const bool living = state == TCP_ESTABLISHED || state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 ||
                      state == TCP_CLOSE_WAIT || state == TCP_LAST_ACK || state == TCP_CLOSING;
  return living && inode != 0;
}

/// As the tables have it: the words of an address in the host's order, in hexadecimal, then the port.
std::string table_text(const sockaddr_storage& address) {
  std::array<__be32, 4> words{};
  put_address(address, words.data());
  std::string text;
  for (std::size_t i = 0; i < (address.ss_family == AF_INET ? 1U : 4U); ++i) text += format("{:08X}", words[i]);
  return text + format(":{:04X}", ntohs(port_of(address)));
}

struct Question {
  nlmsghdr header{};
  inet_diag_req_v2 request{};
};

/// A listener's other end.
sockaddr_storage nowhere(sa_family_t family) {
  sockaddr_storage address{};
  address.ss_family = family;
  return address;
}

bool listens(const ConnectionEnds& ends) { return port_of(ends.own) == 0; }

/// Whether a socket in this state is the one that is asked for: the other end of a connection, or a listener.
bool is_asked_for(const ConnectionEnds& ends, unsigned state, std::uint64_t inode) {
  return listens(ends) ? state == TCP_LISTEN && inode != 0 : has_owner(state, inode);
}

/// Of an answer; nothing when it is about another socket, one that listens for instance.
std::optional<uid_t> uid_in(const inet_diag_msg& answer, const ConnectionEnds& ends) {
  const bool is_it = answer.id.idiag_sport == port_of(ends.peer) && answer.id.idiag_dport == port_of(ends.own);
  if (!is_it || !is_asked_for(ends, answer.idiag_state, answer.idiag_inode)) return std::nullopt;
  return answer.idiag_uid;
}

bool is_admitted(uid_t user) { return user == ::geteuid() || user == 0; }

tl::unexpected<Error> stranger(uid_t user) {
  return fail(
      Code::failed_precondition,
      format("the connection is of user {}, and without keys only user {} is admitted; {}", user, ::geteuid(), kWayIn));
}

/// Nothing of what is not a Unix socket.
std::optional<uid_t> user_of_unix_peer(int descriptor) {
  int family = 0;
  socklen_t bytes = sizeof family;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &family, &bytes) != 0 || family != AF_UNIX) return std::nullopt;
  ucred peer{};
  bytes = sizeof peer;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return std::nullopt;
  return peer.uid;
}

}  // namespace

Result<ConnectionEnds> ends_of(int descriptor) {
  ConnectionEnds ends;
  socklen_t own_bytes = sizeof ends.own, peer_bytes = sizeof ends.peer;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&ends.own), &own_bytes) != 0 ||
      ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&ends.peer), &peer_bytes) != 0) {
    return fail(Code::not_found, format("the connection is gone: {}", std::strerror(errno)));
  }
  ends = {.own = plain(ends.own), .peer = plain(ends.peer)};
  const auto family = ends.own.ss_family;
  if (family == ends.peer.ss_family && (family == AF_INET || family == AF_INET6)) return ends;
  return fail(Code::invalid_argument, "the connection is not TCP");
}

Result<uid_t> owner_by_asking(const ConnectionEnds& ends) {
  const FileDescriptor socket(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!socket) return fail_errno(errno, "ask for a socket's owner");
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kAskPatience, sizeof kAskPatience);
  Question question;
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.request.sdiag_family = static_cast<__u8>(ends.peer.ss_family);
  question.request.sdiag_protocol = IPPROTO_TCP;
  question.request.idiag_states = ~__u32{0};
  // The other end's own view: it is the source.
  question.request.id.idiag_sport = port_of(ends.peer);
  question.request.id.idiag_dport = port_of(ends.own);
  put_address(ends.peer, question.request.id.idiag_src);
  put_address(ends.own, question.request.id.idiag_dst);
  question.request.id.idiag_cookie[0] = question.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (::send(socket.get(), &question, sizeof question, MSG_NOSIGNAL) < 0) {
    return fail_errno(errno, "ask for a socket's owner");
  }
  alignas(nlmsghdr) std::array<std::byte, 4096> bytes;
  const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) return fail_errno(errno, "ask for a socket's owner");
  nlmsghdr header{};
  if (static_cast<std::size_t>(got) < sizeof header) return fail(Code::io_error, "the kernel's answer is cut short");
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto body = Bytes(bytes).first(static_cast<std::size_t>(got)).subspan(NLMSG_HDRLEN);
  if (header.nlmsg_type == NLMSG_ERROR && body.size() >= sizeof(nlmsgerr)) {
    nlmsgerr error{};
    std::memcpy(&error, body.data(), sizeof error);
    return error.error == -ENOENT ? nobody() : fail_errno(-error.error, "ask for a socket's owner");
  }
  inet_diag_msg answer{};
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || body.size() < sizeof answer) return nobody();
  std::memcpy(&answer, body.data(), sizeof answer);
  const auto uid = uid_in(answer, ends);
  if (!uid) return nobody();
  return *uid;
}

Result<uid_t> owner_by_table(const ConnectionEnds& ends, const std::string& folder) {
  const std::string local = table_text(ends.peer), remote = table_text(ends.own);
  sockaddr_storage any = nowhere(ends.peer.ss_family);  // Who listens at every address, listens at this one.
  if (any.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(any).sin_port = port_of(ends.peer);
  } else {
    reinterpret_cast<sockaddr_in6&>(any).sin6_port = port_of(ends.peer);
  }
  const std::string everywhere = listens(ends) ? table_text(any) : local;
  std::ifstream table(folder + (ends.peer.ss_family == AF_INET ? "/tcp" : "/tcp6"));
  if (!table) return fail(Code::unsupported, format("{} cannot be read", folder));
  // "sl local remote state queues timer retransmits uid timeout inode".
  for (std::string line; std::getline(table, line);) {
    WordStream words(line);
    std::string number, from, to, queues, timer, retransmits;
    unsigned state = 0;
    uid_t uid = 0;
    std::uint64_t timeout = 0, inode = 0;
    words >> number >> from >> to >> std::hex >> state >> queues >> timer >> retransmits >> std::dec >> uid >>
        timeout >> inode;
    if (!words || (from != local && from != everywhere) || to != remote) continue;
    if (is_asked_for(ends, state, inode)) return uid;
  }
  return nobody();
}

Result<uid_t> owner_of_peer(const ConnectionEnds& ends) {
  Result<uid_t> owner = owner_by_asking(ends);
  if (owner || owner.error().code() == Code::not_found) return owner;
  return owner_by_table(ends);
}

Status check_same_user(int descriptor) {
  if (const auto user = user_of_unix_peer(descriptor)) return is_admitted(*user) ? Status() : stranger(*user);
  FRESHET_ASSIGN(const ConnectionEnds ends, ends_of(descriptor));
  const Result<uid_t> owner = owner_of_peer(ends);
  if (!owner) {
    const Code code = owner.error().code() == Code::not_found ? Code::unavailable : Code::failed_precondition;
    return fail(code, format("the connection's user is not known ({}); {}", owner.error().message(), kWayIn));
  }
  return is_admitted(*owner) ? Status() : stranger(*owner);
}

Status check_listener(const sockaddr_storage& address) {
  const sockaddr_storage there = plain(address);
  const Result<uid_t> owner = owner_of_peer({.own = nowhere(there.ss_family), .peer = there});
  if (!owner) {
    const Code code = owner.error().code() == Code::not_found ? Code::unavailable : Code::failed_precondition;
    return fail(code, format("the user who listens there is not known ({}); {}", owner.error().message(), kWayIn));
  }
  return is_admitted(*owner) ? Status() : stranger(*owner);
}

}  // namespace freshet
