// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/top/sample.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/json/json_document.h"
#include "repo/local/side_by_side.h"
#include "transport/ask/ask_stat.h"
#include "transport/directory/directory.h"

namespace freshet::cli {
namespace {

constexpr Duration kStatPatience = std::chrono::seconds(2);
/// So many publishers that do not answer make a listing wait no longer than one of them.
constexpr std::size_t kAskedAtOnce = 32;

/// Moves a time in nanoseconds to a name that tells milliseconds.
void put_in_ms(Json& object, const char* ns, const char* ms) {
  if (!object.is_object() || !object.contains(ns)) return;
  object[ms] = static_cast<double>(stat_number(object, ns)) / 1e6;
  object.erase(ns);
}

Json metrics_in(const Json& version) {
  Json metrics = Json::object();
  for (const Json& pair : stat_list(version, "metrics")) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_string();
    if (is_pair) metrics[pair[0].get<std::string>()] = pair[1].is_number() ? pair[1] : Json();
  }
  return metrics;
}

/// As it is shown.
void shape(Json& model) {
  put_in_ms(model, "mixed_ns", "mixed_ms");
  if (const auto list = model.find("subscribers"); list != model.end() && list->is_array()) {
    for (Json& one : *list) put_in_ms(one, "staleness_ns", "staleness_ms");
  }
  Json versions = Json::array();
  for (const Json& version : stat_list(model, "versions")) {
    versions.push_back({{"version", stat_number(version, "version")},
                        {"step", stat_number(version, "step")},
                        {"metrics", metrics_in(version)},
                        {"published_ms", stat_number(version, "published_unix_ns") / 1'000'000},
                        {"file", stat_text(version, "source")}});
  }
  model["versions"] = std::move(versions);
}

/// All models of an endpoint, or the one that the place names.
Result<std::vector<Json>> ask(const TopPlace& place) {
  FRESHET_ASSIGN(
      const std::string answer,
      ask_stat({.model = place.model, .at = place.at, .directory = place.directory, .security = place.security},
               kStatPatience));
  Result<JsonDocument> parsed = parse_json(answer);
  if (!parsed) return fail(Code::corrupt, format("the publisher's answer: {}", parsed.error().message()));
  std::vector<Json> models;
  for (Json model : stat_list(*parsed, "models")) {
    if (!model.is_object() || (!place.model.empty() && stat_text(model, "model") != place.model)) continue;
    shape(model);
    models.push_back(std::move(model));
  }
  return models;
}

}  // namespace

Result<Json> sample_model(const TopPlace& place) {
  FRESHET_ASSIGN(std::vector<Json> models, ask(place));
  if (models.empty()) return fail(Code::not_found, format("{} is not published there", place.model));
  return std::move(models.front());
}

Result<std::vector<Json>> sample_all(const TopPlace& place) {
  if (!place.at.empty()) return ask(place);
  FRESHET_ASSIGN(const std::unique_ptr<Directory> directory, open_directory(place.directory));
  FRESHET_ASSIGN(const std::vector<Directory::Entry> entries, directory->list());
  std::vector<Json> models(entries.size());
  FRESHET_TRY(run_side_by_side(entries.size(), kAskedAtOnce, [&](std::size_t i) -> Status {
    TopPlace one = place;
    one.model = entries[i].model;
    Result<Json> model = sample_model(one);
    models[i] = model ? *std::move(model) : Json{{"model", one.model}, {"error", model.error().message()}};
    return {};
  }));
  return models;
}

std::uint64_t stat_number(const Json& object, const char* key) {
  const auto member = object.is_object() ? object.find(key) : object.end();
  return member != object.end() && member->is_number_unsigned() ? member->get<std::uint64_t>() : 0;
}

std::string stat_text(const Json& object, const char* key) {
  const auto member = object.is_object() ? object.find(key) : object.end();
  return member != object.end() && member->is_string() ? member->get<std::string>() : std::string();
}

bool stat_flag(const Json& object, const char* key) {
  const auto member = object.is_object() ? object.find(key) : object.end();
  return member != object.end() && member->is_boolean() && member->get<bool>();
}

Json stat_list(const Json& object, const char* key) {
  const auto member = object.is_object() ? object.find(key) : object.end();
  return member != object.end() && member->is_array() ? *member : Json::array();
}

}  // namespace freshet::cli
