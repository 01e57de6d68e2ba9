// SPDX-License-Identifier: Apache-2.0
// The choice of a directory by its text: each kind that this build has.

#include <cstdlib>

#include "core/base/format.h"
#include "transport/directory/directory.h"
#include "transport/directory/host_directory.h"
#ifdef FRESHET_REDIS
#include "transport/redis/directory.h"
#endif

namespace freshet {
namespace {

std::string named_or_default(const std::string& text) {
  if (!text.empty()) return text;
  const char* const named = std::getenv("FRESHET_DIRECTORY");
  return named == nullptr ? "" : named;
}

Result<std::unique_ptr<Directory>> open_redis([[maybe_unused]] const std::string& text) {
#ifdef FRESHET_REDIS
  FRESHET_ASSIGN(RedisAddress address, RedisAddress::parse(text));
  FRESHET_ASSIGN(std::unique_ptr<HostDirectory> host, HostDirectory::open(""));
  return RedisDirectory::open(std::move(address), {}, std::move(host)).map([](auto redis) {
    return std::unique_ptr<Directory>(std::move(redis));
  });
#else
  // Without what follows, which may be a password.
  return fail(Code::unsupported,
              format("directory {}://…: this build cannot use Redis, because it was configured without hiredis",
                     text.substr(0, text.find("://"))));
#endif
}

}  // namespace

bool is_remote_directory(const std::string& text) {
  const std::string named = named_or_default(text);
  return named.starts_with("redis://") || named.starts_with("rediss://") || named.starts_with("redis+unix://");
}

Result<std::unique_ptr<Directory>> open_directory(const std::string& text) {
  const std::string named = named_or_default(text);
  if (is_remote_directory(named)) return open_redis(named);
  return HostDirectory::open(named).map([](auto host) { return std::unique_ptr<Directory>(std::move(host)); });
}

}  // namespace freshet
