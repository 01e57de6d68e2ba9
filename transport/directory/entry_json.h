// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A directory's entry as text, the same in every directory.

#include <string>

#include "transport/directory/directory.h"

namespace freshet {

std::string entry_json(const Directory::Entry& entry);
/// corrupt unless it is an entry of `model` within bounds.
Result<Directory::Entry> parse_entry_json(const std::string& text, const std::string& model);

}  // namespace freshet
