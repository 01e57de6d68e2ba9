// SPDX-License-Identifier: Apache-2.0
// Reads a file in every way that the C library has, and prints a line for each: the way, the bytes, what fstat() says.
// Run with and without the reader it prints the same.
//
// usage: read_ways FILE [ring | handler]

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <initializer_list>

namespace {

constexpr size_t kRoom = size_t{1} << 20;
alignas(4096) char g_bytes[kRoom];

struct Digest {
  uint64_t value = 0xcbf29ce484222325ULL;
  size_t bytes = 0;
  void add(const char* at, size_t count) {
    for (size_t i = 0; i < count; ++i) value = (value ^ static_cast<unsigned char>(at[i])) * 0x100000001b3ULL;
    bytes += count;
  }
};

void say(const char* way, const Digest& digest, const char* more) {
  printf("%s %zu %016lx %s\n", way, digest.bytes, static_cast<unsigned long>(digest.value), more);
}

/// What the descriptor is said to be, as text.
void describe(int fd, char* out, size_t room) {
  struct stat file;
  struct statx wide;
  if (fstat(fd, &file) != 0 || statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &wide) != 0) {
    snprintf(out, room, "fstat: %s", strerror(errno));
    return;
  }
  snprintf(out, room, "%lx:%lu %ld %o %lu %u:%u %ld.%09ld %ld.%09ld %ld | %x.%x:%llu %llu %o %u", file.st_dev,
           file.st_ino, file.st_size, file.st_mode, file.st_nlink, file.st_uid, file.st_gid, file.st_mtim.tv_sec,
           file.st_mtim.tv_nsec, file.st_ctim.tv_sec, file.st_ctim.tv_nsec, file.st_blocks, wide.stx_dev_major,
           wide.stx_dev_minor, static_cast<unsigned long long>(wide.stx_ino),
           static_cast<unsigned long long>(wide.stx_size), wide.stx_mode, wide.stx_nlink);
}

void read_out(const char* way, int fd) {
  if (fd < 0) {
    printf("%s %s\n", way, strerror(errno));
    return;
  }
  char more[512];
  describe(fd, more, sizeof more);
  Digest digest;
  for (ssize_t got; (got = read(fd, g_bytes, 4093)) > 0;) digest.add(g_bytes, static_cast<size_t>(got));
  say(way, digest, more);
  close(fd);
}

void read_stream(const char* way, FILE* stream) {
  if (stream == nullptr) {
    printf("%s %s\n", way, strerror(errno));
    return;
  }
  char more[512];
  describe(fileno(stream), more, sizeof more);
  Digest digest;
  for (size_t got; (got = fread(g_bytes, 1, 4093, stream)) > 0;) digest.add(g_bytes, got);
  say(way, digest, more);
  fclose(stream);
}

