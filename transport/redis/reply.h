// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The answers of Redis, read without believing them.

#include <hiredis/hiredis.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace freshet {

struct RedisReplyDelete {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using RedisReply = std::unique_ptr<redisReply, RedisReplyDelete>;

/// The error that an error reply stands for: WRONGTYPE and our scripts' CORRUPT are corrupt, a refused password is
/// failed_precondition, a server that is loading or has no primary is unavailable. `what` was tried.
Error error_of(const redisReply& reply, const std::string& what);

/// The elements of an array of texts and integers, as texts; corrupt for anything else, or more than `count_max`. Nil
/// is an empty text.
Result<std::vector<std::string>> texts_of(const redisReply& reply, std::size_t count_max);

/// Numbers are stored as 20 decimal digits, so that scripts, whose numbers are doubles, compare them by halves.
std::string stored(std::uint64_t number);
/// corrupt, naming `what`, unless it is 20 digits of at most `most`.
Result<std::uint64_t> number_of(std::string_view text, std::uint64_t most, std::string_view what);

}  // namespace freshet
