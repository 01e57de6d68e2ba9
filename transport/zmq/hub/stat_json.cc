// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/text.h"
#include "transport/zmq/hub/publisher_hub.h"
#include "transport/zmq/hub/stat_fields.h"

namespace freshet {

void note_version(PublisherStat& stat, const Manifest& manifest, const std::string& source) {
  if (stat.versions.size() == kVersionStatsMax) stat.versions.erase(stat.versions.begin());
  stat.versions.push_back({.version = manifest.name.number,
                           .step = manifest.step,
                           .metrics = manifest.metrics,
                           .published_unix_ns = manifest.created_unix_ns,
                           .source = shown(source, kVersionSourceBytesMax)});
  Metrics& metrics = stat.versions.back().metrics;
  const auto loss = std::ranges::find(metrics, "loss", &Metrics::value_type::first);
  if (loss != metrics.end()) std::rotate(metrics.begin(), loss, std::next(loss));
  metrics.resize(std::min(metrics.size(), kVersionMetricsMax));
}

std::string to_json(const std::vector<PublisherStat>& models) {
  nlohmann::json list = nlohmann::json::array();
  for (const PublisherStat& model : models) {
    nlohmann::json& row = list.emplace_back(nlohmann::json::object());
    each_publisher_field(model, [&row](const char* name, const auto& value) { row[name] = value; });
    row["current"] = {{"epoch", model.current.epoch},
                      {"version", model.current.version},
                      {"hold", model.current.hold},
                      {"kept", model.current_kept}};
    row["mixed_ns"] = model.mixed.count();
    nlohmann::json& versions = row["versions"] = nlohmann::json::array();
    for (const VersionStat& version : model.versions) {
      nlohmann::json& of = versions.emplace_back(nlohmann::json::object());
      each_version_field(version, [&of](const char* name, const auto& value) { of[name] = value; });
      nlohmann::json& metrics = of["metrics"] = nlohmann::json::array();
      for (const auto& [name, value] : version.metrics) metrics.push_back({name, value});
    }
    nlohmann::json& subscribers = row["subscribers"] = nlohmann::json::array();
    for (const SubscriberStat& subscriber : model.subscribers) {
      nlohmann::json& of = subscribers.emplace_back(nlohmann::json::object());
      each_subscriber_field(subscriber, [&of](const char* name, const auto& value) { of[name] = value; });
      if (subscriber.staleness) of["staleness_ns"] = static_cast<std::uint64_t>(subscriber.staleness->count());
    }
  }
  return nlohmann::json{{"models", std::move(list)}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace freshet
