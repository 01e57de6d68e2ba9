// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/format.h"
#include "core/json/json_document.h"
#include "transport/ask/ask_stat.h"
#include "transport/protocol/messages.h"
#include "transport/publisher.h"
#include "transport/zmq/address.h"

namespace freshet {
namespace {

using nlohmann::json;

/// Reads members into variables; whatever is missing or of another kind makes the whole answer bad.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object), good_(object.is_object()) {}

  void read(const char* key, std::uint64_t& to) {
    const json* value = member(key);
    if (value != nullptr && value->is_number_unsigned()) {
      to = value->get<std::uint64_t>();
    } else {
      good_ = false;
    }
  }
  void read(const char* key, std::string& to) {
    const json* value = member(key);
    if (value != nullptr && value->is_string()) {
      to = value->get<std::string>();
    } else {
      good_ = false;
    }
  }
  void read(const char* key, bool& to) {
    const json* value = member(key);
    if (value != nullptr && value->is_boolean()) {
      to = value->get<bool>();
    } else {
      good_ = false;
    }
  }
  void read(const char* key, std::int32_t& to) {
    const json* value = member(key);
    if (value != nullptr && value->is_number_integer()) {
      to = static_cast<std::int32_t>(value->get<std::int64_t>());
    } else {
      good_ = false;
    }
  }
  const json* list(const char* key) {
    const json* value = member(key);
    if (value != nullptr && value->is_array()) return value;
    good_ = false;
    return nullptr;
  }
  void fail() { good_ = false; }
  bool good() const { return good_; }

 private:
  const json* member(const char* key) const {
    if (!object_.is_object()) return nullptr;
    const auto at = object_.find(key);
    return at == object_.end() ? nullptr : &*at;
  }

  const json& object_;
  bool good_;
};

bool read_subscriber(const json& object, SubscriberStat& stat) {
  Reader reader(object);
  reader.read("label", stat.label);
  reader.read("pid", stat.pid);
  reader.read("every", stat.every);
  reader.read("silent", stat.silent);
  reader.read("serving", stat.serving);
  reader.read("queued_versions", stat.queued_versions);
  reader.read("gaps", stat.gaps);
  reader.read("channel", stat.channel);
  reader.read("channel_why", stat.channel_why);
  reader.read("serves", stat.serves);
  reader.read("member", stat.member);
  reader.read("epoch", stat.epoch);
  reader.read("staged", stat.staged);
  reader.read("failed", stat.failed);
  std::uint64_t behind = 0;
  reader.read("behind", behind);
  stat.behind = static_cast<std::uint32_t>(std::min<std::uint64_t>(behind, protocol::kBehindMax));
  if (const json* held = reader.list("held")) {
    for (const json& number : *held) {
      if (!number.is_number_unsigned()) return false;
      stat.held.push_back(number.get<VersionNumber>());
    }
  }
  return reader.good();
}

bool read_publisher(const json& object, PublisherStat& stat) {
  Reader reader(object);
  reader.read("model", stat.model);
  reader.read("newest", stat.newest);
  reader.read("model_bytes", stat.model_bytes);
  reader.read("versions_published", stat.versions_published);
  reader.read("versions_skipped", stat.versions_skipped);
  reader.read("bytes_published", stat.bytes_published);
  reader.read("arena_bytes", stat.arena_bytes);
  reader.read("arena_free_bytes", stat.arena_free_bytes);
  reader.read("locked_bytes", stat.locked_bytes);
  reader.read("directory", stat.directory);
  const auto current = object.find("current");
  if (current == object.end()) return false;
  Reader pair(*current);
  pair.read("epoch", stat.current.epoch);
  pair.read("version", stat.current.version);
  pair.read("hold", stat.current.hold);
  pair.read("kept", stat.current_kept);
  reader.read("candidate", stat.candidate);
  reader.read("activation_failure", stat.activation_failure);
  std::uint64_t mixed_ns = 0;
  reader.read("mixed_ns", mixed_ns);
  stat.mixed = Duration(static_cast<std::int64_t>(mixed_ns));
  if (!pair.good()) return false;
  if (const json* subscribers = reader.list("subscribers")) {
    for (const json& subscriber : *subscribers) {
      if (!read_subscriber(subscriber, stat.subscribers.emplace_back())) return false;
    }
  }
  return reader.good();
}

Result<std::vector<PublisherStat>> parse_stats(const std::string& text, const std::string& address) {
  const json object = read_json(text);
  std::vector<PublisherStat> stats;
  bool good = object.is_object();
  Reader reader(object);
  if (const json* models = good ? reader.list("models") : nullptr) {
    for (const json& model : *models) good = good && read_publisher(model, stats.emplace_back());
  } else {
    good = false;
  }
  if (!good) return fail(Code::corrupt, format("the publisher at {} answered something else than its state", address));
  return stats;
}

}  // namespace

Result<std::vector<PublisherStat>> ask_publisher_stat(const std::string& address, const std::string& model,
                                                      Duration at_most, const SecurityOptions& security,
                                                      const std::stop_token& stop) {
  FRESHET_TRY(SocketAddress::parse(address, false, Reach::any_host));
  Result<std::string> reply = ask_stat({.model = model, .at = address, .security = security}, at_most, stop);
  if (!reply && reply.error().code() == Code::timed_out) return fail(Code::unavailable, reply.error().message());
  if (!reply) return fail(std::move(reply).error());
  FRESHET_ASSIGN(std::vector<PublisherStat> stats, parse_stats(*reply, address));
  if (!model.empty() && stats.empty()) {
    return fail(Code::not_found, format("{} is not published at {}", model, address));
  }
  return stats;
}

}  // namespace freshet
