// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tiering/costs.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string_view>
#include <vector>

#include "benchmarks/tiering/job.h"
#include "core/base/format.h"

extern char** environ;

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kFileBytes = std::uint64_t{64} << 20;
constexpr std::size_t kFilesBefore = 1000;
constexpr double kExecMsMost = 2;
constexpr double kPreadNsMost = 200;
constexpr double kKeeperBytesMost = 200;

double per_call_ns(std::int64_t begin_ns, std::size_t count) {
  return static_cast<double>(monotonic_ns() - begin_ns) / static_cast<double>(count);
}

int cost_of_pread(const char* path, std::size_t bytes, std::size_t count) {
  std::vector<char> room(bytes);
  const int fd = ::open(path, O_RDONLY);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) return 1;
  const std::size_t pieces = static_cast<std::size_t>(info.st_size) / bytes;
  std::int64_t begin = 0;
  // The first half warms up.
  for (std::size_t i = 0; i < 2 * count; ++i) {
    if (i == count) begin = monotonic_ns();
    if (::pread(fd, room.data(), bytes, static_cast<off_t>(i % pieces * bytes)) != static_cast<ssize_t>(bytes))
      return 1;
  }
  std::cout << per_call_ns(begin, count) << std::endl;
  return 0;
}

int cost_of_open(const char* path, std::size_t count) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < 2 * count; ++i) {
    if (i == count) begin = monotonic_ns();
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 1;
    ::close(fd);
  }
  std::cout << per_call_ns(begin, count) << std::endl;
  return 0;
}

int cost_of_exec(std::size_t count) {
  char program[] = "/bin/true";
  char* const words[] = {program, nullptr};
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < 2 * count; ++i) {
    if (i == count) begin = monotonic_ns();
    pid_t child = 0;
    int status = 0;
    if (::posix_spawn(&child, program, nullptr, nullptr, words, environ) != 0 || ::waitpid(child, &status, 0) != child)
      return 1;
  }
  std::cout << per_call_ns(begin, count) << std::endl;
  return 0;
}

Result<double> ns_of(const std::vector<std::string>& before, const std::vector<std::string>& cost) {
  std::vector<std::string> words = before;
  words.insert(words.end(), {own_path(), "cost"});
  words.insert(words.end(), cost.begin(), cost.end());
  FRESHET_ASSIGN(const auto lines, lines_of(words));
  if (lines.empty()) return fail(Code::corrupt, "a cost was not told");
  return std::stod(lines.back());
}

struct Pair {
  Samples plain;
  Samples served;
};

/// The same call without the tiers and with them, turn by turn.
Result<Pair> compare(const Tiers& tiers, int rounds, const std::vector<std::string>& plain,
                     const std::vector<std::string>& served) {
  Pair pair;
  for (int i = 0; i < rounds; ++i) {
    FRESHET_ASSIGN(const double without, ns_of({}, plain));
    FRESHET_ASSIGN(const double with, ns_of(tiers.run_words(), served));
    pair.plain.add(without);
    pair.served.add(with);
  }
  return pair;
}

void add_pair(Report& report, const std::string& name, const Pair& pair) {
  report.add_row(name, "plain", "ns", pair.plain);
  report.add_row(name, "freshet", "ns", pair.served);
}

double extra(const Pair& pair) { return std::max(1.0, pair.served.median() - pair.plain.median()); }

