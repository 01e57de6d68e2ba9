// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/base/format.h"
#include "core/json/json_document.h"
#include "transport/ask/ask_stat.h"
#include "transport/protocol/messages.h"
#include "transport/publisher.h"
#include "transport/zmq/address.h"
#include "transport/zmq/hub/stat_fields.h"

namespace freshet {
namespace {

using nlohmann::json;

/// Reads members into variables; whatever is missing or of another kind makes the whole answer bad.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object), good_(object.is_object()) {}

  template <typename T>
  void read(const char* key, T& to) {
    const json* value = member(key);
    if (value != nullptr && is_a<T>(*value)) {
      to = value->get<T>();
    } else {
      good_ = false;
    }
  }
  void read(const char* key, std::uint32_t& to) {
    std::uint64_t behind = 0;
    read(key, behind);
    to = static_cast<std::uint32_t>(std::min<std::uint64_t>(behind, protocol::kBehindMax));
  }
  const json* list(const char* key) {
    const json* value = member(key);
    if (value != nullptr && value->is_array()) return value;
    good_ = false;
    return nullptr;
  }
  bool good() const { return good_; }

 private:
  template <typename T>
  static bool is_a(const json& value) {
    if constexpr (std::is_same_v<T, std::string>) return value.is_string();
    if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
    if constexpr (std::is_same_v<T, std::int32_t>) return value.is_number_integer();
    if constexpr (std::is_same_v<T, std::uint64_t>) return value.is_number_unsigned();
    if constexpr (std::is_same_v<T, std::vector<VersionNumber>>)
      return value.is_array() && std::ranges::all_of(value, is_a<VersionNumber>);
  }
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
  each_subscriber_field(stat, [&reader](const char* name, auto& value) { reader.read(name, value); });
  return reader.good();
}

bool read_publisher(const json& object, PublisherStat& stat) {
  Reader reader(object);
  each_publisher_field(stat, [&reader](const char* name, auto& value) { reader.read(name, value); });
  const auto current = object.find("current");
  if (current == object.end()) return false;
  Reader pair(*current);
  pair.read("epoch", stat.current.epoch);
  pair.read("version", stat.current.version);
  pair.read("hold", stat.current.hold);
  pair.read("kept", stat.current_kept);
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
