// SPDX-License-Identifier: Apache-2.0
// `freshet tier run`: a command with the reader in it, and a keeper beside it.

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>

#include "bindings/cli/tier/supervise.h"
#include "bindings/cli/tier/tier.h"
#include "core/base/env.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

constexpr int kNotFoundCode = 127;
constexpr int kNotStartedCode = 126;
/// How often the board is looked at for troubles while the command runs.
constexpr int kLookEachMs = 2000;

struct RunArguments {
  std::string report;
  std::string via = "preload";
  std::vector<std::string> command;
};

/// Where the shell would find the program; "" when nowhere.
std::string found_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  const std::string folders = path != nullptr ? path : "/bin:/usr/bin";
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string at = (end == begin ? "." : folders.substr(begin, end - begin)) + "/" + name;
    if (::access(at.c_str(), X_OK) == 0) return at;
    begin = end + 1;
  }
  return "";
}

/// Why the reader will not be loaded into that program; "" when it will, or nothing tells.
std::string why_unseen(const std::string& path, int depth = 0) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  if ((info.st_mode & (S_ISUID | S_ISGID)) != 0 && info.st_uid != ::geteuid()) return "is set-user-ID or set-group-ID";
  std::ifstream in(path, std::ios::binary);
  char head[256] = {};
  in.read(head, sizeof head - 1);
  if (in.gcount() >= 2 && head[0] == '#' && head[1] == '!' && depth < 4) {
    const std::string line(head + 2, std::string_view(head + 2).find_first_of("\n"));
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) return "";
    return why_unseen(line.substr(begin, line.find_first_of(" \t", begin) - begin), depth + 1);
  }
  Elf64_Ehdr elf{};
  in.clear();
  in.seekg(0);
  if (!in.read(reinterpret_cast<char*>(&elf), sizeof elf)) return "";
  if (std::string_view(reinterpret_cast<const char*>(elf.e_ident), 4) != "\177ELF" ||
      elf.e_ident[EI_CLASS] != ELFCLASS64)
    return "";
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr part{};
    in.seekg(static_cast<std::streamoff>(elf.e_phoff + std::uint64_t{i} * sizeof part));
    if (!in.read(reinterpret_cast<char*>(&part), sizeof part)) return "";
    if (part.p_type == PT_INTERP) return "";
  }
  return "is a static program (--via seccomp would serve it)";
}

std::vector<std::string> environment_with(const std::string& library, const tier::Config& config) {
  std::vector<std::string> words;
  std::string preload = "LD_PRELOAD=" + library;
  const bool has_reader = !library.empty();
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string word = *at;
    if (has_reader && word.starts_with("LD_PRELOAD=")) {
      if (word.size() > 11) preload += ":" + word.substr(11);
    } else if (!word.starts_with("FRESHET_TIER=")) {
      words.push_back(word);
    }
  }
  if (has_reader) words.push_back(preload);
  words.push_back("FRESHET_TIER=" + config.file);
  return words;
}

Result<pid_t> start_command(const std::vector<std::string>& command, const std::string& program,
                            std::vector<std::string> environment, const sigset_t& defaults) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::vector<char*> variables;
  for (std::string& variable : environment) variables.push_back(variable.data());
  variables.push_back(nullptr);
  posix_spawnattr_t attributes;
  (void)::posix_spawnattr_init(&attributes);
  (void)::posix_spawnattr_setsigdefault(&attributes, &defaults);
  (void)::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, program.c_str(), nullptr, &attributes, words.data(), variables.data());
  (void)::posix_spawnattr_destroy(&attributes);
  if (error != 0) return fail_errno(error, format("start {}", command[0]));
  return child;
}

/// Waits for the command. Meanwhile a signal to us is handed on, a keeper that died is replaced (with a config), and
/// troubles are told.
int wait_for_command(pid_t child, Program& program, const tier::Config* config, std::optional<tier::KeeperLine>& keeper,
                     Troubles* troubles) {
  const FileDescriptor ended(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  bool handed_on = false;
  Duration pause = std::chrono::milliseconds(50);
  Time next_try = system_clock().now();
  for (;;) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return status;
    if (troubles != nullptr) troubles->tell();
    const bool seeks = config != nullptr && !keeper && pause < std::chrono::seconds(60);
    pollfd polled[3] = {{.fd = ended.get(), .events = POLLIN, .revents = 0},
                        {.fd = handed_on ? -1 : program.interrupt.descriptor(), .events = POLLIN, .revents = 0},
                        {.fd = keeper ? keeper->descriptor() : -1, .events = POLLIN, .revents = 0}};
    (void)::poll(polled, 3, seeks ? 50 : ended ? kLookEachMs : 20);
    if (!handed_on && program.interrupt.requested()) {
      handed_on = true;
      (void)::kill(child, SIGTERM);
    }
    if (polled[2].revents != 0) keeper.reset();
    if (!keeper && seeks && system_clock().now() >= next_try) {
      if (Result<tier::KeeperLine> line = reach_keeper(*config); line) {
        keeper.emplace(std::move(*line));
        pause = std::chrono::milliseconds(50);
      } else {
        pause *= 2;
      }
      next_try = system_clock().now() + pause;
    }
  }
}