/// A function by name: what headers rename or hide, and what other libraries call.
template <typename Function>
Function* named(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

void by_open(const char* path) {
  for (const char* name : {"open", "open64", "__open", "__open64"})
    read_out(name, named<int(const char*, int, ...)>(name)(path, O_RDONLY));
  for (const char* name : {"__open_2", "__open64_2"})
    read_out(name, named<int(const char*, int)>(name)(path, O_RDONLY | O_CLOEXEC));
  for (const char* name : {"openat", "openat64"}) {
    read_out(name, named<int(int, const char*, int, ...)>(name)(AT_FDCWD, path, O_RDONLY));
  }
  for (const char* name : {"__openat_2", "__openat64_2"}) {
    read_out(name, named<int(int, const char*, int)>(name)(AT_FDCWD, path, O_RDONLY));
  }
}

void by_name(const char* path) {
  char folder[4096];
  char other[8200];
  snprintf(folder, sizeof folder, "%s", path);
  *strrchr(folder, '/') = '\0';
  const char* base = strrchr(path, '/') + 1;
  const int at = open(folder, O_RDONLY | O_DIRECTORY);
  read_out("relative-to-folder", openat(at, base, O_RDONLY));
  close(at);
  snprintf(other, sizeof other, "%s/./../%s//%s", folder, strrchr(folder, '/') + 1, base);
  read_out("dots", open(other, O_RDONLY));
  char before[4096];
  if (getcwd(before, sizeof before) != nullptr && chdir(folder) == 0) {
    read_out("relative", open(base, O_RDONLY));
    if (chdir(before) != 0) abort();
  }
  snprintf(other, sizeof other, "/proc/self/root%s", path);
  read_out("through-proc", open(other, O_RDONLY));
  snprintf(other, sizeof other, "%s/", path);
  read_out("slash-at-end", open(other, O_RDONLY));
  snprintf(other, sizeof other, "%s.absent", path);
  read_out("absent", open(other, O_RDONLY));
  read_out("no-address", open(reinterpret_cast<const char*>(8), O_RDONLY));
  read_out("a-folder", open(folder, O_RDONLY));
  read_out("a-file-as-folder", open(path, O_RDONLY | O_DIRECTORY));
  read_out("create", open(path, O_RDONLY | O_CREAT, 0600));
  read_out("create-new", open(path, O_RDONLY | O_CREAT | O_EXCL, 0600));
  read_out("read-and-write", open(path, O_RDWR));
}

void say_call(const char* way, const char* call, long result) {
  printf("%s %s: %s\n", way, call, result < 0 ? strerror(errno) : "works");
}

/// What each call says of an address from which nothing can be read, or to which nothing can be written.
void call_with(const char* way, void* bad, const char* path) {
  const auto* const name = static_cast<const char*>(bad);
  for (const int flags :
       {O_RDONLY, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, O_RDWR, O_RDONLY | O_TRUNC, O_RDONLY | O_CREAT}) {
    say_call(way, "open", open(name, flags, 0600));
    say_call(way, "openat", openat(AT_FDCWD, name, flags, 0600));
  }
  const int folder = open("/", O_RDONLY | O_DIRECTORY);
  say_call(way, "openat of a folder", openat(folder, name, O_RDONLY));
  say_call(way, "openat of nothing", openat(-7, name, O_RDONLY));
  for (const char* mode : {"r", "r+", "w"}) say_call(way, "fopen", fopen(name, mode) != nullptr ? 0 : -1);
  FILE* const stream = fopen("/dev/null", "r");
  say_call(way, "freopen", freopen(name, "r", stream) != nullptr ? 0 : -1);
  const int fd = open(path, O_RDONLY);
  struct stat file;
  struct statx wide;
  say_call(way, "fstatat of it", fstatat(folder, name, &file, 0));
  say_call(way, "statx of it", statx(folder, name, 0, STATX_BASIC_STATS, &wide));
  say_call(way, "fgetxattr of it", fgetxattr(fd, name, g_bytes, 1));
  say_call(way, "fremovexattr of it", fremovexattr(fd, name));
  say_call(way, "preadv of it", preadv(fd, static_cast<iovec*>(bad), 1, 0));
  say_call(way, "preadv2 of it", preadv2(fd, static_cast<iovec*>(bad), 1, 0, 0));
  say_call(way, "fexecve", fexecve(fd, static_cast<char**>(bad), environ));
  for (const int command : {F_SETLK, F_SETLKW, F_GETLK}) say_call(way, "fcntl", fcntl(fd, command, bad));
  say_call(way, "F_GETOWN_EX", fcntl(fd, F_GETOWN_EX, bad));
  say_call(way, "futimens", futimens(fd, static_cast<timespec*>(bad)));
  close(fd);
  close(folder);
}

void by_bad_addresses(const char* path) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  auto* const pages = static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, kPrivate, -1, 0));
  if (mprotect(pages + page, page, PROT_NONE) != 0) abort();
  call_with("low", reinterpret_cast<void*>(8), path);
  call_with("unmapped", reinterpret_cast<void*>(0x10000000), path);
  call_with("the kernel's", reinterpret_cast<void*>(intptr_t{-4096}), path);
  call_with("last", reinterpret_cast<void*>(intptr_t{-1}), path);
  call_with("closed page", pages + page, path);
  call_with("last of a page", static_cast<char*>(memset(pages + page - 1, '/', 1)), path);
  // A path that begins well, and has no end.
  char begin[4096];
  snprintf(begin, sizeof begin, "%s", path);
  *strrchr(begin, '/') = '\0';
  for (const char* text : {path, static_cast<const char*>(begin), "/proc/self/fd/", "/dev/f", "relative/name", "/"}) {
    const size_t bytes = strlen(text);
    char way[64];
    snprintf(way, sizeof way, "no end after %.8s", text);
    call_with(way, memcpy(pages + page - bytes, text, bytes), path);
  }
  munmap(pages, 2 * page);
}

void by_streams(const char* path) {
  for (const char* name : {"fopen", "fopen64", "_IO_fopen"}) {
    for (const char* mode : {"r", "rb", "re", "rm", "r+"}) {
      char way[64];
      snprintf(way, sizeof way, "%s-%s", name, mode);
      read_stream(way, named<FILE*(const char*, const char*)>(name)(path, mode));
    }
  }
  for (const char* name : {"freopen", "freopen64"}) {
    FILE* stream = fopen("/dev/null", "r");
    read_stream(name, named<FILE*(const char*, const char*, FILE*)>(name)(path, "r", stream));
  }
  read_stream("fopen-absent", fopen("/nothing/here", "r"));
}

