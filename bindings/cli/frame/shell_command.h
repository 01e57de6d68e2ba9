// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Runs a command line of the user's, as `sh -c` does, and waits for it.

#include <string>

#include "bindings/cli/frame/interrupt.h"
#include "core/base/result.h"

namespace freshet::cli {

/// Every `{}` of the command becomes the path, quoted for the shell.
std::string with_path(const std::string& command, const std::string& path);

struct ShellOptions {
  bool stdout_to_stderr = false;  ///< For a program with a stdout for machines.
};

/// The command's exit code. failed_precondition when a signal ended it. When interrupted, the command is asked to end
/// (SIGTERM), then made to (SIGKILL, after two seconds): cancelled, as when the terminal's interrupt ended it first.
Result<int> exit_code_of_shell(const std::string& command, const ShellOptions& options, const Interrupt& interrupt);

/// The same, and failed_precondition says how the command ended, unless it ended well.
Status run_shell(const std::string& command, const ShellOptions& options, const Interrupt& interrupt);

}  // namespace freshet::cli
