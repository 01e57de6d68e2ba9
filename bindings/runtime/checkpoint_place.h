// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The level `external` of a job's checkpoints, from the place that a person named.

#include <string>

#include "repo/levels/checkpointer.h"

namespace freshet {

/// Fills `options.external` and `options.external_is_shared` for a repository's folder or address; nothing for an empty
/// place. The rank's keys are `options.security.key_file`. `server_key` is the provider's public key. If it is empty, a
/// job of one rank uses `options.security.server_key`. In a job of several ranks that key is rank 0's, so the job then
/// uses no keys for the provider.
void set_external(Checkpointer::Options& options, const std::string& place, const std::string& server_key);

}  // namespace freshet
