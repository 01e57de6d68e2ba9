// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Files and folders that a command answers for: what it said is written outlives the host's end. `repo retire` and
/// `gc` are synced, so a person who exports a version and then retires it must not lose both.

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet::cli {

/// Makes the folder and those above it that are missing, each synced. Nothing when it is there already.
Status make_folder(const std::string& path);

/// It is versions that are not found: a folder that is missing where the user wanted a file becomes
/// failed_precondition. Everything else stays as it is.
Status as_output_error(Status written, const std::string& path);

/// Writes the file whole or not at all, synced. Errors as as_output_error() has them.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace freshet::cli
