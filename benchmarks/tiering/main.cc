// SPDX-License-Identifier: Apache-2.0
/// tiering: epochs over training sets in a slow folder, with tiers and without, beside a fast disk, rsync and MONARCH;
/// and what the reader costs.
///
/// usage: tiering [--quick] [--json] [--folder DIR] [--monarch LIB] [--drop-caches] [--rounds N]

#include <filesystem>
#include <string_view>

#include "benchmarks/common/command_line.h"
#include "benchmarks/tiering/costs.h"
#include "benchmarks/tiering/epochs.h"
#include "benchmarks/tiering/reader.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

struct Options : CommonOptions {
  std::string folder = std::filesystem::temp_directory_path();
  std::string monarch;
  bool drop_caches = false;
  int rounds = 0;
};

Status measure_epochs(const Settings& settings, Report& report) {
  auto opened = Epochs::open(settings, report);
  if (!opened) {
    if (opened.error().code() != Code::unavailable) return fail(opened.error());
    report.skip("slow_folder", opened.error().message());
    return {};
  }
  Epochs& epochs = **opened;
  const bool quick = settings.quick;
  FRESHET_ASSIGN(const StagedSet small, epochs.stage(small_files(quick ? 240 : 4000, 1)));
  FRESHET_ASSIGN(const StagedSet records, epochs.stage(record_files(quick ? 4 : 16, quick ? 12 << 20 : 28 << 20, 2)));
  // What one reader alone, or each of several, reads whole.
  FRESHET_ASSIGN(const StagedSet few, epochs.stage(small_files(quick ? 60 : 500, 3)));
  FRESHET_TRY(epochs.compare(small, {.readers = 4, .suffix = "", .restarts = true}));
  FRESHET_TRY(epochs.compare(records, {.readers = 4, .suffix = "_records", .restarts = true}));
  FRESHET_TRY(epochs.compare(few, {.readers = 1, .suffix = "_one_reader"}));
  FRESHET_TRY(epochs.compare(small, {.readers = 4, .in_python = true, .suffix = "_python", .rounds = quick ? 1 : 3}));
  if (!settings.monarch.empty()) {
    FRESHET_TRY(epochs.compare(
        few, {.readers = 1, .in_python = true, .suffix = "_one_reader_python", .rounds = quick ? 1 : 3}));
  }
  FRESHET_TRY(epochs.compare_uncached(records, ""));
  FRESHET_TRY(epochs.compare_uncached(few, "_small"));
  FRESHET_TRY(epochs.share_copies(few));
  FRESHET_TRY(epochs.half_fits(few));
  return epochs.know_order(few);
}

Status run(const Options& options, const std::string& folder, Report& report) {
  Settings settings{.folder = folder,
                    .quick = options.quick,
                    .rounds = options.rounds > 0 ? options.rounds
                              : options.quick    ? 2
                                                 : 5,
                    .monarch = options.monarch,
                    .drop_caches = options.drop_caches};
  if (options.monarch.empty()) report.skip("monarch", "no --monarch LIB");
  FRESHET_TRY(measure_epochs(settings, report));
  return measure_costs(settings.folder, settings.quick, settings.rounds, report);
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  if (count > 1 && std::string_view(words[1]) == "read") return run_reader(count, words);
  if (count > 1 && std::string_view(words[1]) == "cost") return run_cost(count, words);
  Options options;
  return run_benchmark(count, words,
                       {.name = "tiering",
                        .about = "Epochs over training sets in a slow folder, with tiers and without",
                        .options = options,
                        .add_options =
                            [&](CLI::App& app) {
                              app.add_option("--folder", options.folder, "A folder on the fast disk");
                              app.add_option("--monarch", options.monarch, "MONARCH's library, where one was built");
                              app.add_flag("--drop-caches", options.drop_caches,
                                           "The kernel forgets everything between epochs (as root)");
                              app.add_option("--rounds", options.rounds, "How often each case is measured");
                            }},
                       [&](Report& report) {
                         return in_new_folder(options.folder, [&](const std::string& folder) {
                           return run(options, folder, report);
                         });
                       });
}
