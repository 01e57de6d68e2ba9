// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which host this is, as far as sharing memory goes.

#include <string>

namespace freshet {

/// "boot-id/network-namespace": equal on both ends means that memory can be shared.
std::string this_host();

}  // namespace freshet
