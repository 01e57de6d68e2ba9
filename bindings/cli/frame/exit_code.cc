// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/exit_code.h"

namespace freshet::cli {

ExitCode exit_code_of(Code code) {
  switch (code) {
    case Code::not_found: return ExitCode::not_found;
    case Code::corrupt: return ExitCode::corrupt;
    case Code::unavailable:
    case Code::timed_out: return ExitCode::unavailable;
    case Code::cancelled: return ExitCode::interrupted;
    case Code::invalid_argument:
    case Code::already_exists:
    case Code::failed_precondition:
    case Code::out_of_space:
    case Code::unsupported:
    case Code::io_error: return ExitCode::failed;
  }
  return ExitCode::failed;
}

}  // namespace freshet::cli
