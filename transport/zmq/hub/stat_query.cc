// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/base/format.h"
#include "core/json/json_document.h"
#include "transport/ask/ask_stat.h"
#include "transport/protocol/messages.h"
#include "transport/publisher.h"
#include "transport/zmq/address.h"
#include "transport/zmq/hub/publisher_hub.h"
#include "transport/zmq/hub/stat_fields.h"

namespace freshet {
namespace {

using nlohmann::json;

template <typename T>
bool is_json_of(const json& value) {
  if constexpr (std::is_same_v<T, std::string>) return value.is_string();
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  if constexpr (std::is_signed_v<T>) return value.is_number_integer();
  if constexpr (std::is_unsigned_v<T>) return value.is_number_unsigned();
  return false;
}
template <>
bool is_json_of<std::vector<VersionNumber>>(const json& value) {
  return value.is_array() && std::ranges::all_of(value, is_json_of<VersionNumber>);
}

/// False when the member is missing or of another kind, which makes the whole answer bad.
template <typename T>
bool read_member(const json& object, const char* key, T& to) {
  const auto member = object.find(key);
  if (member == object.end() || !is_json_of<T>(*member)) return false;
  if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(std::int64_t) && !std::is_same_v<T, bool>) {
    // JSON has no limit of ours: a number beyond T's is T's largest, and does not lose its upper bits.
    using Wide = std::conditional_t<std::is_unsigned_v<T>, std::uint64_t, std::int64_t>;
    using Limits = std::numeric_limits<T>;
    to = static_cast<T>(std::clamp<Wide>(member->get<Wide>(), Limits::min(), Limits::max()));
  } else {
    to = member->get<T>();
  }
  return true;
}

bool read_subscriber(const json& object, SubscriberStat& stat) {
  bool good = object.is_object();
  each_subscriber_field(stat, [&](const char* name, auto& value) { good = good && read_member(object, name, value); });
  stat.behind = std::min(stat.behind, protocol::kBehindMax);
  if (!good || !object.contains("staleness_ns")) return good;
  std::uint64_t ns = 0;
  good = read_member(object, "staleness_ns", ns);
  stat.staleness = Duration(std::min<std::uint64_t>(ns, Duration::max().count()));
  return good;
}

/// A number that JSON has no word for, like NaN, comes as null.
bool read_metrics(const json& list, Metrics& metrics) {
  return list.is_array() && std::ranges::all_of(list, [&](const json& pair) {
           if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string()) return false;
           if (!pair[1].is_number() && !pair[1].is_null()) return false;
           constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
           metrics.emplace_back(pair[0].get<std::string>(), pair[1].is_null() ? kNone : pair[1].get<double>());
           return true;
         });
}

bool read_versions(const json& list, std::vector<VersionStat>& versions) {
  return list.is_array() && std::ranges::all_of(list, [&](const json& version) {
           VersionStat& stat = versions.emplace_back();
           bool good =
               version.is_object() && version.contains("metrics") && read_metrics(version["metrics"], stat.metrics);
           if (!good) return false;
           each_version_field(stat,
                              [&](const char* name, auto& value) { good = good && read_member(version, name, value); });
           return good;
         });
}

bool read_publisher(const json& object, PublisherStat& stat) {
  bool good =
      object.is_object() && object.contains("current") && object.contains("subscribers") && object.contains("versions");
  if (!good) return false;
  each_publisher_field(stat, [&](const char* name, auto& value) { good = good && read_member(object, name, value); });
  const json& current = object["current"];
  std::uint64_t mixed_ns = 0;
  good = good && read_member(current, "epoch", stat.current.epoch) &&
         read_member(current, "version", stat.current.version) && read_member(current, "hold", stat.current.hold) &&
         read_member(current, "kept", stat.current_kept) && read_member(object, "mixed_ns", mixed_ns) &&
         object["subscribers"].is_array() && read_versions(object["versions"], stat.versions);
  stat.mixed = Duration(static_cast<std::int64_t>(mixed_ns));
  return good && std::ranges::all_of(object["subscribers"], [&](const json& subscriber) {
           return read_subscriber(subscriber, stat.subscribers.emplace_back());
         });
}

}  // namespace

Result<std::vector<PublisherStat>> stats_from_json(const std::string& text, const std::string& address) {
  const json object = read_json(text);
  std::vector<PublisherStat> stats;
  const auto models = object.find("models");
  const bool good =
      models != object.end() && models->is_array() &&
      std::ranges::all_of(*models, [&](const json& model) { return read_publisher(model, stats.emplace_back()); });
  if (!good) return fail(Code::corrupt, format("the publisher at {} answered something else than its state", address));
  return stats;
}

Result<std::vector<PublisherStat>> ask_publisher_stat(const std::string& address, const std::string& model,
                                                      Duration at_most, const SecurityOptions& security,
                                                      const std::stop_token& stop) {
  FRESHET_TRY(SocketAddress::parse(address, false, Reach::any_host));
  Result<std::string> reply = ask_stat({.model = model, .at = address, .security = security}, at_most, stop);
  if (!reply && reply.error().code() == Code::timed_out) return fail(Code::unavailable, reply.error().message());
  if (!reply) return fail(std::move(reply).error());
  FRESHET_ASSIGN(std::vector<PublisherStat> stats, stats_from_json(*reply, address));
  if (!model.empty() && stats.empty()) {
    return fail(Code::not_found, format("{} is not published at {}", model, address));
  }
  return stats;
}

}  // namespace freshet
