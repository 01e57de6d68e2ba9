// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/scripts.h"

#include <algorithm>
#include <limits>

#include "core/base/format.h"
#include "core/base/text.h"
#include "transport/directory/entry_json.h"
#include "transport/protocol/messages.h"
#include "transport/redis/lua.h"

namespace freshet::redis {
namespace {

constexpr std::size_t kServersMax = 1024;
constexpr std::size_t kModelsMax = 4096;
constexpr std::size_t kKeys = 6;
constexpr std::uint64_t kAnyNumber = std::numeric_limits<std::uint64_t>::max() / 2;

RedisWords evaluate(const char* script, const std::string& model, std::initializer_list<std::string> arguments) {
  const std::string stem = "freshet:" + model;
  RedisWords words = {"EVAL",
                      std::string(kLuaCommon) + script,
                      std::to_string(kKeys),
                      stem + ":record",
                      stem + ":claim",
                      stem + ":servers",
                      stem + ":versions",
                      "freshet:models",
                      "freshet:born"};
  words.insert(words.end(), arguments);
  return words;
}

std::string milliseconds(Duration duration) {
  return std::to_string(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

std::string hold_text(const CurrentVersion& record) { return record.hold ? "1" : "0"; }

tl::unexpected<Error> malformed(const std::string& model) {
  return fail(Code::corrupt, format("the answer of Redis about {} is malformed", model));
}

/// Three texts: epoch, version, hold.
Result<CurrentVersion> parse_current(const std::string& model, const std::string* texts) {
  CurrentVersion record;
  FRESHET_ASSIGN(record.epoch, number_of(texts[0], protocol::kEpochMax, "epoch of " + model));
  FRESHET_ASSIGN(record.version, number_of(texts[1], protocol::kNumberMax, "current version of " + model));
  if (texts[2] != "0" && texts[2] != "1") return malformed(model);
  record.hold = texts[2] == "1";
  return record;
}

/// Six texts: number, incarnation, epoch, version, hold, fence.
Result<Record> parse_record(const std::string& model, const std::string* texts) {
  Record record;
  FRESHET_ASSIGN(record.number, number_of(texts[0], protocol::kNumberMax, "number of " + model));
  FRESHET_ASSIGN(record.incarnation, number_of(texts[1], protocol::kNumberMax, "incarnation of " + model));
  FRESHET_ASSIGN(record.current, parse_current(model, texts + 2));
  FRESHET_ASSIGN(record.fence, number_of(texts[5], kAnyNumber, "fence of " + model));
  return record;
}

std::string shown_who(const std::string& who) { return who.empty() ? "somebody" : shown(who); }

/// The answer "young": how long to wait.
std::optional<Duration> young_of(const std::vector<std::string>& texts) {
  const bool good = texts.size() == 2 && texts[0] == "young" && texts[1].size() < 10 &&
                    texts[1].find_first_not_of("0123456789") == std::string::npos;
  if (!good) return std::nullopt;
  return std::chrono::milliseconds(1 + std::stoll("0" + texts[1]));
}

}  // namespace

std::string news_channel(std::uint32_t database, const std::string& model) {
  return format("freshet:{}:{}:news", database, model);
}

std::string commits_channel(std::uint32_t database, const std::string& model) {
  return format("freshet:{}:{}:commits", database, model);
}

RedisWords take(const std::string& model, const Owner& owner, Duration lease) {
  return evaluate(kLuaTake, model, {model, owner.id, owner.who, milliseconds(lease)});
}

Result<Taken> parse_taken(const std::string& model, const redisReply& reply) {
  FRESHET_ASSIGN(const auto texts, texts_of(reply, 7));
  Taken taken;
  if (texts.size() == 7 && texts[0] == "taken") {
    FRESHET_ASSIGN(taken.record, parse_record(model, &texts[1]));
  } else if (texts.size() == 2 && texts[0] == "held") {
    taken.held_by = shown_who(texts[1]);
  } else if (const auto young = young_of(texts)) {
    taken.young = *young;
  } else {
    return malformed(model);
  }
  return taken;
}

RedisWords keep(std::uint32_t database, const std::string& model, const Owner& owner, Duration lease,
                const Keep& wanted) {
  return evaluate(
      kLuaKeep, model,
      {model, owner.id, owner.who, milliseconds(lease), stored(owner.fence), wanted.entry, stored(wanted.number),
       stored(wanted.incarnation), stored(wanted.current.epoch), stored(wanted.current.version),
       hold_text(wanted.current), news_channel(database, model), wanted.stale ? "1" : "0"});
}

Result<Kept> parse_kept(const std::string& model, const redisReply& reply) {
  FRESHET_ASSIGN(const auto texts, texts_of(reply, 7));
  Kept kept;
  if (texts.size() == 7 && (texts[0] == "kept" || texts[0] == "again")) {
    kept.again = texts[0] == "again";
    FRESHET_ASSIGN(kept.record, parse_record(model, &texts[1]));
  } else if (texts.size() == 2 && texts[0] == "lost") {
    kept.lost = shown_who(texts[1]);
  } else if (const auto young = young_of(texts)) {
    kept.young = *young;
  } else {
    return malformed(model);
  }
  return kept;
}

RedisWords release(std::uint32_t database, const std::string& model, const Owner& owner, VersionNumber reserved,
                   VersionNumber given) {
  return evaluate(kLuaRelease, model, {owner.id, stored(reserved), stored(given), news_channel(database, model)});
}

RedisWords swap(std::uint32_t database, const std::string& model, const std::string& owner,
                const CurrentVersion& expected, const CurrentVersion& desired) {
  return evaluate(kLuaSwap, model,
                  {owner, stored(expected.epoch), stored(expected.version), hold_text(expected), stored(desired.epoch),
                   stored(desired.version), hold_text(desired), news_channel(database, model)});
}

Result<Swapped> parse_swapped(const std::string& model, const redisReply& reply) {
  FRESHET_ASSIGN(const auto texts, texts_of(reply, 4));
  Swapped swapped;
  if (texts.size() == 4 && texts[0] == "differs") {
    FRESHET_ASSIGN(swapped.differs, parse_current(model, &texts[1]));
  } else if (texts.size() == 2 && texts[0] == "lost") {
    swapped.lost = texts[1].empty() ? "" : shown(texts[1]);
  } else if (texts.size() != 1 || texts[0] != "swapped") {
    return malformed(model);
  }
  return swapped;
}

RedisWords look(const std::string& model) { return evaluate(kLuaLook, model, {}); }

Result<Look> parse_look(const std::string& model, const redisReply& reply) {
  FRESHET_ASSIGN(const auto texts, texts_of(reply, 4 + 2 * kServersMax));
  if (texts.size() < 4 || texts.size() % 2 != 0) return malformed(model);
  Look seen;
  if (!texts[0].empty()) {
    FRESHET_ASSIGN(seen.entry, parse_entry_json(texts[0], model));
  }
  FRESHET_ASSIGN(seen.current, parse_current(model, &texts[1]));
  for (std::size_t i = 4; i < texts.size(); i += 2) {
    Directory::Server server{.address = texts[i]};
    FRESHET_ASSIGN(server.number, number_of(texts[i + 1], protocol::kNumberMax, "version of a server of " + model));
    FRESHET_TRY(check_server(model, server, Code::corrupt));
    seen.servers.push_back(std::move(server));
  }
  std::sort(seen.servers.begin(), seen.servers.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  return seen;
}

RedisWords list() { return {"EVAL", kLuaList, "1", "freshet:models"}; }

Result<std::vector<Directory::Entry>> parse_list(const redisReply& reply) {
  FRESHET_ASSIGN(const auto texts, texts_of(reply, 2 * kModelsMax));
  std::vector<Directory::Entry> entries;
  for (std::size_t i = 0; i + 1 < texts.size(); i += 2) {
    if (!check_model_name(texts[i])) continue;
    if (auto entry = parse_entry_json(texts[i + 1], texts[i])) entries.push_back(std::move(*entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.model < b.model; });
  return entries;
}

RedisWords serve(std::uint32_t database, const std::string& model, const Directory::Server& server,
                 Duration time_to_live) {
  return evaluate(kLuaServe, model,
                  {server.address, stored(server.number), milliseconds(time_to_live), news_channel(database, model)});
}

RedisWords stop_serving(std::uint32_t database, const std::string& model, const std::string& address) {
  return evaluate(kLuaStopServing, model, {address, news_channel(database, model)});
}

}  // namespace freshet::redis
