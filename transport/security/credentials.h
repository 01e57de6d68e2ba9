// SPDX-License-Identifier: Apache-2.0
#pragma once

/// SecurityOptions, read and checked: what a socket proves itself with.

#include <optional>
#include <string>

#include "core/base/result.h"
#include "transport/security.h"
#include "transport/security/keys.h"

namespace freshet {

/// Of an endpoint that others connect to.
struct ServerCredentials {
  KeyPair keys;
  std::string allow_file;
};

/// Of one that connects.
struct ClientCredentials {
  KeyPair keys;
  PublicKey server;
};

/// Nothing when the options name no keys. invalid_argument for half of what is needed: a server admits nobody without
/// an allow-list, a client trusts nobody without a server's key.
Result<std::optional<ServerCredentials>> server_credentials(const SecurityOptions& options);
Result<std::optional<ClientCredentials>> client_credentials(const SecurityOptions& options);

}  // namespace freshet
