// SPDX-License-Identifier: Apache-2.0
#include "core/base/fork_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "core/base/format.h"
#include "core/base/mutex.h"

namespace freshet {

std::atomic<std::uint64_t> fork_detail::generation{0};

namespace {

/// An address to compare with. Only what counts is filled in.
struct Listening {
  std::uint64_t id = 0;
  sa_family_t family = AF_UNSPEC;
  in_port_t port = 0;
  bool any_interface = false;
  std::array<unsigned char, sizeof(in6_addr)> host{};
  std::array<char, sizeof(sockaddr_un::sun_path)> path{};
};

/// fork() takes the lock first, so that the child finds it whole; there it only reads and closes.
class Registry {
 public:
  Registry() { ::pthread_atfork(before_fork, in_parent, in_child); }
  static Registry& get() {
    static Registry* const registry = new Registry;  // Children ask for it until they end.
    return *registry;
  }

  void add(int descriptor) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    descriptors_.push_back(descriptor);
  }
  void remove(int descriptor) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto at = std::find(descriptors_.begin(), descriptors_.end(), descriptor);
    if (at == descriptors_.end()) return;
    *at = descriptors_.back();
    descriptors_.pop_back();
  }
  std::uint64_t add(Listening address) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    address.id = ++ids_;
    addresses_.push_back(address);
    return address.id;
  }
  void remove(std::uint64_t id) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::erase_if(addresses_, [&](const Listening& address) { return address.id == id; });
  }

 private:
  static void before_fork() FRESHET_NO_THREAD_SAFETY_ANALYSIS { get().mutex_.lock(); }
  static void in_parent() FRESHET_NO_THREAD_SAFETY_ANALYSIS { get().mutex_.unlock(); }
  static void in_child() FRESHET_NO_THREAD_SAFETY_ANALYSIS {
    Registry& self = get();
    fork_detail::generation.fetch_add(1, std::memory_order_relaxed);
    for (const int descriptor : self.descriptors_) ::close(descriptor);
    if (!self.addresses_.empty()) self.close_listening();
    self.descriptors_.clear();
    self.addresses_.clear();
    self.mutex_.unlock();
  }

  bool has_address_of(int descriptor) const FRESHET_NO_THREAD_SAFETY_ANALYSIS {
    sockaddr_storage own{};
    socklen_t bytes = sizeof own;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return false;
    for (const Listening& address : addresses_) {
      if (is_same(own, address)) return true;
    }
    return false;
  }
  static bool is_same(const sockaddr_storage& own, const Listening& address) {
    if (own.ss_family == AF_UNIX && address.family == AF_UNIX) {
      const auto& named = reinterpret_cast<const sockaddr_un&>(own);
      return std::strncmp(named.sun_path, address.path.data(), sizeof named.sun_path) == 0;
    }
    const void* host = nullptr;
    in_port_t port = 0;
    if (own.ss_family == AF_INET) {
      host = &reinterpret_cast<const sockaddr_in&>(own).sin_addr;
      port = reinterpret_cast<const sockaddr_in&>(own).sin_port;
    } else if (own.ss_family == AF_INET6) {
      host = &reinterpret_cast<const sockaddr_in6&>(own).sin6_addr;
      port = reinterpret_cast<const sockaddr_in6&>(own).sin6_port;
    }
    if (host == nullptr || address.family == AF_UNIX || port != address.port) return false;
    if (address.any_interface) return true;
    return own.ss_family == address.family &&
           std::memcmp(host, address.host.data(), own.ss_family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr)) == 0;
  }

  /// Looks at every descriptor of the process, by system calls alone.
  void close_listening() {
    const int folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    struct Entry {  // linux_dirent64
      std::uint64_t inode;
      std::int64_t offset;
      unsigned short bytes;
      unsigned char type;
      char name[];
    };
    alignas(Entry) std::array<char, 4096> entries;
    for (;;) {
      const long got = ::syscall(SYS_getdents64, folder, entries.data(), entries.size());
      if (got <= 0) break;
      for (long at = 0; at < got;) {
        const auto* const entry = reinterpret_cast<const Entry*>(entries.data() + at);
        at += entry->bytes;
        int descriptor = 0;
        const auto [end, error] = std::from_chars(entry->name, entry->name + std::strlen(entry->name), descriptor);
        if (error == std::errc() && *end == '\0' && descriptor != folder && has_address_of(descriptor)) {
          ::close(descriptor);
        }
      }
    }
    ::close(folder);
  }

  Mutex mutex_;
  std::vector<int> descriptors_ FRESHET_GUARDED_BY(mutex_);
  std::vector<Listening> addresses_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t ids_ FRESHET_GUARDED_BY(mutex_) = 0;
};

/// A ForkMark alone registers nothing, and counts from the program's start on all the same.
[[maybe_unused]] const Registry& counts_from_the_start = Registry::get();

std::optional<Listening> tcp_address(std::string_view text) {
  Listening address;
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view digits = text.substr(colon + 1);
  if (std::from_chars(digits.data(), digits.data() + digits.size(), port).ec != std::errc()) return std::nullopt;
  address.port = htons(port);
  std::string host(text.substr(0, colon));
  address.any_interface = host == "*" || host == "0.0.0.0" || host == "[::]";
  address.family = host.starts_with('[') ? AF_INET6 : AF_INET;
  if (address.any_interface) return address;
  if (address.family == AF_INET6) host = host.substr(1, host.size() - 2);
  if (::inet_pton(address.family, host.c_str(), address.host.data()) != 1) return std::nullopt;
  return address;
}

std::optional<Listening> unix_address(std::string_view path) {
  Listening address;
  address.family = AF_UNIX;
  if (path.empty() || path.size() >= address.path.size()) return std::nullopt;
  std::copy(path.begin(), path.end(), address.path.begin());
  return address;
}

}  // namespace

Status check_not_inherited(const ForkMark& mark, std::string_view what) {
  if (!mark.is_inherited()) return {};
  return fail(Code::failed_precondition,
              format("{} belongs to the process that this one was forked from; open another one here", what));
}

ParentsDescriptor::ParentsDescriptor(FileDescriptor descriptor) : descriptor_(descriptor.release()) {
  if (descriptor_ >= 0) Registry::get().add(descriptor_);
}

ParentsDescriptor::~ParentsDescriptor() {
  // In a child it was closed long ago, and the number may be another file's.
  if (descriptor_ < 0 || mark_.is_inherited()) return;
  Registry::get().remove(descriptor_);
  ::close(descriptor_);
}

ParentsAddress ParentsAddress::of(const std::string& endpoint) {
  const std::string_view text = endpoint;
  std::optional<Listening> address;
  if (text.starts_with("tcp://")) address = tcp_address(text.substr(6));
  if (text.starts_with("ipc://")) address = unix_address(text.substr(6));
  return ParentsAddress(address ? Registry::get().add(*address) : 0);
}

ParentsAddress::~ParentsAddress() {
  if (id_ != 0 && !mark_.is_inherited()) Registry::get().remove(id_);
}

}  // namespace freshet
