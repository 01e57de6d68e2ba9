// SPDX-License-Identifier: Apache-2.0
// `freshet tier`: training data from the fast disk, under unchanged programs.

#include "bindings/cli/tier/tier.h"

#include <unistd.h>

#include <filesystem>

#include "bindings/cli/frame/arguments.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

Result<ExitCode> act_on_config(Program& program, const std::string& file, const TierAction& act) {
  if (file.empty()) return refuse("name the tiers' config: --config F, or FRESHET_TIER=F");
  FRESHET_ASSIGN(const tier::Config config, tier::read_config(file));
  return act(program, config);
}

/// The reader of a program in that folder; "" when it is not there.
std::filesystem::path found_reader(const std::filesystem::path& folder) {
  namespace files = std::filesystem;
  std::error_code error;
  // Installed beside the program; or from a wheel, which has it in the package: the program is then in a folder beside
  // the package (auditwheel moves it there), or in the environment's own bin.
  std::vector<files::path> places = {folder / FRESHET_TIER_LIBRARY, folder / "../freshet/libfreshet_tier.so"};
  for (const char* libraries : {"../lib", "../lib64"}) {
    for (const auto& entry : files::directory_iterator(folder / libraries, error)) {
      if (entry.path().filename().string().starts_with("python3"))
        places.push_back(entry.path() / "site-packages/freshet/libfreshet_tier.so");
    }
  }
  for (const files::path& place : places) {
    if (files::is_regular_file(place, error)) return place.lexically_normal();
  }
  return {};
}

}  // namespace

void tell_tier(std::string_view text) {
  const std::string line = format("freshet tier: {}\n", printable(text));
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

void add_tier_config(CLI::App& command, std::string& file) {
  command.add_option("--config", file, "the TOML file that names sources and tiers; default: $FRESHET_TIER")
      ->type_name("F")
      ->envname("FRESHET_TIER");
}

void act_on_tiers(CLI::App& command, Program& program, std::shared_ptr<std::string> file, TierAction act) {
  command.callback([&program, file, act] {
    program.action = [&program, file, act]() -> Result<ExitCode> {
      const Result<ExitCode> ended = act_on_config(program, *file, act);
      if (ended || program.out.closed()) return ended;
      const Code code = ended.error().code();
      if (code != Code::cancelled) tell_tier(ended.error().message());
      return code == Code::invalid_argument ? ExitCode::usage : exit_code_of(code);
    };
  });
}

Result<std::string> reader_library() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto library = error ? std::filesystem::path() : found_reader(program.parent_path());
  if (library.empty()) {
    return fail(Code::not_found, format("the reader libfreshet_tier.so is not installed with {}: install Freshet whole",
                                        program.string()));
  }
  if (library.string().find_first_of(" :") != std::string::npos) {
    return fail(Code::failed_precondition,
                format("{}: LD_PRELOAD takes no path with a space or a colon", library.string()));
  }
  return library.string();
}

void add_tier(CLI::App& root, Program& program) {
  CLI::App& tier = *root.add_subcommand("tier", "training data from the fast disk, under unchanged programs");
  tier.require_subcommand(1);
  add_json_flag(tier, program);
  add_tier_run(tier, program);
  add_tier_keep(tier, program);
  add_tier_copies(tier, program);
  add_tier_stat(tier, program);
  add_tier_verify(tier, program);
  CLI::App& library = *tier.add_subcommand("library", "print the path of the reader, for LD_PRELOAD");
  auto config = std::make_shared<std::string>();
  add_tier_config(library, *config);
  library.callback([&program, config] {
    program.action = [&program, config]() -> Result<ExitCode> {
      // The reader finds its tiers by the board, which is gone after a restart of the host.
      if (!config->empty()) {
        const Result<ExitCode> made =
            act_on_config(program, *config, [](Program&, const tier::Config& named) -> Result<ExitCode> {
              FRESHET_TRY(tier::BoardFile::open(named));
              return ExitCode::done;
            });
        // The path is printed all the same: a program without tiers is better than none.
        if (!made) tell_tier(made.error().message());
      }
      const Result<std::string> path = reader_library();
      if (!path) {
        tell_tier(path.error().message());
        return exit_code_of(path.error().code());
      }
      FRESHET_TRY(program.out.write(*path + "\n"));
      return ExitCode::done;
    };
  });
}

}  // namespace freshet::cli
