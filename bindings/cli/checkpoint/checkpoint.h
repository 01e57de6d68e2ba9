// SPDX-License-Identifier: Apache-2.0
#pragma once

/// `freshet checkpoint`: checkpoints of training jobs, without the jobs.

#include "bindings/cli/frame/program.h"

namespace freshet::cli {

void add_checkpoint_interval(CLI::App& group, Program& program);
void add_checkpoint_folders(CLI::App& group, Program& program);  ///< ls, get, verify, drain.

}  // namespace freshet::cli
