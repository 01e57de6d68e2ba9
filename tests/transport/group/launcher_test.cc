// SPDX-License-Identifier: Apache-2.0
#include "transport/group/launcher.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/env.h"
#include "tests/support/refused.h"

namespace freshet::group {
namespace {

/// The environment of a process that a launcher started.
class LaunchedEnv final : public Env {
 public:
  explicit LaunchedEnv(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {}
  Result<std::unique_ptr<WritableFile>> create_file(const std::string&) override { return refuse("no files"); }
  Status rename_file(const std::string&, const std::string&) override { return refuse("no files"); }
  Status remove_file(const std::string&) override { return refuse("no files"); }
  Status sync_folder(const std::string&) override { return refuse("no files"); }
  void fill_random(MutableBytes) override {}
  std::optional<std::string> variable(const std::string& name) const override {
    const auto at = variables_.find(name);
    return at == variables_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  const std::map<std::string, std::string> variables_;
};

TEST(Launcher, ReadsWhatTorchrunSrunAndMpirunSay) {
  EXPECT_FALSE(*launched(LaunchedEnv({})));
  const auto torchrun = launched(
      LaunchedEnv({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "29500"}}));
  ASSERT_TRUE(torchrun && *torchrun);
  EXPECT_EQ((*torchrun)->by, "torchrun");
  EXPECT_EQ((*torchrun)->rank, 2U);
  EXPECT_EQ((*torchrun)->ranks, 4U);
  EXPECT_EQ((*torchrun)->meet, "tcp://10.0.0.7:29501");

  std::map<std::string, std::string> slurm = {{"SLURM_PROCID", "1"},
                                              {"SLURM_NTASKS", "2"},
                                              {"SLURM_JOB_ID", "77"},
                                              {"SLURM_STEP_ID", "0"},
                                              {"SLURM_STEP_NODELIST", "node[03-07,9],other"}};
  const auto srun = launched(LaunchedEnv(slurm));
  ASSERT_TRUE(srun && *srun);
  EXPECT_EQ((*srun)->by, "srun");
  EXPECT_EQ((*srun)->rank, 1U);
  EXPECT_TRUE((*srun)->meet.starts_with("tcp://node03:")) << (*srun)->meet;
  slurm["SLURM_PROCID"] = "0";
  EXPECT_EQ((*launched(LaunchedEnv(slurm)))->meet, (*srun)->meet) << "the ranks of one job meet at one place";
  slurm["SLURM_JOB_ID"] = "78";
  EXPECT_NE((*launched(LaunchedEnv(slurm)))->meet, (*srun)->meet);
  slurm["SLURM_STEP_NODELIST"] = "alone";
  EXPECT_TRUE((*launched(LaunchedEnv(slurm)))->meet.starts_with("tcp://alone:"));

  std::map<std::string, std::string> open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                 {"OMPI_COMM_WORLD_SIZE", "3"},
                                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                                 {"PMIX_NAMESPACE", "prterun-1"}};
  const auto mpirun = launched(LaunchedEnv(open_mpi));
  ASSERT_TRUE(mpirun && *mpirun);
  EXPECT_EQ((*mpirun)->by, "mpirun");
  EXPECT_TRUE((*mpirun)->meet.starts_with("tcp://127.0.0.1:")) << (*mpirun)->meet;
  open_mpi["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_EQ((*launched(LaunchedEnv(open_mpi)))->meet, "") << "ranks of several hosts: the program says where";
}

TEST(Launcher, NamesTheJob) {
  using Variables = std::map<std::string, std::string>;
  const auto job = [](const Variables& variables, std::uint32_t ranks) {
    return job_of_launcher(LaunchedEnv(variables), ranks);
  };
  EXPECT_EQ(job({}, 2), "");
  // A process may get its rank by words, and its job from the launcher.
  for (const char* const name : {"SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "TORCHELASTIC_RUN_ID"}) {
    EXPECT_NE(job({{name, "1"}}, 2), "") << name;
    EXPECT_EQ(job({{name, "1"}}, 2), job({{name, "1"}}, 2)) << name;
    EXPECT_NE(job({{name, "1"}}, 2), job({{name, "2"}}, 2)) << name;
    EXPECT_EQ(job({{name, ""}}, 2), "") << name;
  }
  // Two runs without a name differ in the port of their store.
  const Variables torchrun = {{"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}, {"MASTER_PORT", "29500"}};
  Variables beside = torchrun;
  beside["MASTER_PORT"] = "29600";
  EXPECT_NE(job(torchrun, 2), job(beside, 2));
  // Two steps of one allocation are two jobs, if each of them is as large as the job.
  const Variables step = {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}};
  Variables next = step;
  next["SLURM_STEP_ID"] = "1";
  EXPECT_NE(job(step, 2), job(next, 2));
  EXPECT_EQ(job(step, 4), job(next, 4)) << "each step starts a part of the ranks";
  // Likewise, each of several mpiruns may start a part of them.
  const Variables part = {{"PMIX_NAMESPACE", "a"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  EXPECT_EQ(job(part, 2), "");
  EXPECT_NE(job(part, 1), "");
}

TEST(Launcher, RefusesWhatMakesNoSense) {
  for (const auto& [rank, ranks] :
       std::vector<std::pair<std::string, std::string>>{{"x", "4"}, {"4", "4"}, {"-1", "4"}, {"0", ""}}) {
    EXPECT_TRUE(is_refused(launched(LaunchedEnv({{"RANK", rank}, {"WORLD_SIZE", ranks}})), Code::invalid_argument))
        << rank << " of " << ranks;
  }
  for (const char* const port : {"65535", "4294967295"}) {
    EXPECT_FALSE(launched(
        LaunchedEnv({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", port}})));
  }
}

}  // namespace
}  // namespace freshet::group
