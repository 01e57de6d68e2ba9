// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The exit codes of the program. One table, so that every command says it the same way.

#include "core/base/result.h"

namespace freshet::cli {

enum class ExitCode : int {
  done = 0,
  failed = 1,  ///< The reason is one line on stderr.
  usage = 2,   ///< The command line is wrong.
  not_found = 3,
  corrupt = 4,
  unavailable = 5,  ///< Or timed out: the same command may succeed later.
  interrupted = 130,
};

ExitCode exit_code_of(Code code);

}  // namespace freshet::cli
