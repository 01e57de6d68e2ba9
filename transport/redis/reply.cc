// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/reply.h"

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/number.h"

namespace freshet {
namespace {

constexpr std::size_t kDigits = 20;

Code code_of(std::string_view text) {
  for (const std::string_view word : {"WRONGTYPE", "CORRUPT"}) {
    if (text.find(word) != std::string_view::npos) return Code::corrupt;
  }
  for (const std::string_view word : {"NOAUTH", "WRONGPASS", "NOPERM"}) {
    if (text.starts_with(word)) return Code::failed_precondition;
  }
  if (text.starts_with("OOM") || text.find("FULL") != std::string_view::npos) return Code::out_of_space;
  for (const std::string_view word : {"LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "READONLY", "MISCONF", "CLUSTERDOWN",
                                      "NOREPLICAS", "ERR max number of clients"}) {
    if (text.starts_with(word)) return Code::unavailable;
  }
  return Code::io_error;
}

}  // namespace

Error error_of(const redisReply& reply, const std::string& what) {
  const std::string_view text(reply.str == nullptr ? "" : reply.str, reply.str == nullptr ? 0 : reply.len);
  return Error(code_of(text), format("{}: Redis says \"{}\"", what, shown(text)));
}

Result<std::vector<std::string>> texts_of(const redisReply& reply, std::size_t count_max) {
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements > count_max) {
    return fail(Code::corrupt, "an answer of Redis is not a list");
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < reply.elements; ++i) {
    const redisReply& element = *reply.element[i];
    switch (element.type) {
      case REDIS_REPLY_STRING:
      case REDIS_REPLY_STATUS: texts.emplace_back(element.str, element.len); break;
      case REDIS_REPLY_INTEGER: texts.push_back(std::to_string(element.integer)); break;
      case REDIS_REPLY_NIL: texts.emplace_back(); break;
      default: return fail(Code::corrupt, "an answer of Redis has a list or an error where a text should be");
    }
  }
  return texts;
}

std::string stored(std::uint64_t number) { return format("{:020}", number); }

Result<std::uint64_t> number_of(std::string_view text, std::uint64_t most, std::string_view what) {
  const auto value = number_in<std::uint64_t>(text);
  if (text.size() != kDigits || !value || *value > most) {
    return fail(Code::corrupt, format("{} in Redis is not a number in range: {}", what, shown(text)));
  }
  return *value;
}

}  // namespace freshet
