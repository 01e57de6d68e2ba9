// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The kernel, called without the C library: nothing here allocates, locks, sets errno or is interposed by anybody.
/// Results are the kernel's own: -errno for an error.

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstdint>

namespace freshet::tier::reader {

#if defined(__x86_64__)
inline constexpr long kStatAt = SYS_newfstatat;
#else
inline constexpr long kStatAt = SYS_fstatat;
#endif

inline long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#else
#error "The reader knows the system calls of x86-64 and aarch64."
#endif
}

inline long address(const void* pointer) { return reinterpret_cast<long>(pointer); }

inline int sys_openat(int folder, const char* path, int flags, unsigned mode = 0) {
  return static_cast<int>(call(SYS_openat, folder, address(path), flags, mode));
}
inline int sys_close(int fd) { return static_cast<int>(call(SYS_close, fd)); }
inline int sys_fstat(int fd, struct stat& out) { return static_cast<int>(call(SYS_fstat, fd, address(&out))); }
inline int sys_dup3(int from, int to, int flags) { return static_cast<int>(call(SYS_dup3, from, to, flags)); }
inline long sys_read(int fd, char* out, unsigned long bytes) {
  return call(SYS_read, fd, address(out), static_cast<long>(bytes));
}

/// The device as the board has it.
inline std::uint64_t device_of(std::uint64_t number) {
  const std::uint64_t major = ((number >> 8) & 0xfff) | ((number >> 32) & ~std::uint64_t{0xfff});
  const std::uint64_t minor = (number & 0xff) | ((number >> 12) & ~std::uint64_t{0xff});
  return major << 32 | (minor & 0xffffffff);
}
/// The other way round, as `struct stat` has it.
inline std::uint64_t number_of(std::uint64_t device) {
  const std::uint64_t major = device >> 32;
  const std::uint64_t minor = device & 0xffffffff;
  return (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & ~std::uint64_t{0xff}) << 12) |
         ((major & ~std::uint64_t{0xfff}) << 32);
}

}  // namespace freshet::tier::reader