Status measure_calls(const std::string& folder, bool quick, int rounds, Report& report) {
  const std::string source = folder + "/calls";
  std::filesystem::create_directories(source);
  const std::string file = source + "/data";
  {
    const std::vector<char> bytes(1 << 20, 'x');
    std::ofstream out(file, std::ios::binary);
    for (std::uint64_t at = 0; at < kFileBytes; at += bytes.size()) out.write(bytes.data(), 1 << 20);
    if (!out.flush()) return fail(Code::io_error, format("write {}", file));
  }
  const std::string outside = folder + "/outside";
  std::ofstream(outside) << "outside\n";
  FRESHET_ASSIGN(const auto tiers, Tiers::make(folder, source, std::uint64_t{1} << 40, ""));
  FRESHET_TRY(tiers->command("prefetch"));
  FRESHET_TRY(tiers->command("settle"));
  const std::string large = quick ? "5000" : "20000";
  const std::string many = quick ? "50000" : "200000";
  const std::string opens = quick ? "20000" : "50000";
  FRESHET_ASSIGN(const Pair large_reads,
                 compare(*tiers, rounds, {"pread", file, "131072", large}, {"pread", file, "131072", large}));
  FRESHET_ASSIGN(const Pair small_reads,
                 compare(*tiers, rounds, {"pread", file, "4096", many}, {"pread", file, "4096", many}));
  FRESHET_ASSIGN(const Pair elsewhere,
                 compare(*tiers, rounds, {"open", "/proc/self/exe", opens}, {"open", "/proc/self/exe", opens}));
  FRESHET_ASSIGN(const Pair beside, compare(*tiers, rounds, {"open", outside, opens}, {"open", outside, opens}));
  FRESHET_ASSIGN(const Pair tiered, compare(*tiers, rounds, {"open", file, opens}, {"open", file, opens}));
  const std::string execs = quick ? "100" : "300";
  FRESHET_ASSIGN(const Pair exec, compare(*tiers, rounds, {"exec", execs}, {"exec", execs}));
  add_pair(report, "pread_128KiB", large_reads);
  add_pair(report, "pread_4KiB", small_reads);
  add_pair(report, "open_outside_other_file_system", elsewhere);
  add_pair(report, "open_outside_same_file_system", beside);
  add_pair(report, "open_of_a_copy", tiered);
  add_pair(report, "exec", exec);
  report.set_ratio("pread_128KiB", large_reads.plain.median() / large_reads.served.median());
  report.set_ratio("pread_4KiB_within_200ns", kPreadNsMost / extra(small_reads));
  report.set_ratio("open_outside", std::min(elsewhere.plain.median() / elsewhere.served.median(),
                                            beside.plain.median() / beside.served.median()));
  report.set_ratio("open_of_a_copy", tiered.plain.median() / tiered.served.median());
  report.set_ratio("exec_within_2ms", kExecMsMost * 1e6 / extra(exec));
  return {};
}

/// The memory that is the process' own.
std::uint64_t own_bytes(pid_t pid) {
  std::ifstream in(format("/proc/{}/smaps_rollup", pid));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Anonymous:")) return std::stoull(line.substr(10)) * 1024;
  }
  return 0;
}

/// In memory, where a copy costs no sync.
Status measure_keeper(bool quick, Report& report) {
  std::string folder = "/dev/shm/freshet-tiering-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return fail_errno(errno, folder);
  const std::size_t count = quick ? 11'000 : 51'000;
  const auto measure = [&]() -> Status {
    const std::string source = folder + "/source";
    std::filesystem::create_directories(source);
    for (std::size_t i = 0; i < count; ++i) std::ofstream(source + "/" + file_name(i)) << "x";
    FRESHET_ASSIGN(const auto tiers, Tiers::make(folder, source, std::uint64_t{1} << 40, ""));
    FRESHET_ASSIGN(const auto keeper,
                   Child::start({built_program("freshet"), "tier", "keep", "--config", tiers->config()}));
    FRESHET_ASSIGN(nlohmann::json total, tiers->total());
    while (!total["keeper_pid"].is_number()) {
      FRESHET_ASSIGN(total, tiers->total());
    }
    // The first files fill what does not grow with their number.
    std::vector<std::string> first = {built_program("freshet"), "tier", "prefetch", "--config", tiers->config()};
    for (std::size_t i = 0; i < kFilesBefore; ++i) first.push_back(source + "/" + file_name(i));
    FRESHET_ASSIGN([[maybe_unused]] const auto said, lines_of(first));
    FRESHET_TRY(tiers->command("settle"));
    const std::uint64_t before = own_bytes(keeper->pid());
    FRESHET_TRY(tiers->command("prefetch"));
    FRESHET_TRY(tiers->command("settle"));
    const std::uint64_t after = own_bytes(keeper->pid());
    FRESHET_ASSIGN(total, tiers->total());
    if (total["copied_files"] != count) {
      report.skip("keeper_within_200_bytes", "copies in /dev/shm could not be made: no extended attributes there");
      return {};
    }
    const double bytes =
        static_cast<double>(after - std::min(after, before)) / static_cast<double>(count - kFilesBefore);
    report.add_row(format("keeper_{}_files", count), "own_bytes_a_file", "bytes", bytes);
    report.set_ratio("keeper_within_200_bytes", kKeeperBytesMost / bytes);
    return {};
  };
  const Status measured = measure();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return measured;
}

}  // namespace

Status measure_costs(const std::string& folder, bool quick, int rounds, Report& report) {
  // Cheap, and in want of quiet moments.
  FRESHET_TRY(measure_calls(folder, quick, 3 * rounds, report));
  return measure_keeper(quick, report);
}

int run_cost(int count, char** words) {
  const std::string_view kind = count > 2 ? words[2] : "";
  const auto number = [&](int at) { return static_cast<std::size_t>(std::atol(words[at])); };
  if (kind == "pread" && count == 6) return cost_of_pread(words[3], number(4), number(5));
  if (kind == "open" && count == 5) return cost_of_open(words[3], number(4));
  if (kind == "exec" && count == 4) return cost_of_exec(number(3));
  return 2;
}

}  // namespace freshet::benchmarks
