// SPDX-License-Identifier: Apache-2.0
// What the processor and the kernel give.

#include <fcntl.h>
#include <linux/capability.h>
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
#include "core/base/deadline.h"
#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/base/wake.h"
#include "core/host/memory_room.h"
#include "core/words/classic_locale.h"
#include "transport/directory/host_directory.h"

namespace freshet::cli {
namespace {

constexpr Duration kNewsPatience = std::chrono::milliseconds(900);

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
  (void)wait_readable((*watch)->descriptor(), deadline_in(kNewsPatience));
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
  const Finding finding{.check = "vector_code", .enables = "the speed of digests and of comparing versions"};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return finding.with(Health::ok, "AVX-512");
  }
  if (__builtin_cpu_supports("avx2")) return finding.with(Health::ok, "AVX2");
  return finding.with(Health::limited, "portable code only", "a processor with AVX2");
#else
  return finding.with(Health::limited, "portable code only");
#endif
}

Finding find_memory_lock() {
  const Finding finding{.check = "memory_lock", .enables = "arenas that never wait for a page"};
  const std::uint64_t available = available_memory_bytes().value_or(0);
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
  if (may_lock_without_limit() || (known && limit.rlim_cur == RLIM_INFINITY)) {
    return finding.with(Health::ok, format("no limit; {} of memory available", human_bytes(available)));
  }
  const std::uint64_t lockable = std::min<std::uint64_t>(known ? limit.rlim_cur : 0, available);
  return finding.with(Health::limited,
                      format("an arena can lock {} (RLIMIT_MEMLOCK); the rest is touched, and may be swapped out",
                             human_bytes(lockable)),
                      "ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit");
}

Finding find_huge_pages() {
  const Finding finding{.check = "huge_pages",
                        .enables = "fewer page-table misses in large arenas (option huge_pages)"};
  const std::uint64_t free_pages = meminfo("HugePages_Free");
  if (free_pages > 0) {
    return finding.with(Health::ok, format("{} free pages of {}", free_pages, human_bytes(meminfo("Hugepagesize"))));
  }
  return finding.with(Health::missing, meminfo("HugePages_Total") > 0 ? "reserved, but none is free" : "none reserved",
                      "sysctl vm.nr_hugepages=N");
}

Finding find_shared_memory() {
  const Finding finding{.check = "shared_memory",
                        .enables = "subscribers on this host that copy nothing (channel shm)"};
  const FileDescriptor memory(::memfd_create("freshet-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::string why = "memfd, but it cannot be sealed against writers";
  if (!memory) {
    why = format("memfd_create: {}", std::generic_category().message(errno));
  } else if (::ftruncate(memory.get(), 4096) == 0 &&
             ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0) {
    return finding.with(Health::ok, "memfd with F_SEAL_FUTURE_WRITE");
  }
  return finding.with(Health::missing, why, "Linux 5.1 or later");
}

Finding find_host_directory() {
  const Finding finding{.check = "host_directory",
                        .enables = "publishers and subscribers of this host finding each other"};
  const auto directory = HostDirectory::open("");
  if (!directory) {
    return finding.with(Health::missing, directory.error().message(),
                        "FRESHET_RUN_DIR=FOLDER that is yours alone (mode 0700)");
  }
  const auto living = (*directory)->list().map([](const auto& entries) { return entries.size(); }).value_or(0);
  return finding.with(Health::ok, format("{}, {} living publishers", (*directory)->folder(), living));
}

Finding find_directory() {
  const Finding finding{.check = "directory", .enables = "publishers and subscribers of many hosts finding each other"};
  if (!is_remote_directory("")) {
    return finding.with(Health::limited, "this host's folder only", "FRESHET_DIRECTORY=redis://HOST:PORT");
  }
  const auto directory = open_directory("");
  if (!directory) return finding.with(Health::missing, directory.error().message());
  const std::string found = format("{}: {}", (*directory)->text(), first_health(**directory));
  if ((*directory)->health() == "reachable") return finding.with(Health::ok, found);
  return finding.with(Health::missing, found, "a Redis server there, and its password in FRESHET_DIRECTORY");
}

}  // namespace freshet::cli
