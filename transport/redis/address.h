// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a Redis server is named: redis://[[user]:password@]host[:port][/db], or redis+unix://[:password@]/path[?db=N].
/// Reserved characters of user and password are percent-encoded, as in any URL.

#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace freshet {

struct RedisAddress {
  std::string host;  ///< Empty for a Unix socket.
  std::uint16_t port = 6379;
  std::string path;  ///< Of a Unix socket.
  std::string user;
  std::string password;
  std::uint32_t database = 0;

  /// For people, logs and errors: without user and password.
  std::string text() const;

  /// No error repeats what may be a password. unsupported for rediss://.
  static Result<RedisAddress> parse(const std::string& text);
};

}  // namespace freshet
