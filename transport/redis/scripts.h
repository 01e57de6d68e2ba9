// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What is stored in Redis, and the steps on it that must be atomic, as Lua scripts. For each MODEL:
///   freshet:MODEL:record    hash, for ever: number, incarnation (the last ones reserved and begun), epoch, version,
///   hold
///                           (what is current), fence (how often the name was claimed). Numbers are 20 digits.
///   freshet:MODEL:claim     hash, with a time to live: owner (random), who (for people), fence, entry (JSON).
///   freshet:MODEL:servers   sorted set: address by when it runs out, in the server's milliseconds;
///   freshet:MODEL:versions  hash: address to the version that it serves.
/// and of the whole database
///   freshet:models          set of the names that were claimed,
///   freshet:born            when the first name was claimed. A name that is new in a directory as young as a lease may
///                           have a living owner who has not written it again yet, after the server lost everything:
///                           its claim waits until the directory is older than that.
/// Channels: freshet:DB:MODEL:news says "look again", freshet:DB:MODEL:commits carries announcements
/// (transport/protocol/messages.h). Redis Cluster is not supported: a script reads keys of several slots.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "transport/directory/directory.h"
#include "transport/redis/link.h"

namespace freshet::redis {

std::string news_channel(std::uint32_t database, const std::string& model);
std::string commits_channel(std::uint32_t database, const std::string& model);

/// One life of a claim.
struct Owner {
  std::string id;   ///< Random.
  std::string who;  ///< "process 17 on host", for whoever is refused.
  std::uint64_t fence = 0;
};

/// What outlives every claim.
struct Record {
  VersionNumber number = 0;
  std::uint64_t incarnation = 0;
  CurrentVersion current;
  std::uint64_t fence = 0;
};

/// Answer to take: one of three.
struct Taken {
  std::optional<Record> record;        ///< Taken.
  std::optional<std::string> held_by;  ///< Somebody else has it.
  Duration young{};                    ///< Otherwise: ask again after this.
};
RedisWords take(const std::string& model, const Owner& owner, Duration lease);
Result<Taken> parse_taken(const std::string& model, const redisReply& reply);

/// What an owner wants to stand in Redis. Numbers and current move forward only: what is there and is later stays.
struct Keep {
  std::string entry;  ///< JSON; empty while nothing is advertised.
  VersionNumber number = 0;
  std::uint64_t incarnation = 0;
  CurrentVersion current;
  bool stale = false;  ///< The last one that was answered was sent longer ago than a lease.
};
struct Kept {
  std::optional<Record> record;     ///< As it is now.
  bool again = false;               ///< The claim was not there any more, and was written anew.
  std::optional<std::string> lost;  ///< Who has it, or had it since; empty text when that is not known.
  Duration young{};                 ///< Otherwise: ask again after this.
};
/// Renews the claim. One that has lapsed is written again, unless somebody else had the name since. A directory that
/// lost everything does not know whether somebody had: there a stale owner waits as a newcomer does, for one who was
/// heard of later.
RedisWords keep(std::uint32_t database, const std::string& model, const Owner& owner, Duration lease,
                const Keep& wanted);
Result<Kept> parse_kept(const std::string& model, const redisReply& reply);

/// Gives the name up, and the numbers above `given` of those up to `reserved`.
RedisWords release(std::uint32_t database, const std::string& model, const Owner& owner, VersionNumber reserved,
                   VersionNumber given);

struct Swapped {
  std::optional<CurrentVersion> differs;  ///< As it is, when it was not as expected.
  std::optional<std::string> lost;        ///< The owner does not have the name; empty text when nobody has.
};
/// `owner`: empty for who has no claim.
RedisWords swap(std::uint32_t database, const std::string& model, const std::string& owner,
                const CurrentVersion& expected, const CurrentVersion& desired);
Result<Swapped> parse_swapped(const std::string& model, const redisReply& reply);

/// All that is known of a model.
struct Look {
  std::optional<Directory::Entry> entry;
  CurrentVersion current;
  std::vector<Directory::Server> servers;  ///< By address.
};
RedisWords look(const std::string& model);
Result<Look> parse_look(const std::string& model, const redisReply& reply);

RedisWords list();
/// Malformed entries are left out.
Result<std::vector<Directory::Entry>> parse_list(const redisReply& reply);

RedisWords serve(std::uint32_t database, const std::string& model, const Directory::Server& server,
                 Duration time_to_live);
RedisWords stop_serving(std::uint32_t database, const std::string& model, const std::string& address);

}  // namespace freshet::redis
