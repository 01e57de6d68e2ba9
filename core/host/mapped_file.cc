// SPDX-License-Identifier: Apache-2.0
#include "core/host/mapped_file.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "core/base/format.h"
#include "core/base/mutex.h"

namespace freshet {

/// A mapping, as the handler finds it.
struct MappedFile::Guard {
  std::atomic<std::uintptr_t> begin{0};  ///< 0: the guard is free. Set last, and cleared first.
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> is_torn{false};  ///< Some of its pages are zeros instead of the file's.

  bool has(std::uintptr_t address) const {
    const std::uintptr_t from = begin.load();
    return from != 0 && address - from < bytes.load() && begin.load() == from;
  }
};

/// All of the process, in a place that the handler can read whatever its thread holds.
struct MappedFile::Guards {
  static constexpr std::size_t kMappingsMax = 1024;

  Mutex mutex;  ///< Of those who take a guard.
  std::array<Guard, kMappingsMax> all;
  struct sigaction before {};
  std::uintptr_t page_bytes = 0;

  static Guards& get() {
    static Guards& guards = *new Guards;  // For the handler, which stays to the end.
    return guards;
  }

  Guards() : page_bytes(static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE))) {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before);
  }

  Guard* take(Bytes bytes) {
    const MutexLock lock(mutex);
    for (Guard& guard : all) {
      if (guard.begin.load() != 0) continue;
      guard.bytes = bytes.size();
      guard.is_torn = false;
      guard.begin = reinterpret_cast<std::uintptr_t>(bytes.data());
      return &guard;
    }
    return nullptr;
  }

  /// Puts zeros from the missing page on, where the thread then reads on. False: it is no page of a mapping.
  bool mend(std::uintptr_t address) {
    const auto guard = std::ranges::find_if(all, [address](const Guard& one) { return one.has(address); });
    if (guard == all.end()) return false;
    guard->is_torn = true;
    const std::uintptr_t page = address / page_bytes * page_bytes;
    // By the kernel's own call: ThreadSanitizer takes mmap() for a write, and another thread may read zeros already.
    return ::syscall(SYS_mmap, page, guard->begin + guard->bytes - page, PROT_READ,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, /*fd=*/-1L, /*offset=*/0L) != -1;
  }

  static void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
    const int error = errno;
    Guards& guards = get();
    const bool is_sent = info->si_code <= 0;  // By a process, not by a read of memory.
    if (is_sent || !guards.mend(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
      ::sigaction(signal, &guards.before, nullptr);
      if (is_sent) ::raise(signal);  // A read of memory repeats itself.
    }
    errno = error;
  }
};

Result<std::unique_ptr<MappedFile>> MappedFile::map(OpenedFile opened, std::string name) {
  std::unique_ptr<MappedFile> file(new MappedFile(std::move(opened), std::move(name)));
  const auto bytes = static_cast<std::size_t>(file->file_.status.st_size);
  if (bytes == 0) return file;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file->file_.descriptor.get(), /*offset=*/0);
  if (memory == MAP_FAILED) return fail_errno(errno, format("map {}", file->name_));
  file->bytes_ = Bytes(static_cast<const std::byte*>(memory), bytes);
  file->guard_ = Guards::get().take(file->bytes_);
  if (file->guard_ == nullptr) {
    return fail(Code::out_of_space, format("map {}: {} files are mapped already", file->name_, Guards::kMappingsMax));
  }
  return file;
}

MappedFile::~MappedFile() {
  if (guard_ != nullptr) guard_->begin = 0;
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Status MappedFile::check_unchanged() const {
  if (guard_ != nullptr && guard_->is_torn) {
    return fail(Code::unavailable, format("{}: some of the file could not be read; it was cut short meanwhile, or its "
                                          "disk failed",
                                          name_));
  }
  return freshet::check_unchanged(file_, name_);
}

}  // namespace freshet
