// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/tier/supervise.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <thread>

#include "bindings/cli/tier/tier.h"
#include "core/base/deadline.h"
#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "core/base/wake.h"
#include "repo/tier/served_paths.h"

namespace freshet::cli {
namespace {

#if defined(__x86_64__)
constexpr unsigned kThisMachine = AUDIT_ARCH_X86_64;
#else
constexpr unsigned kThisMachine = AUDIT_ARCH_AARCH64;
#endif
/// A look at a source may take long, or for ever. So many at a time have their places, which the sources share, but
/// each has some of its own: a source that does not answer keeps its places, and nobody else's.
constexpr std::size_t kPlaces = 64;
constexpr std::size_t kPlacesLeast = 8;
constexpr int kSupervisedFlags =
    O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_NOATIME | O_DIRECT | O_LARGEFILE | 0100000;
constexpr std::string_view kNoFilter =
    "freshet tier: the kernel lets no process supervise the command's opens (seccomp): it reads the source\n";
constexpr std::string_view kNoSupervisor = "freshet tier: the supervisor went away before the command began\n";
constexpr Duration kReadyWithin = std::chrono::seconds(20);

#define FRESHET_ARGUMENT(n) (offsetof(seccomp_data, args) + std::size_t{n} * 8)

/// Opens for reading are asked about; all other calls, and those of another machine's programs, are let through.
int install_filter() {
  sock_filter code[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kThisMachine, 0, 8),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 3, 0),
#if defined(SYS_open)
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_open, 0, 5),
#else
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 5),
#endif
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FRESHET_ARGUMENT(1)),
    BPF_STMT(BPF_JMP | BPF_JA, 1),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FRESHET_ARGUMENT(2)),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_ACCMODE | O_CREAT | O_TRUNC | O_PATH | O_DIRECTORY, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

bool send_listener(int socket, int listener) {
  char byte = 'l';
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &listener, sizeof listener);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

FileDescriptor receive_listener(int socket) {
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return FileDescriptor();
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  int listener = -1;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return FileDescriptor();
  std::memcpy(&listener, CMSG_DATA(header), sizeof listener);
  return FileDescriptor(listener);
}

/// The text at an address of another process; "" when it cannot be read.
std::string text_of(pid_t process, std::uint64_t address) {
  constexpr std::size_t kPage = 4096;
  std::string text;
  char piece[kPage];
  while (text.size() < tier::kPathRoom) {
    const std::size_t bytes = kPage - address % kPage;
    iovec to{.iov_base = piece, .iov_len = bytes};
    iovec from{.iov_base = std::bit_cast<void*>(address), .iov_len = bytes};
    if (::process_vm_readv(process, &to, 1, &from, 1, 0) != static_cast<ssize_t>(bytes)) return "";
    const void* const end = std::memchr(piece, '\0', bytes);
    text.append(piece, end != nullptr ? static_cast<std::size_t>(static_cast<const char*>(end) - piece) : bytes);
    if (end != nullptr) return text;
    address += bytes;
  }
  return "";
}

/// Whether names mean to that process what they mean here, and it may read what this one may.
bool is_like_us(pid_t process) {
  struct stat ours {};
  struct stat theirs {};
  const std::string at = format("/proc/{}", process);
  if (::stat("/", &ours) != 0 || ::stat((at + "/root").c_str(), &theirs) != 0 || ours.st_ino != theirs.st_ino ||
      ours.st_dev != theirs.st_dev) {
    return false;
  }
  if (::stat("/proc/self/ns/mnt", &ours) != 0 || ::stat((at + "/ns/mnt").c_str(), &theirs) != 0 ||
      ours.st_ino != theirs.st_ino) {
    return false;
  }
  return ::stat(at.c_str(), &theirs) == 0 && theirs.st_uid == ::geteuid();
}

/// Whether this user may open the file so.
bool may_open(const std::string& path, int flags) {
  struct stat file {};
  if ((flags & O_NOFOLLOW) != 0 && (::lstat(path.c_str(), &file) != 0 || S_ISLNK(file.st_mode))) return false;
  if ((flags & O_NOATIME) != 0 && (::stat(path.c_str(), &file) != 0 || file.st_uid != ::geteuid())) return false;
  return ::access(path.c_str(), R_OK) == 0;
}

