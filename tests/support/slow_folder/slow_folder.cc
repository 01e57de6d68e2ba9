// SPDX-License-Identifier: Apache-2.0
#include "tests/support/slow_folder/slow_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr Duration kAnswerWithin = std::chrono::seconds(60);

/// The program of this build; "" when the build has none.
std::string slow_folder_program() {
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* there : {"lab/slow_folder", "../lab/slow_folder", "../bin/lab/slow_folder"}) {
    const auto program = (here / there).lexically_normal();
    if (std::filesystem::exists(program, error)) return program.string();
  }
  return "";
}

std::int64_t microseconds_of(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

Result<std::unique_ptr<SlowFolder>> SlowFolder::open(const SlowFolderOptions& options) {
  const std::string program = slow_folder_program();
  if (program.empty()) return fail(Code::unavailable, "this build has no slow_folder: libfuse3 was missing");
  const FileDescriptor device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device) return fail(Code::unavailable, "no FUSE: /dev/fuse cannot be opened");
  std::filesystem::create_directories(options.mount);
  int in[2];
  int out[2];
  if (::pipe2(in, O_CLOEXEC) != 0) return fail_errno(errno, "start slow_folder");
  std::unique_ptr<SlowFolder> folder(new SlowFolder(options));
  const FileDescriptor their_in(in[0]);
  folder->to_ = FileDescriptor(in[1]);
  if (::pipe2(out, O_CLOEXEC) != 0) return fail_errno(errno, "start slow_folder");
  FileDescriptor their_out(out[1]);
  folder->from_ = FileDescriptor(out[0]);
  std::vector<std::string> texts = {program,
                                    "--backing",
                                    options.backing,
                                    "--mount",
                                    options.mount,
                                    "--latency-us",
                                    std::to_string(microseconds_of(options.latency)),
                                    "--bandwidth",
                                    format("{}", options.bytes_per_second)};
  if (!options.cached) texts.emplace_back("--uncached");
  std::vector<char*> words;
  for (std::string& text : texts) words.push_back(text.data());
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, their_in.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, their_out.get(), STDOUT_FILENO);
  const int error = ::posix_spawn(&folder->pid_, program.c_str(), &actions, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  their_out = FileDescriptor();
  if (error != 0) {
    folder->pid_ = -1;
    return fail_errno(error, "start slow_folder");
  }
  if (const Result<std::string> ready = folder->read_line(); !ready) {
    return fail(Code::unavailable, "FUSE cannot be mounted here (fusermount3, or the right to mount, is missing)");
  }
  return folder;
}

SlowFolder::~SlowFolder() {
  to_ = FileDescriptor();
  if (pid_ > 0) (void)::waitpid(pid_, nullptr, 0);
  // One that was killed leaves this to fusermount, which now and then forgets it.
  (void)::umount2(options_.mount.c_str(), MNT_DETACH);
}

Result<std::string> SlowFolder::read_line() {
  const Time deadline = system_clock().now() + kAnswerWithin;
  for (;;) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (system_clock().now() >= deadline) return fail(Code::timed_out, "slow_folder does not answer");
    pollfd waiter{.fd = from_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&waiter, 1, 1000) <= 0) continue;
    char bytes[4096];
    const ssize_t got = ::read(from_.get(), bytes, sizeof bytes);
    if (got <= 0) return fail(Code::unavailable, "slow_folder ended");
    unread_.append(bytes, static_cast<std::size_t>(got));
  }
}

Result<std::string> SlowFolder::ask(const std::string& command) {
  const std::string line = command + "\n";
  // Of a process that is gone an error is wanted, no signal.
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  const bool sent = ::write(to_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  (void)::signal(SIGPIPE, before);
  if (!sent) return fail(Code::unavailable, "slow_folder ended");
  return read_line();
}

Status SlowFolder::tell(const std::string& command) {
  FRESHET_ASSIGN(const std::string said, ask(command));
  if (said != "{\"ok\":true}") return refuse(format("slow_folder does not understand: {}", command));
  return {};
}

Result<SlowCounters> SlowFolder::counters() {
  FRESHET_ASSIGN(const std::string said, ask("counters"));
  const auto json = nlohmann::json::parse(said, nullptr, false);
  if (!json.is_object()) return fail(Code::corrupt, format("slow_folder said: {}", said));
  const auto value = [&](const char* name) { return json.value(name, std::uint64_t{0}); };
  return SlowCounters{.lookups = value("lookups"),
                      .getattrs = value("getattrs"),
                      .opens = value("opens"),
                      .reads = value("reads"),
                      .writes = value("writes"),
                      .others = value("others"),
                      .bytes = value("bytes")};
}

Status SlowFolder::reset() { return tell("reset"); }
Status SlowFolder::invalidate() { return tell("invalidate"); }
Status SlowFolder::set_pace(Duration latency, double bytes_per_second) {
  return tell(format("pace {} {}", microseconds_of(latency), bytes_per_second));
}
Status SlowFolder::fail_on(const std::string& operation, int error, const std::string& path, std::uint64_t after) {
  return tell(format("fail {} {} {} {}", operation, error, after, path));
}
Status SlowFolder::kill_on(const std::string& operation, const std::string& path, std::uint64_t after) {
  return tell(format("die {} {} {}", operation, after, path));
}
Status SlowFolder::cut(const std::string& path, std::uint64_t bytes) { return tell(format("cut {} {}", bytes, path)); }
Status SlowFolder::heal() { return tell("heal"); }

}  // namespace freshet
