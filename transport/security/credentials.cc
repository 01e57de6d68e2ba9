// SPDX-License-Identifier: Apache-2.0
#include "transport/security/credentials.h"

#include "core/base/format.h"

namespace freshet {

Result<std::optional<ServerCredentials>> server_credentials(const SecurityOptions& options) {
  if (options.key_file.empty() && options.allow_file.empty()) return std::optional<ServerCredentials>();
  if (options.key_file.empty()) {
    return fail(Code::invalid_argument,
                "an allow-list of clients needs the publisher's keys, too (--keys; `freshet keygen NAME` makes them)");
  }
  if (options.allow_file.empty()) {
    return fail(Code::invalid_argument,
                format("keys {} need an allow-list of clients (--allow FILE, a public key a line)", options.key_file));
  }
  FRESHET_ASSIGN(KeyPair keys, KeyPair::read(options.key_file));
  return std::optional<ServerCredentials>(ServerCredentials{std::move(keys), options.allow_file});
}

Result<std::optional<ClientCredentials>> client_credentials(const SecurityOptions& options) {
  if (options.key_file.empty() && options.server_key.empty()) return std::optional<ClientCredentials>();
  if (options.key_file.empty()) {
    return fail(Code::invalid_argument,
                "a publisher's key needs keys of your own, too (--keys; `freshet keygen NAME` makes them)");
  }
  if (options.server_key.empty()) {
    return fail(Code::invalid_argument,
                format("keys {} need the publisher's public key (--server-key KEY or NAME.pub)", options.key_file));
  }
  FRESHET_ASSIGN(KeyPair keys, KeyPair::read(options.key_file));
  FRESHET_ASSIGN(PublicKey server, read_public_key(options.server_key));
  return std::optional<ClientCredentials>(ClientCredentials{std::move(keys), std::move(server)});
}

}  // namespace freshet
