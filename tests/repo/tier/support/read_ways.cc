// SPDX-License-Identifier: Apache-2.0
// Reads a file in every way that the C library has, and prints a line for each: the way, the bytes, what fstat() says.
// Run with and without the reader it prints the same.
//
// usage: read_ways FILE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
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
  for (const char* name : {"open", "open64"}) read_out(name, named<int(const char*, int, ...)>(name)(path, O_RDONLY));
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

void by_streams(const char* path) {
  for (const char* name : {"fopen", "fopen64"}) {
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
  by_open(argv[1]);
  by_name(argv[1]);
  by_streams(argv[1]);
  by_reads(argv[1]);
  by_descriptors(argv[1]);
  by_locks(argv[1]);
  return 0;
}
