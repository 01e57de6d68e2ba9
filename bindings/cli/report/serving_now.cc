// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/report/serving_now.h"

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/json_document.h"

namespace freshet::cli {
namespace {

constexpr Duration kServingPatience = std::chrono::seconds(2);
constexpr std::size_t kSubscribersMax = 1000;
constexpr std::size_t kServedVersionsMax = 1000;
constexpr std::uint64_t kNanosecondsPerMs = 1'000'000;
constexpr std::size_t kServingTextMax = 200;

std::uint64_t number_of(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_number_unsigned() ? member->get<std::uint64_t>() : 0;
}

std::string text_in(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_string() ? shown(member->get<std::string>(), kServingTextMax) : "";
}

bool is_set(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_boolean() && member->get<bool>();
}

Json nobody(const std::string& why) {
  return {{"error", shown(why)}, {"published", Json::array()}, {"subscribers", Json::array()}};
}

Json serving_of(const Json& model) {
  Json answer = {{"newest", number_of(model, "newest")}, {"current", 0}, {"hold", false}};
  if (const auto current = model.find("current"); current != model.end() && current->is_object()) {
    answer["current"] = number_of(*current, "version");
    answer["hold"] = is_set(*current, "hold");
  }
  Json list = Json::array();
  std::size_t left_out = 0;
  if (const auto subscribers = model.find("subscribers"); subscribers != model.end() && subscribers->is_array()) {
    for (const Json& one : *subscribers) {
      if (!one.is_object()) continue;
      if (list.size() == kSubscribersMax) {
        ++left_out;
        continue;
      }
      list.push_back({{"label", text_in(one, "label")},
                      {"pid", number_of(one, "pid")},
                      {"serving", number_of(one, "serving")},
                      {"channel", text_in(one, "channel")},
                      {"silent", is_set(one, "silent")},
                      {"failed", text_in(one, "failed")}});
    }
  }
  // When a version was published tells whether it is the stored one of the same number.
  Json published = Json::array();
  if (const auto versions = model.find("versions"); versions != model.end() && versions->is_array()) {
    for (const Json& one : *versions) {
      if (!one.is_object() || published.size() == kServedVersionsMax) continue;
      published.push_back({number_of(one, "version"), number_of(one, "published_unix_ns") / kNanosecondsPerMs});
    }
  }
  answer["published"] = std::move(published);
  answer["subscribers"] = std::move(list);
  answer["left_out"] = left_out;
  return answer;
}

}  // namespace

Json serving_now(const StatQuery& query) {
  const Result<std::string> answer = ask_stat(query, kServingPatience);
  if (!answer) return nobody(answer.error().message());
  const Result<JsonDocument> parsed = parse_json(*answer);
  if (!parsed) return nobody(format("the publisher's answer: {}", parsed.error().message()));
  const Json& document = *parsed;
  const auto models = document.is_object() ? document.find("models") : document.end();
  if (models != document.end() && models->is_array()) {
    for (const Json& model : *models) {
      if (model.is_object() && model.value("model", Json()) == query.model) return serving_of(model);
    }
  }
  return nobody(format("{} is not published there", query.model));
}

}  // namespace freshet::cli
