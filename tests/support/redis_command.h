// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A command to a test's Redis server, past everything that is tested.

#include <hiredis/hiredis.h>

#include <memory>
#include <string>
#include <vector>

namespace freshet {

/// The answer as text: a status or string as it is, an integer's digits, "" for nil, "error: …" otherwise.
inline std::string redis_command(const std::string& socket, const std::vector<std::string>& words) {
  const std::unique_ptr<redisContext, void (*)(redisContext*)> context(redisConnectUnix(socket.c_str()), redisFree);
  if (context == nullptr || context->err != 0) return "error: no connection";
  std::vector<const char*> texts;
  std::vector<std::size_t> lengths;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    lengths.push_back(word.size());
  }
  const std::unique_ptr<redisReply, void (*)(void*)> reply(
      static_cast<redisReply*>(
          redisCommandArgv(context.get(), static_cast<int>(words.size()), texts.data(), lengths.data())),
      freeReplyObject);
  if (reply == nullptr) return "error: no answer";
  switch (reply->type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS: return std::string(reply->str, reply->len);
    case REDIS_REPLY_INTEGER: return std::to_string(reply->integer);
    case REDIS_REPLY_NIL: return "";
    default: return "error: " + std::string(reply->str == nullptr ? "" : reply->str);
  }
}

}  // namespace freshet
