// SPDX-License-Identifier: Apache-2.0
#pragma once

/// `freshet provider` for a repository in a bucket or a pool: the owner, or a standby that follows the log and takes
/// over.

#include <string>

#include "bindings/cli/frame/program.h"
#include "core/base/result.h"
#include "transport/channel_kind.h"
#include "transport/security.h"

namespace freshet::cli {

struct ServeArguments {
  std::string listen;
  ChannelChoice channels;
  SecurityOptions security;
  std::string join;
  std::string reached_at;
};

/// Until the program is interrupted.
Result<ExitCode> provide_bucket(Program& program, const ServeArguments& arguments);

}  // namespace freshet::cli
