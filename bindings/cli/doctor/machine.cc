// SPDX-License-Identifier: Apache-2.0
// What the processor and the kernel give.

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/frame/output.h"
#include "core/base/format.h"
#include "core/host/memory_room.h"
#include "core/words/classic_locale.h"
#include "transport/directory/host_directory.h"

namespace freshet::cli {
namespace {

constexpr int kNewsPatienceMs = 900;

/// A line "NAME:   VALUE kB" of /proc/meminfo, in bytes; counts (HugePages_Free) as they stand. 0 when it is not there.
std::uint64_t meminfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    WordStream words(line);
    std::string key;
    std::string unit;
    std::uint64_t value = 0;
    words >> key >> value >> unit;
    if (key == name + ":") return unit == "kB" ? value * 1024 : value;
  }
  return 0;
}

/// What a directory of another host says of itself once it was asked, or after a second.
std::string first_health(Directory& directory) {
  const auto watch = directory.watch("freshet-doctor");
  if (!watch) return watch.error().message();
  pollfd news{.fd = (*watch)->descriptor(), .events = POLLIN, .revents = 0};
  ::poll(&news, 1, kNewsPatienceMs);
  return directory.health();
}

bool may_lock_without_limit() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[0].effective & (1U << CAP_IPC_LOCK)) != 0;
}

}  // namespace

Finding find_vector_code() {
  Finding finding{.check = "vector_code", .enables = "the speed of digests and of comparing versions"};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    finding.found = "AVX-512";
  } else if (__builtin_cpu_supports("avx2")) {
    finding.found = "AVX2";
  } else {
    finding.health = Health::limited;
    finding.found = "portable code only";
    finding.get = "a processor with AVX2";
  }
#else
  finding.health = Health::limited;
  finding.found = "portable code only";
#endif
  return finding;
}

Finding find_memory_lock() {
  Finding finding{.check = "memory_lock", .enables = "arenas that never wait for a page"};
  const std::uint64_t available = available_memory_bytes().value_or(0);
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
  if (may_lock_without_limit() || (known && limit.rlim_cur == RLIM_INFINITY)) {
    finding.found = format("no limit; {} of memory available", human_bytes(available));
    return finding;
  }
  const std::uint64_t lockable = std::min<std::uint64_t>(known ? limit.rlim_cur : 0, available);
  finding.health = Health::limited;
  finding.found = format("an arena can lock {} (RLIMIT_MEMLOCK); the rest is touched, and may be swapped out",
                         human_bytes(lockable));
  finding.get = "ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit";
  return finding;
}

Finding find_huge_pages() {
  Finding finding{.check = "huge_pages", .enables = "fewer page-table misses in large arenas (option huge_pages)"};
  const std::uint64_t page = meminfo("Hugepagesize");
  const std::uint64_t free_pages = meminfo("HugePages_Free");
  if (free_pages > 0) {
    finding.found = format("{} free pages of {}", free_pages, human_bytes(page));
  } else {
    finding.health = Health::missing;
    finding.found = meminfo("HugePages_Total") > 0 ? "reserved, but none is free" : "none reserved";
    finding.get = "sysctl vm.nr_hugepages=N";
  }
  return finding;
}

Finding find_shared_memory() {
  Finding finding{.check = "shared_memory", .enables = "subscribers on this host that copy nothing (channel shm)"};
  const int descriptor = ::memfd_create("freshet-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) {
    finding.health = Health::missing;
    finding.found = format("memfd_create: {}", std::generic_category().message(errno));
    finding.get = "Linux 5.1 or later";
    return finding;
  }
  const bool sealed = ::ftruncate(descriptor, 4096) == 0 &&
                      ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0;
  finding.found = sealed ? "memfd with F_SEAL_FUTURE_WRITE" : "memfd, but it cannot be sealed against writers";
  if (!sealed) {
    finding.health = Health::missing;
    finding.get = "Linux 5.1 or later";
  }
  ::close(descriptor);
  return finding;
}

Finding find_host_directory() {
  Finding finding{.check = "host_directory", .enables = "publishers and subscribers of this host finding each other"};
  const auto directory = HostDirectory::open("");
  if (directory) {
    finding.found = format("{}, {} living publishers", (*directory)->folder(),
                           (*directory)->list().map([](const auto& entries) { return entries.size(); }).value_or(0));
  } else {
    finding.health = Health::missing;
    finding.found = directory.error().message();
    finding.get = "FRESHET_RUN_DIR=FOLDER that is yours alone (mode 0700)";
  }
  return finding;
}

Finding find_directory() {
  Finding finding{.check = "directory", .enables = "publishers and subscribers of many hosts finding each other"};
  if (!is_remote_directory("")) {
    finding.health = Health::limited;
    finding.found = "this host's folder only";
    finding.get = "FRESHET_DIRECTORY=redis://HOST:PORT";
    return finding;
  }
  const auto directory = open_directory("");
  if (!directory) {
    finding.health = Health::missing;
    finding.found = directory.error().message();
    return finding;
  }
  finding.found = format("{}: {}", (*directory)->text(), first_health(**directory));
  if ((*directory)->health() != "reachable") {
    finding.health = Health::missing;
    finding.get = "a Redis server there, and its password in FRESHET_DIRECTORY";
  }
  return finding;
}

}  // namespace freshet::cli