Status write_report(const std::string& path, const Json& total) {
  const std::string text = to_line(total) + "\n";
  const Bytes pieces[] = {std::as_bytes(std::span(text))};
  return write_file_atomically(system_env(), path, pieces, /*sync=*/false);
}

Result<ExitCode> run_command(Program& program, const tier::Config& config, const RunArguments& arguments) {
  const bool is_supervised = arguments.via == "seccomp";
  std::string library;
  if (!is_supervised) {
    if (Result<std::string> found = reader_library(); found) {
      library = std::move(*found);
    } else {
      tell_tier(format("{}; {} reads the source, as without tiers", found.error().message(), arguments.command[0]));
    }
  }
  const bool is_tiered = is_supervised || !library.empty();
  const std::string path = found_program(arguments.command[0]);
  if (path.empty()) {
    tell_tier(format("{}: not found", arguments.command[0]));
    return static_cast<ExitCode>(kNotFoundCode);
  }
  if (const std::string why = library.empty() ? "" : why_unseen(path); !why.empty()) {
    tell_tier(format("{} {}: it reads the source, as without tiers", arguments.command[0], why));
  }
  std::optional<tier::KeeperLine> keeper;
  std::optional<tier::BoardFile> board;
  // The command runs whatever becomes of the tiers.
  if (is_tiered) {
    if (Result<tier::KeeperLine> line = reach_keeper(config); line) {
      keeper.emplace(std::move(*line));
    } else {
      tell_tier(line.error().message());
    }
  }
  if (Result<tier::BoardFile> opened = tier::BoardFile::open(config); opened) {
    board.emplace(std::move(*opened));
  } else {
    tell_tier(opened.error().message());
  }
  std::optional<Troubles> troubles;
  if (board) troubles.emplace(board->board());
  FileDescriptor run;
  if (board) run = tier::begin_run(*board);
  if (keeper) (void)keeper->say("run", system_clock().now() + std::chrono::seconds(10));
  const Interrupt::Deferral deferral;
  // The terminal sends an interrupt (SIGINT) to the command as well, and the command decides what it does. Only a
  // request to end (SIGTERM) has to be handed on.
  (void)::signal(SIGINT, SIG_IGN);
  // What our caller ignores, as for a job in the background, the command ignores too.
  const sigset_t& defaults = program.interrupt.own_signals();
  if (::sigismember(&defaults, SIGTERM) == 0) (void)::signal(SIGTERM, SIG_IGN);
  const std::vector<std::string> environment = environment_with(library, config);
  const Result<pid_t> child = is_supervised ? start_supervised(config, arguments.command, path, environment, defaults)
                                            : start_command(arguments.command, path, environment, defaults);
  if (!child) {
    tell_tier(child.error().message());
    return static_cast<ExitCode>(child.error().code() == Code::not_found ? kNotFoundCode : kNotStartedCode);
  }
  const int status =
      wait_for_command(*child, program, is_tiered ? &config : nullptr, keeper, troubles ? &*troubles : nullptr);
  run = FileDescriptor();
  if (board) {
    troubles->tell();
    if (!arguments.report.empty()) {
      if (Status wrote = write_report(arguments.report, total_of(board->board(), &troubles->before())); !wrote) {
        tell_tier(wrote.error().message());
      }
    }
  }
  return static_cast<ExitCode>(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

/// What stands after "--" on this program's command line, each word as it was given: CLI11 takes words in brackets
/// apart. `parsed` when there is no "--".
std::vector<std::string> words_after_mark(const std::vector<std::string>& parsed) {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  bool is_after = false;
  for (std::string word; std::getline(in, word, '\0');) {
    if (is_after) words.push_back(word);
    is_after |= word == "--";
  }
  return words.empty() ? parsed : words;
}

}  // namespace

void add_tier_run(CLI::App& tier, Program& program) {
  CLI::App& command = *tier.add_subcommand("run", "run a command; its reads are served from the tiers");
  auto arguments = std::make_shared<RunArguments>();
  auto file = std::make_shared<std::string>();
  add_tier_config(command, *file);
  command.add_option("--report", arguments->report, "write what this run read there, as JSON")->type_name("R.json");
  command
      .add_option("--via", arguments->via,
                  "preload: a library in each program; seccomp: the kernel asks, static programs and Go's too, but cp "
                  "and install refuse the copies")
      ->check(CLI::IsMember({"preload", "seccomp"}))
      ->capture_default_str();
  command.add_option("COMMAND", arguments->command, "and its arguments, after --")->required();
  command.positionals_at_end();
  act_on_tiers(command, program, file, [arguments](Program& inner, const tier::Config& config) {
    arguments->command = words_after_mark(arguments->command);
    return run_command(inner, config, *arguments);
  });
  CLI::App& supervisor = *tier.add_subcommand("supervise", "answer the opens of a command that runs --via seccomp");
  supervisor.group("");
  auto its_file = std::make_shared<std::string>();
  add_tier_config(supervisor, *its_file);
  act_on_tiers(supervisor, program, its_file, [](Program& /*inner*/, const tier::Config& config) -> Result<ExitCode> {
    const Interrupt::Deferral deferral;
    FRESHET_TRY(supervise(config));
    return ExitCode::done;
  });
}

}  // namespace freshet::cli
