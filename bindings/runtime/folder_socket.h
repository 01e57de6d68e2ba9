// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The socket on which a folder's owner offers its repository: FOLDER/serve/socket. The folder `serve` is this user's
/// alone, so nobody else can connect.

#include <string>

#include "core/base/result.h"

namespace freshet {

/// The address, "ipc://" and an absolute path, whether or not anybody is there.
Result<std::string> folder_socket(const std::string& folder);
/// Makes the socket's folder, or checks that nobody else can enter it. failed_precondition when that is not so.
Status prepare_folder_socket(const std::string& folder);
/// Whether somebody takes connections there.
bool is_folder_offered(const std::string& folder);

}  // namespace freshet
