// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Shell completion scripts, written from the command tree itself, so that they always know every command and option.

#include <CLI/CLI.hpp>
#include <string>

namespace freshet::cli {

std::string bash_completion(const CLI::App& root);
std::string zsh_completion(const CLI::App& root);
std::string fish_completion(const CLI::App& root);

}  // namespace freshet::cli
