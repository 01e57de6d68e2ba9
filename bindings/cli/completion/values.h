// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What an option or a positional of the command tree takes, for completion in a shell.

#include <CLI/CLI.hpp>
#include <string>

namespace freshet::cli {

/// Of the option of the command with this path ("repo put"):
///
///     ""            it takes no value
///     "path"        a file or a folder
///     "words:a b"   one of these
///     "published", "published-versions", "stored", "stored-versions"
///                   what `freshet complete` prints by this name
///     "none"        a value that cannot be guessed
std::string value_kind(const CLI::Option& option, const std::string& command);

}  // namespace freshet::cli
