// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The rank of a process, as mpirun, srun and torchrun put it into the environment.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/env.h"
#include "core/base/result.h"

namespace freshet::group {

struct Launched {
  std::string by;  ///< "torchrun", "srun", "mpirun".
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::string meet;  ///< Where they can meet; empty where the environment does not tell.
};

/// Nothing when none of them started this process. A job has a port of its own, made from its number, unless two jobs
/// on one host happen to share it; who wants to be sure says where to meet. invalid_argument for a variable that makes
/// no sense.
///
///   torchrun  RANK, WORLD_SIZE; MASTER_ADDR and the port after MASTER_PORT, which PyTorch itself listens on
///   srun      SLURM_PROCID, SLURM_NTASKS; the first host of SLURM_STEP_NODELIST
///   mpirun    OMPI_COMM_WORLD_RANK, _SIZE; loopback when all of its ranks are on this host (Open MPI)
Result<std::optional<Launched>> launched(const Env& env);

/// The launcher's name for the job that this process belongs to; the ranks of one job claim it alike. Empty where no
/// launcher tells one. A launcher that started a part of the `ranks` only does not name the job: another run of it may
/// have started the rest.
///
///   torchrun  TORCHELASTIC_RUN_ID and MASTER_PORT; with the run "none" the job of srun, too
///   mpirun    PMIX_NAMESPACE or OMPI_MCA_ess_base_jobid
///   srun      SLURM_JOB_ID, with SLURM_STEP_ID where the step started all ranks
std::string job_of_launcher(const Env& env, std::uint32_t ranks);

}  // namespace freshet::group