class Supervisor {
 public:
  Supervisor(const tier::Config& config, tier::ServedPaths paths, FileDescriptor listener)
      : config_(config),
        paths_(std::move(paths)),
        listener_(std::move(listener)),
        places_(std::max(kPlacesLeast, kPlaces / config.sources.size())),
        looks_(config.sources.size()) {}

  /// How many threads are to run(): while every place is taken by a look, one is left for the opens that need none.
  std::size_t threads() const { return places_ * looks_.size() + 1; }

  /// Until nobody is left to ask. Any thread; several answer side by side.
  void run() const {
    seccomp_notif asked{};
    while (take(asked)) {
      if (asked.id == 0 || give_copy(asked)) continue;
      seccomp_notif_resp answer{};
      answer.id = asked.id;
      answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      (void)::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
  }

 private:
  /// The next question; without one its id is 0. False when nobody is left to ask. One thread at a time waits: a second
  /// one would not be woken when the last process ends.
  bool take(seccomp_notif& asked) const FRESHET_EXCLUDES(turn_) {
    const MutexLock turn(turn_);
    asked = {};
    pollfd waiter{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&waiter, 1, 60'000) < 0) return errno == EINTR;
    if ((waiter.revents & POLLIN) == 0) return waiter.revents == 0;
    // Who asked may have died meanwhile.
    if (::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) asked.id = 0;
    return true;
  }

  /// One look at a source, where it has a place left.
  class Look {
   public:
    Look(std::atomic<std::size_t>& looks, std::size_t places)
        : looks_(looks), has_place_(looks.fetch_add(1) < places) {}
    ~Look() { looks_.fetch_sub(1); }
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;
    explicit operator bool() const { return has_place_; }

   private:
    std::atomic<std::size_t>& looks_;
    const bool has_place_;
  };

  /// The source that the path is spelled below; the number of sources when there is none.
  std::size_t source_of(const std::string& path) const {
    const auto found = std::ranges::find_if(config_.sources, [&path](const std::string& source) {
      return source == "/" || path.starts_with(source + "/");
    });
    return static_cast<std::size_t>(found - config_.sources.begin());
  }

  /// The absolute path that is spelled; "" when it is not known. Asks no file system.
  static std::string path_of(const seccomp_notif& asked, int folder, std::uint64_t address) {
    const auto process = static_cast<pid_t>(asked.pid);
    std::string path = text_of(process, address);
    if (path.empty()) return "";
    if (path[0] != '/') {
      std::error_code error;
      const std::string at = folder == AT_FDCWD ? "cwd" : format("fd/{}", folder);
      const auto base = std::filesystem::read_symlink(format("/proc/{}/{}", process, at), error);
      if (error || !base.is_absolute()) return "";
      path = base.string() + "/" + path;
    }
    return path;
  }

  /// False when the open is to go on as it would.
  bool give_copy(const seccomp_notif& asked) const {
    const bool has_folder = asked.data.nr == SYS_openat;
    const auto flags = static_cast<int>(asked.data.args[has_folder ? 2 : 1]);
    if ((flags & ~(O_ACCMODE | kSupervisedFlags)) != 0) return false;
    const std::string path = path_of(asked, has_folder ? static_cast<int>(asked.data.args[0]) : AT_FDCWD,
                                     asked.data.args[has_folder ? 1 : 0]);
    const std::size_t source = source_of(path);
    if (path.empty() || source == looks_.size()) return false;
    // Where all places are taken the open goes on, at the source.
    const Look look(looks_[source], places_);
    // What was read may have been another process's by then.
    if (!look || !is_like_us(static_cast<pid_t>(asked.pid)) ||
        ::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_ID_VALID, &asked.id) != 0 || !may_open(path, flags)) {
      return false;
    }
    const std::string place = paths_.place_of(path);
    if (place == path) return false;
    const int kept_flags = flags & (O_NONBLOCK | O_NOATIME);
    const FileDescriptor copy(::open(place.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | kept_flags));
    if (!copy) return false;
    seccomp_notif_addfd give{};
    give.id = asked.id;
    give.flags = SECCOMP_ADDFD_FLAG_SEND;
    give.srcfd = static_cast<unsigned>(copy.get());
    give.newfd_flags = static_cast<unsigned>(flags & O_CLOEXEC);
    // No descriptor left in the program: its own open says so.
    return ::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_ADDFD, &give) >= 0;
  }