void by_reads(const char* path) {
  char more[512];
  {
    Digest digest;
    const int fd = open(path, O_RDONLY);
    for (off_t at = 0;;) {
      const ssize_t got = pread(fd, g_bytes, 65536, at);
      if (got <= 0) break;
      digest.add(g_bytes, static_cast<size_t>(got));
      at += got;
    }
    describe(fd, more, sizeof more);
    say("pread", digest, more);
    close(fd);
  }
  {
    Digest digest;
    const int fd = open(path, O_RDONLY);
    for (;;) {
      iovec parts[2] = {{g_bytes, 100}, {g_bytes + 100, 5000}};
      const ssize_t got = readv(fd, parts, 2);
      if (got <= 0) break;
      digest.add(g_bytes, static_cast<size_t>(got));
    }
    say("readv", digest, "");
    close(fd);
  }
  for (const int flags : {MAP_PRIVATE, MAP_SHARED}) {
    Digest digest;
    const int fd = open(path, O_RDONLY);
    struct stat file;
    fstat(fd, &file);
    const auto bytes = static_cast<size_t>(file.st_size);
    void* map = bytes > 0 ? mmap(nullptr, bytes, PROT_READ, flags, fd, 0) : nullptr;
    close(fd);
    if (bytes > 0) digest.add(static_cast<const char*>(map), bytes);
    say("mmap", digest, "");
  }
  {
    const int fd = open(path, O_RDONLY);
    FILE* out = tmpfile();
    while (sendfile(fileno(out), fd, nullptr, 65536) > 0) {
    }
    close(fd);
    rewind(out);
    Digest digest;
    for (size_t got; (got = fread(g_bytes, 1, kRoom, out)) > 0;) digest.add(g_bytes, got);
    say("sendfile", digest, "");
    fclose(out);
  }
  {
    Digest digest;
    const int fd = open(path, O_RDONLY | O_DIRECT);
    for (ssize_t got; fd >= 0 && (got = read(fd, g_bytes, 65536)) > 0;) digest.add(g_bytes, static_cast<size_t>(got));
    say("direct", digest, "");
    if (fd >= 0) close(fd);
  }
}

