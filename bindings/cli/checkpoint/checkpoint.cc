// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/checkpoint/checkpoint.h"

namespace freshet::cli {

void add_checkpoint(CLI::App& root, Program& program) {
  CLI::App& group = *root.add_subcommand("checkpoint", "checkpoints of training jobs on machines that fail");
  group.require_subcommand(1);
  add_checkpoint_folders(group, program);
  add_checkpoint_interval(group, program);
}

}  // namespace freshet::cli
