// SPDX-License-Identifier: Apache-2.0
// `freshet tier verify` and `drop`: copies looked at, and removed.

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/tier/tier.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/tier/tier_folder.h"

namespace freshet::cli {
namespace {

constexpr Duration kForgetWithin = std::chrono::seconds(60);

struct Found {
  std::string tier;
  tier::Identity identity;
};

Result<std::vector<Found>> all_copies(const tier::Config& config) {
  std::vector<Found> found;
  for (const tier::TierConfig& tier : config.tiers) {
    const Status listed = tier::each_copy(tier.path, [&](const tier::Identity& identity, std::uint64_t, bool) {
      found.push_back({.tier = tier.path, .identity = identity});
    });
    if (!listed && listed.error().code() != Code::not_found) return fail(listed.error());
  }
  return found;
}

/// The keeper may evict copies while they are verified.
bool is_gone(const Found& copy) {
  struct stat info {};
  return ::lstat(tier::copy_path(copy.tier, copy.identity).c_str(), &info) != 0 && errno == ENOENT;
}

/// Removes copies, and the keeper's memory of them.
Status remove_copies(const tier::Config& config, const std::vector<Found>& copies) {
  Result<tier::KeeperLine> keeper = tier::KeeperLine::connect(config);
  for (const Found& copy : copies) {
    const std::string path = tier::copy_path(copy.tier, copy.identity);
    std::error_code error;
    // What stands in the place of a copy may be a folder.
    if (!tier::remove_copy(copy.tier, copy.identity)) (void)std::filesystem::remove_all(path, error);
    if (error) return fail(Code::io_error, format("remove {}: {}", path, error.message()));
    char name[tier::kCopyPathBytes];
    (void)tier::put_copy_path(name, copy.identity);
    if (keeper)
      (void)keeper->say("forget " + std::string(name + 3, tier::kNameBytes), system_clock().now() + kForgetWithin);
  }
  return {};
}

Result<ExitCode> verify_copies(Program& program, const tier::Config& config) {
  FRESHET_ASSIGN(const tier::BoardFile board, tier::BoardFile::open(config));
  FRESHET_ASSIGN(const std::vector<Found> copies, all_copies(config));
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  std::vector<Found> bad;
  Json names = Json::array();
  for (const Found& copy : copies) {
    const tier::CopyCheck check = tier::check_copy(copy.tier, copy.identity);
    if (!check.was_read && is_gone(copy)) continue;
    ++files;
    bytes += check.bytes;
    if (check.good) continue;
    bad.push_back(copy);
    names.push_back(check.source.empty() ? tier::copy_path(copy.tier, copy.identity) : check.source);
  }
  FRESHET_TRY(remove_copies(config, bad));
  tier::add(board.board().counters.corrupt, bad.size());
  std::string text = format("{} copies checked ({}), {} bad and dropped", files, human_bytes(bytes), bad.size());
  for (const auto& name : names) text += "\n" + printable(name.get<std::string>());
  FRESHET_TRY(program.out.emit({{"checked_files", files}, {"checked_bytes", bytes}, {"corrupt", names}}, text));
  return bad.empty() ? ExitCode::done : ExitCode::corrupt;
}

Result<ExitCode> drop(Program& program, const tier::Config& config, const std::vector<std::string>& paths) {
  std::vector<std::string> wanted;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto real = std::filesystem::weakly_canonical(path, error);
    if (error) return fail(Code::not_found, format("{}: {}", path, error.message()));
    wanted.push_back(real.string());
  }
  FRESHET_ASSIGN(const std::vector<Found> copies, all_copies(config));
  std::vector<Found> dropped;
  for (const Found& copy : copies) {
    bool is_wanted = wanted.empty();
    const std::string source = wanted.empty() ? "" : tier::source_of_copy(copy.tier, copy.identity);
    for (const std::string& path : wanted) is_wanted |= source == path || source.starts_with(path + "/");
    if (is_wanted) dropped.push_back(copy);
  }
  FRESHET_TRY(remove_copies(config, dropped));
  FRESHET_TRY(program.out.emit({{"dropped_files", dropped.size()}}, format("{} copies dropped", dropped.size())));
  return ExitCode::done;
}

}  // namespace

void add_tier_verify(CLI::App& tier, Program& program) {
  {
    CLI::App& command = *tier.add_subcommand("verify", "read all copies again, and drop bad ones");
    auto file = std::make_shared<std::string>();
    add_tier_config(command, *file);
    add_json_flag(command, program);
    act_on_tiers(command, program, file, verify_copies);
  }
  {
    CLI::App& command = *tier.add_subcommand("drop", "remove copies: those of files and folders, or all");
    auto file = std::make_shared<std::string>();
    auto paths = std::make_shared<std::vector<std::string>>();
    add_tier_config(command, *file);
    add_json_flag(command, program);
    command.add_option("PATH", *paths, "at the source; default: all");
    act_on_tiers(command, program, file,
                 [paths](Program& inner, const tier::Config& config) { return drop(inner, config, *paths); });
  }
}

}  // namespace freshet::cli
