// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tiering/job.h"

#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr auto kEpochWithin = std::chrono::minutes(10);

}  // namespace

std::string built_program(const std::string& name) {
  return (std::filesystem::path(own_path()).parent_path().parent_path() / name).string();
}

Result<std::vector<std::string>> lines_of(const std::vector<std::string>& command) {
  // A shell says how the command ended, after all that the command said.
  std::vector<std::string> words = {"sh", "-c", "\"$@\" < /dev/null; echo \"ended $?\"", "sh"};
  words.insert(words.end(), command.begin(), command.end());
  FRESHET_ASSIGN(const auto child, Child::start(words));
  std::vector<std::string> lines;
  for (;;) {
    FRESHET_ASSIGN(std::string line, child->read_line(kEpochWithin));
    if (line == "ended 0") return lines;
    if (line.starts_with("ended "))
      return fail(Code::failed_precondition, format("{}: {}", fmt::join(command, " "), line));
    lines.push_back(std::move(line));
  }
}

Result<std::unique_ptr<Trainer>> Trainer::start(TrainerOptions options) {
  std::vector<std::string> words = options.before;
  if (options.in_python) {
    words.insert(words.end(),
                 {"python3", (std::filesystem::path(own_path()).parent_path() / "tiering_reader.py").string()});
  } else {
    words.push_back(own_path());
  }
  words.insert(words.end(), {"read", options.folder, options.list, std::to_string(options.readers),
                             std::to_string(options.piece_bytes), options.each_reads_all ? "1" : "0",
                             std::to_string(options.work_us)});
  if (options.tells_order) words.push_back(built_program("freshet"));
  std::unique_ptr<Trainer> trainer(new Trainer(std::move(options)));
  FRESHET_ASSIGN(trainer->child_, Child::start(words));
  FRESHET_ASSIGN(const std::string ready, trainer->next_line("ready "));
  trainer->pid_ = std::stoi(ready);
  return trainer;
}

Result<std::string> Trainer::next_line(const std::string& begin) {
  for (;;) {
    FRESHET_ASSIGN(const std::string line, child_->read_line(kEpochWithin));
    if (line.starts_with(begin)) return line.substr(begin.size());
    if (line == "failed") return fail(Code::failed_precondition, "the trainer could not read a file");
  }
}

Result<Epoch> Trainer::epoch(unsigned number) {
  FRESHET_TRY(child_->write_line(format("epoch {}", number)));
  FRESHET_ASSIGN(const std::string said, next_line("read "));
  std::istringstream words(said);
  std::uint64_t bytes = 0;
  std::uint64_t sum = 0;
  Epoch epoch;
  if (!(words >> bytes >> sum >> epoch.seconds >> epoch.waited_s)) {
    return fail(Code::failed_precondition, format("the trainer said: {}", said));
  }
  if (bytes != options_.bytes || (!options_.in_python && sum != options_.sum)) {
    return fail(Code::corrupt, format("the trainer read {} bytes instead of {}, or other ones", bytes, options_.bytes));
  }
  return epoch;
}

Status Trainer::kill_within(unsigned number, double seconds) {
  FRESHET_TRY(child_->write_line(format("epoch {}", number)));
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  ::kill(pid_, SIGKILL);
  // On a busy machine it may be done by then, which is as good.
  while (next_line("read ")) {
  }
  return {};
}

Result<std::unique_ptr<Tiers>> Tiers::make(const std::string& folder, const std::string& source,
                                           std::uint64_t quota_bytes, const std::string& more) {
  static std::atomic<int> made = 0;
  std::unique_ptr<Tiers> tiers(new Tiers());
  const int number = ++made;
  tiers->tier_ = format("{}/tier-{}", folder, number);
  tiers->config_ = format("{}/tiers-{}.toml", folder, number);
  std::ofstream out(tiers->config_);
  out << "source = [\"" << source << "\"]\n"
      << more << "\n[[tier]]\npath = \"" << tiers->tier_ << "\"\nquota = " << quota_bytes << "\n";
  if (!out.flush()) return fail_errno(errno, format("write {}", tiers->config_));
  return tiers;
}

Tiers::~Tiers() {
  (void)command("stop");
  std::error_code ignored;
  std::filesystem::remove_all(tier_, ignored);
}

std::vector<std::string> Tiers::run_words() const {
  return {built_program("freshet"), "tier", "run", "--config", config_, "--"};
}

Status Tiers::command(const std::string& verb) const {
  FRESHET_ASSIGN([[maybe_unused]] const auto said,
                 lines_of({built_program("freshet"), "tier", verb, "--config", config_}));
  return {};
}

Result<nlohmann::json> Tiers::total() const {
  FRESHET_ASSIGN(const auto lines, lines_of({built_program("freshet"), "tier", "stat", "--json", "--config", config_}));
  auto total = nlohmann::json::parse(lines.back(), nullptr, false);
  if (!total.is_object()) return fail(Code::corrupt, format("tier stat said: {}", lines.back()));
  return total;
}

Result<std::uint64_t> Tiers::used_bytes() const {
  FRESHET_ASSIGN(const auto lines, lines_of({built_program("freshet"), "tier", "stat", "--json", "--config", config_}));
  return nlohmann::json::parse(lines.front(), nullptr, false).value("used_bytes", std::uint64_t{0});
}

Status Tiers::kill_keeper() const {
  FRESHET_ASSIGN(const nlohmann::json now, total());
  if (!now["keeper_pid"].is_number()) return fail(Code::not_found, "there is no keeper to kill");
  ::kill(now["keeper_pid"].get<pid_t>(), SIGKILL);
  return {};
}

}  // namespace freshet::benchmarks
