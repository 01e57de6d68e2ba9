// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A job of real processes (checkpoint_ranks) on folders of a test's own, and what each of its ranks has to hold: by
/// the definition of its state, reckoned here byte by byte.

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/repo/levels/support/meeting_address.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace freshet::test {

using Json = nlohmann::json;

/// What one rank printed, and how it ended.
struct RankRun {
  std::vector<Json> lines;
  int status = 0;  ///< Of waitpid.

  int exit_code() const;  ///< -1 when a signal ended it.
  std::vector<Json> events(const std::string& name) const;
  Json started() const;
  /// Greatest version that reached a level.
  std::uint64_t reached(const std::string& level) const;
};

class Job {
 public:
  explicit Job(std::string state);

  struct Options {
    std::vector<std::string> words;                        ///< For all ranks.
    std::map<std::uint32_t, std::vector<std::string>> of;  ///< For one.
    std::string meet;                                      ///< Empty: a free port.
  };
  /// Starts `ranks` processes, and waits for their ends. A rank that is silent counts as lost after 20 seconds.
  std::vector<RankRun> run(std::uint32_t ranks, std::uint64_t steps, const Options& options = {});
  /// The same, not waited for.
  std::vector<std::unique_ptr<ChildProcess>> start(std::uint32_t ranks, std::uint64_t steps,
                                                   const Options& options = {});
  static RankRun finish(ChildProcess& process);

  /// Empty, or how what the rank dumped at its start differs from what it has to hold.
  std::string difference(const RankRun& run, std::uint32_t ranks, std::uint32_t rank) const;
  /// The same of a file of whole tensors, as of a step of a job of so many ranks.
  std::string difference_of_file(const std::string& path, std::uint64_t step, std::uint32_t ranks) const;
  /// The same of what a server has: weights and buffers, which no test state has for each rank of its own.
  std::string difference_of_served_file(const std::string& path, std::uint64_t step) const;

  std::string local(std::uint32_t rank) const { return folder_ / ("local" + std::to_string(rank)); }
  std::string folder(const std::string& name) const { return folder_ / name; }
  /// Shard files of a rank's folder, by name.
  std::vector<std::string> shards(std::uint32_t rank) const;

 private:
  const TemporaryFolder folder_;
  const Json state_;
};

void expect_all_exit(const std::vector<RankRun>& runs, int code);
/// What each rank dumped at its start is what it has to hold.
void expect_all_hold_what_they_should(const Job& job, const std::vector<RankRun>& runs);

/// A small state with every layout, types of all sizes, empty and scalar tensors.
std::string mixed_state();

}  // namespace freshet::test