void by_descriptors(const char* path) {
  const int fd = open(path, O_RDONLY);
  const int second = dup(fd);
  close(fd);
  read_out("dup", second);
  const int moved = open(path, O_RDONLY);
  read_out("fcntl-dup", fcntl(moved, F_DUPFD_CLOEXEC, 100));
  printf("flags %x %x\n", fcntl(moved, F_GETFL), fcntl(moved, F_GETFD));
  close(moved);
  close(0);
  const int lowest = open(path, O_RDONLY);
  printf("lowest %d\n", lowest);
  read_out("as-input", lowest);
  const int closing = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  printf("flags %x %x\n", fcntl(closing, F_GETFL), fcntl(closing, F_GETFD));
  close(closing);
  fflush(stdout);
  const int inherited = open(path, O_RDONLY);
  const pid_t child = fork();
  if (child == 0) {
    read_out("in-child", inherited);
    read_out("opened-in-child", open(path, O_RDONLY));
    fflush(stdout);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  close(inherited);
}

void by_locks(const char* path) {
  const int fd = open(path, O_RDONLY);
  char half[8];
  const ssize_t got = read(fd, half, 4);
  printf("flock %d\n", flock(fd, LOCK_SH | LOCK_NB));
  struct flock lock;
  memset(&lock, 0, sizeof lock);
  lock.l_type = F_RDLCK;
  printf("fcntl-lock %d\n", fcntl(fd, F_SETLK, &lock));
  printf("offset %ld of %zd\n", static_cast<long>(lseek(fd, 0, SEEK_CUR)), got);
  // A lock is real when another process cannot have it.
  const int writer = open(path, O_RDWR);
  printf("other lock %d\n", flock(writer, LOCK_EX | LOCK_NB));
  close(writer);
  read_out("after-lock", fd);
}

/// A number of 8 bits of what the descriptor gives, without any memory of the program's: a whole digest has no place in
/// an exit code.
int sum_of(int fd) {
  char some[256];
  unsigned sum = 1;
  for (ssize_t got; fd >= 0 && (got = read(fd, some, sizeof some)) > 0;) {
    for (ssize_t i = 0; i < got; ++i) sum = sum * 31 + static_cast<unsigned char>(some[i]);
  }
  return fd < 0 ? 255 : static_cast<int>(sum % 251);
}

void by_children(const char* path) {
  int status = 0;
  fflush(stdout);
  // A program that closed everything, as daemons do, and opens its own first.
  pid_t child = fork();
  if (child == 0) {
    for (int fd = 0; fd < 4096; ++fd) close(fd);
    const int first = open(path, O_RDONLY);
    _exit(first == 0 ? sum_of(first) : 254);
  }
  waitpid(child, &status, 0);
  printf("all-closed %x\n", status);
  // The memory is the parent's, which sleeps.
  child = vfork();
  if (child == 0) _exit(sum_of(open(path, O_RDONLY)));
  waitpid(child, &status, 0);
  printf("vforked %x\n", status);
  read_out("after-vfork", open(path, O_RDONLY));
}

const char* g_handled = nullptr;
int g_sum = -1;
void open_in_handler(int) {
  struct stat file;
  const int fd = open(g_handled, O_RDONLY);
  char byte;
  if (fd >= 0 && fstat(fd, &file) == 0 && pread(fd, &byte, 1, 0) >= 0) g_sum = sum_of(fd);
  close(fd);
}

/// Says on the error output how much of its stack the handler used, beside what the kernel puts there.
void by_handler(const char* path) {
  static char place[256 << 10];
  constexpr char kUnused = 0x5a;
  memset(place, kUnused, sizeof place);
  stack_t stack = {};
  stack.ss_sp = place;
  stack.ss_size = sizeof place;
  struct sigaction action = {};
  action.sa_handler = open_in_handler;
  action.sa_flags = SA_ONSTACK;
  if (sigaltstack(&stack, nullptr) != 0 || sigaction(SIGUSR1, &action, nullptr) != 0) abort();
  g_handled = path;
  raise(SIGUSR1);
  printf("in-handler %d\n", g_sum);
  const char* deepest = place;
  while (*deepest == kUnused) ++deepest;
  fprintf(stderr, "%td\n", place + sizeof place - deepest);
}

/// One read through io_uring, of a descriptor that open() gave.
void by_ring(const char* path) {
  io_uring_params params;
  memset(&params, 0, sizeof params);
  const int ring = static_cast<int>(syscall(SYS_io_uring_setup, 4, &params));
  if (ring < 0) {
    printf("no ring: %s\n", strerror(errno));
    return;
  }
  const size_t queue_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const size_t done_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  const int shared = PROT_READ | PROT_WRITE;
  auto* const queue = static_cast<char*>(mmap(nullptr, queue_bytes, shared, MAP_SHARED, ring, IORING_OFF_SQ_RING));
  auto* const done = static_cast<char*>(mmap(nullptr, done_bytes, shared, MAP_SHARED, ring, IORING_OFF_CQ_RING));
  auto* const entries = static_cast<io_uring_sqe*>(
      mmap(nullptr, params.sq_entries * sizeof(io_uring_sqe), shared, MAP_SHARED, ring, IORING_OFF_SQES));
  const int fd = open(path, O_RDONLY);
  memset(entries, 0, sizeof *entries);
  entries->opcode = IORING_OP_READ;
  entries->fd = fd;
  entries->addr = reinterpret_cast<uint64_t>(g_bytes);
  entries->len = kRoom;
  reinterpret_cast<unsigned*>(queue + params.sq_off.array)[0] = 0;
  __atomic_store_n(reinterpret_cast<unsigned*>(queue + params.sq_off.tail), 1, __ATOMIC_RELEASE);
  syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
  const int got = reinterpret_cast<const io_uring_cqe*>(done + params.cq_off.cqes)->res;
  Digest digest;
  if (got > 0) digest.add(g_bytes, static_cast<size_t>(got));
  say("ring", digest, "");
  close(fd);
  close(ring);
}

/// Before main(), and before other libraries are ready.
int g_early = -1;
__attribute__((constructor(101))) void open_early() {
  const char* path = getenv("READ_WAYS_EARLY");
  if (path != nullptr) g_early = open(path, O_RDONLY);
}
const char* g_late = nullptr;
void read_late() {
  if (g_late != nullptr) read_out("at-exit", open(g_late, O_RDONLY));
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  g_late = argv[1];
  atexit(read_late);
  if (g_early >= 0) read_out("early", g_early);
  if (argc > 2) {
    strcmp(argv[2], "ring") == 0 ? by_ring(argv[1]) : by_handler(argv[1]);
    return 0;
  }
  by_open(argv[1]);
  by_name(argv[1]);
  by_bad_addresses(argv[1]);
  by_streams(argv[1]);
  by_reads(argv[1]);
  by_descriptors(argv[1]);
  by_locks(argv[1]);
  by_children(argv[1]);
  return 0;
}
