// SPDX-License-Identifier: Apache-2.0
// `freshet tier keep`, and how other commands start a keeper that ends by itself.

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "bindings/cli/tier/tier.h"
#include "core/base/format.h"
#include "core/base/wake.h"

namespace freshet::cli {
namespace {

constexpr const char* kReadyLine = "ready\n";
constexpr Duration kKeeperPatience = std::chrono::seconds(60);

struct KeepArguments {
  bool in_background = false;
};

/// Nobody's pipes are held open by a keeper that outlives who started it.
void let_go_of_streams() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) (void)::dup2(null, stream);
  if (null > STDERR_FILENO) ::close(null);
}

Result<ExitCode> keep(Program& program, const tier::Config& config, const KeepArguments& arguments) {
  // A keeper in the background must not be a child of the command that started it: that command never waits for it.
  if (arguments.in_background && ::fork() > 0) ::_exit(0);
  const Interrupt::Deferral deferral;
  // Its threads take turns: memory for each of them, and pieces of files that are kept for the next, would be memory
  // that the training lacks.
  (void)::mallopt(M_ARENA_MAX, 2);
  (void)::mallopt(M_MMAP_THRESHOLD, 256 * 1024);
  // The kernel sends SIGIO if a program opens a file for writing while the keeper asks about writers of this file.
  (void)::signal(SIGIO, SIG_IGN);
  FRESHET_ASSIGN(tier::BoardFile board, tier::BoardFile::open(config));
  tier::Board& shared = board.board();
  FRESHET_ASSIGN(const auto door, tier::KeeperDoor::open(config, std::move(board)));
  Troubles troubles(shared);
  tier::DoorOptions options{
      .ends_when_idle = arguments.in_background, .stop_descriptor = program.interrupt.descriptor(), .on_look = {}};
  if (arguments.in_background) {
    (void)!::write(STDOUT_FILENO, kReadyLine, std::string_view(kReadyLine).size());
    let_go_of_streams();
  } else {
    options.on_look = [&troubles] { troubles.tell(); };
    troubles.tell();
    tell_tier(format("keeping {} source{} in {} tier{}", config.sources.size(), config.sources.size() == 1 ? "" : "s",
                     config.tiers.size(), config.tiers.size() == 1 ? "" : "s"));
  }
  FRESHET_TRY(door->run(options));
  return program.interrupt.requested() ? ExitCode::interrupted : ExitCode::done;
}

/// Environment without what would load the reader into the keeper, which reads the sources themselves.
std::vector<char*> plain_environment() {
  std::vector<char*> words;
  for (char** at = environ; *at != nullptr; ++at) {
    if (!std::string_view(*at).starts_with("LD_PRELOAD=")) words.push_back(*at);
  }
  words.push_back(nullptr);
  return words;
}

/// "" when it is ready, else what it said.
Result<std::string> start_keeper(const tier::Config& config) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, "start a keeper");
  const FileDescriptor out(ends[0]);
  FileDescriptor in(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  (void)::posix_spawn_file_actions_init(&actions);
  (void)::posix_spawnattr_init(&attributes);
  (void)::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  (void)::posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  (void)::posix_spawn_file_actions_adddup2(&actions, in.get(), STDERR_FILENO);
  (void)::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  char program[] = "/proc/self/exe";
  std::vector<std::string> texts = {"freshet", "tier", "keep", "--in-background", "--config", config.file};
  std::vector<char*> words;
  for (std::string& text : texts) words.push_back(text.data());
  words.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, program, &actions, &attributes, words.data(), plain_environment().data());
  (void)::posix_spawn_file_actions_destroy(&actions);
  (void)::posix_spawnattr_destroy(&attributes);
  in = FileDescriptor();
  if (error != 0) return fail_errno(error, "start a keeper");
  (void)::waitpid(child, nullptr, 0);
  std::string said;
  const Time deadline = system_clock().now() + kKeeperPatience;
  while (said != kReadyLine && system_clock().now() < deadline) {
    if (!wait_readable(out.get(), deadline)) continue;
    char bytes[512];
    const ssize_t got = ::read(out.get(), bytes, sizeof bytes);
    if (got <= 0) break;
    said.append(bytes, static_cast<std::size_t>(got));
  }
  if (said == kReadyLine) return std::string();
  return said.empty() ? std::string("it ended at once") : said;
}

}  // namespace

Result<tier::KeeperLine> reach_keeper(const tier::Config& config) {
  std::string said;
  for (int tries = 0; tries < 5; ++tries) {
    if (Result<tier::KeeperLine> line = tier::KeeperLine::connect(config); line) {
      // One that is about to end may still take the connection.
      if (line->say("hold", system_clock().now() + kKeeperPatience)) return line;
    }
    FRESHET_ASSIGN(said, start_keeper(config));
  }
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (said.starts_with("freshet tier: ")) said.erase(0, 14);
  return fail(Code::unavailable, format("no keeper could be started: {}", said));
}

void add_tier_keep(CLI::App& tier, Program& program) {
  CLI::App& command = *tier.add_subcommand("keep", "copy what programs open, until stopped");
  auto arguments = std::make_shared<KeepArguments>();
  auto file = std::make_shared<std::string>();
  add_tier_config(command, *file);
  command.add_flag("--in-background", arguments->in_background, "say \"ready\", let go of the streams, end when idle")
      ->group("");
  act_on_tiers(command, program, file,
               [arguments](Program& inner, const tier::Config& config) { return keep(inner, config, *arguments); });
}

}  // namespace freshet::cli
