// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tiering/monarch.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "core/base/format.h"

namespace freshet::benchmarks {

Result<std::vector<std::string>> monarch_words(const std::string& library, const std::string& folder,
                                               const std::string& tier, const std::string& source) {
  std::error_code error;
  std::filesystem::remove_all(tier, error);
  std::filesystem::create_directories(tier);
  std::filesystem::create_directories(folder + "/monarch");
  const std::string config = folder + "/monarch.yaml";
  std::ofstream out(config);
  // Its profiler has to be on: without it the library dies as it begins.
  out << "workspace: \"" << folder << "/monarch\"\n"
      << "debug_logs: false\n"
      << "profiler:\n  active: true\n  collect_frequency: 3600\n"
      << "data_plane:\n"
      << "  hierarchical_stage:\n"
      << "    shared_tpool_size: 4\n"
      << "    hierarchy:\n"
      << "      - {type: file_system, subtype: posix, max_storage_size: 1000000000000, block_size: max, prefix: \""
      << tier << "\"}\n"
      << "      - {type: file_system, subtype: posix, block_size: max, prefix: \"" << source << "\"}\n"
      << "  handlers: {control_policy: solo_placement, placement_policy: push_down, async_placement: true, "
         "dedicated_thread_pool: true}\n"
      << "  data_governance: {metadata_options: {shared_file_descriptors: true}}\n";
  if (!out.flush()) return fail_errno(errno, format("write {}", config));
  return std::vector<std::string>{"env", "LD_PRELOAD=" + library, "MONARCH_CONFIGS_PATH=" + config};
}

}  // namespace freshet::benchmarks
