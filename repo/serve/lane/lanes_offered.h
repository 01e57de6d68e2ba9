// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether a server offers lanes (repo/serve/server/lane_desk.h).

#include <string>

namespace freshet::rpc {

/// Takes "shm" out of the kinds of channels, which leaves the others ("none" where it was alone). True where a server may
/// offer lanes: they are asked for by that name, and never with keys, since the owner of a key need not be of this user.
bool take_lanes(std::string& channels, bool has_keys);

}  // namespace freshet::rpc
