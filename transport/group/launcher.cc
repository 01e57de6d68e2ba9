// SPDX-License-Identifier: Apache-2.0
#include "transport/group/launcher.h"


#include "core/base/digest.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/number.h"

namespace freshet::group {
namespace {

constexpr std::uint64_t kFirstJobPort = 20'000;
constexpr std::uint64_t kJobPorts = 10'000;

Result<std::uint32_t> number_of(const std::string& name, const std::string& value) {
  if (const auto number = number_in<std::uint32_t>(value)) return *number;
  return refuse(format("{}=\"{}\" in the environment is not a number", name, shown(value)));
}

Result<std::optional<Launched>> ranks_from(const Env& env, std::string_view by, const std::string& rank_name,
                                           const std::string& ranks_name) {
  const auto rank = env.variable(rank_name);
  const auto ranks = env.variable(ranks_name);
  if (!rank || !ranks) return std::optional<Launched>();
  Launched launched{.by = std::string(by)};
  FRESHET_ASSIGN(launched.rank, number_of(rank_name, *rank));
  FRESHET_ASSIGN(launched.ranks, number_of(ranks_name, *ranks));
  if (launched.rank >= launched.ranks) {
    return refuse(
        format("{}={} and {}={} in the environment contradict each other", rank_name, *rank, ranks_name, *ranks));
  }
  return std::optional<Launched>(std::move(launched));
}

std::string port_of_job(const std::string& job) {
  return format("{}", kFirstJobPort + digest_of(bytes_of(job.data(), job.size())).low % kJobPorts);
}

/// The first of "node[03-07,9],other".
std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket + 1);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

/// A variable that is there, and not empty.
std::string word_in(const Env& env, const std::string& name) { return env.variable(name).value_or(""); }

/// Whether the launcher says that it started `ranks` processes; `unsaid` where it says nothing.
bool has_started(const Env& env, const std::string& ranks_name, std::uint32_t ranks, bool unsaid) {
  const std::string said = word_in(env, ranks_name);
  return said.empty() ? unsaid : said == format("{}", ranks);
}

std::string job_of_srun(const Env& env, std::uint32_t ranks) {
  const std::string job = word_in(env, "SLURM_JOB_ID");
  if (job.empty()) return "";
  const std::string step = word_in(env, "SLURM_STEP_ID");
  const bool has_step = !step.empty() && has_started(env, "SLURM_NTASKS", ranks, false);
  return format("srun {}{}{}", job, has_step ? "." : "", has_step ? step : "");
}

}  // namespace

std::string job_of_launcher(const Env& env, std::uint32_t ranks) {
  const std::string run = word_in(env, "TORCHELASTIC_RUN_ID");
  if (!run.empty() && has_started(env, "WORLD_SIZE", ranks, true)) {
    std::string job = format("torchrun {}", run);
    if (const std::string port = word_in(env, "MASTER_PORT"); !port.empty()) job += format(" at port {}", port);
    const std::string around = run == "none" ? job_of_srun(env, ranks) : "";
    return around.empty() ? job : format("{}, {}", job, around);
  }
  std::string name = word_in(env, "PMIX_NAMESPACE");
  if (name.empty()) name = word_in(env, "OMPI_MCA_ess_base_jobid");
  // srun gives each of its steps such a name, and says nothing of Open MPI's ranks.
  const bool is_by_srun = env.variable("SLURM_JOB_ID").has_value();
  if (!name.empty() && has_started(env, "OMPI_COMM_WORLD_SIZE", ranks, !is_by_srun)) return format("mpirun {}", name);
  return job_of_srun(env, ranks);
}

Result<std::optional<Launched>> launched(const Env& env) {
  FRESHET_ASSIGN(std::optional<Launched> torchrun, ranks_from(env, "torchrun", "RANK", "WORLD_SIZE"));
  if (torchrun) {
    const auto address = env.variable("MASTER_ADDR");
    const auto port = env.variable("MASTER_PORT");
    if (address && port) {
      FRESHET_ASSIGN(const std::uint32_t number, number_of("MASTER_PORT", *port));
      if (number >= UINT16_MAX) return refuse(format("MASTER_PORT={}: no port comes after it for the ranks", number));
      torchrun->meet = format("tcp://{}:{}", *address, number + 1);
    }
    return torchrun;
  }
  FRESHET_ASSIGN(std::optional<Launched> mpirun,
                 ranks_from(env, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"));
  if (mpirun) {
    const std::string job =
        env.variable("PMIX_NAMESPACE").value_or(env.variable("OMPI_MCA_ess_base_jobid").value_or(""));
    if (env.variable("OMPI_COMM_WORLD_LOCAL_SIZE") == env.variable("OMPI_COMM_WORLD_SIZE") && !job.empty()) {
      mpirun->meet = format("tcp://127.0.0.1:{}", port_of_job(job));
    }
    return mpirun;
  }
  FRESHET_ASSIGN(std::optional<Launched> srun, ranks_from(env, "srun", "SLURM_PROCID", "SLURM_NTASKS"));
  if (srun) {
    const auto hosts = env.variable("SLURM_STEP_NODELIST");
    const std::string job =
        env.variable("SLURM_JOB_ID").value_or("") + "." + env.variable("SLURM_STEP_ID").value_or("");
    if (hosts && !hosts->empty()) srun->meet = format("tcp://{}:{}", first_host(*hosts), port_of_job(job));
    return srun;
  }
  return std::optional<Launched>();
}

}  // namespace freshet::group