  mutable Mutex turn_;
  const tier::Config& config_;
  const tier::ServedPaths paths_;
  const FileDescriptor listener_;
  const std::size_t places_;  ///< Of each source.
  mutable std::vector<std::atomic<std::size_t>> looks_;
};

/// In the child, between fork and exec: nothing here allocates.
[[noreturn]] void become_supervised(int socket, const char* program, char* const* words, char* const* variables,
                                    const sigset_t& defaults) {
  sigset_t none;
  ::sigemptyset(&none);
  (void)::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM}) {
    if (::sigismember(&defaults, signal) == 1) (void)::signal(signal, SIG_DFL);
  }
  const int listener = install_filter();
  char byte = 0;
  if (listener < 0) {
    (void)!::write(STDERR_FILENO, kNoFilter.data(), kNoFilter.size());
  } else if (!send_listener(socket, listener) || ::read(socket, &byte, 1) != 1) {
    (void)!::write(STDERR_FILENO, kNoSupervisor.data(), kNoSupervisor.size());
    ::_exit(126);
  }
  if (listener >= 0) (void)::close(listener);
  (void)::close(socket);
  ::execve(program, words, variables);
  ::_exit(errno == ENOENT ? 127 : 126);
}

Result<FileDescriptor> start_supervisor(const tier::Config& config) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return fail_errno(errno, "start a supervisor");
  FileDescriptor ours(ends[0]);
  const FileDescriptor theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  (void)::posix_spawn_file_actions_init(&actions);
  (void)::posix_spawnattr_init(&attributes);
  (void)::posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
  (void)::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  (void)::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  (void)::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  char program[] = "/proc/self/exe";
  std::string texts[] = {"freshet", "tier", "supervise", "--config", config.file};
  char* words[] = {texts[0].data(), texts[1].data(), texts[2].data(), texts[3].data(), texts[4].data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, program, &actions, &attributes, words, environ);
  (void)::posix_spawn_file_actions_destroy(&actions);
  (void)::posix_spawnattr_destroy(&attributes);
  if (error != 0) return fail_errno(error, "start a supervisor");
  char byte = 0;
  if (!wait_readable(ours.get(), deadline_in(kReadyWithin)) || ::read(ours.get(), &byte, 1) != 1)
    return fail(Code::unavailable, "the supervisor did not start");
  return ours;
}

}  // namespace

Result<pid_t> start_supervised(const tier::Config& config, const std::vector<std::string>& command,
                               const std::string& program, std::vector<std::string> environment,
                               const sigset_t& defaults) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::vector<char*> variables;
  for (std::string& variable : environment) variables.push_back(variable.data());
  variables.push_back(nullptr);
  FRESHET_ASSIGN(const FileDescriptor socket, start_supervisor(config));
  const pid_t child = ::fork();
  if (child < 0) return fail_errno(errno, format("start {}", command[0]));
  if (child == 0) become_supervised(socket.get(), program.c_str(), words.data(), variables.data(), defaults);
  return child;
}

Status supervise(const tier::Config& config) {
  FRESHET_ASSIGN(tier::ServedPaths paths, tier::ServedPaths::open(config));
  const char byte = 'r';
  if (::write(STDIN_FILENO, &byte, 1) != 1) return fail_errno(errno, "tell that the supervisor is there");
  FileDescriptor listener = receive_listener(STDIN_FILENO);
  if (!listener) return fail(Code::unavailable, "no program was started");
  if (::write(STDIN_FILENO, &byte, 1) != 1) return fail_errno(errno, "tell that the supervisor is there");
  const Supervisor supervisor(config, std::move(paths), std::move(listener));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < supervisor.threads(); ++i) threads.emplace_back([&supervisor] { supervisor.run(); });
  for (std::thread& thread : threads) thread.join();
  return {};
}

bool can_supervise() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(install_filter() >= 0 ? 0 : 1);
  int status = -1;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace freshet::cli
