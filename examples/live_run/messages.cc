// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/messages.h"

#include <nlohmann/json.hpp>

#include "core/base/format.h"

namespace freshet::live {
namespace {

using nlohmann::json;

constexpr std::size_t kMessageBytesMax = 1 << 16;

Result<json> parse(std::string_view text, const char* what) {
  if (text.size() > kMessageBytesMax) return fail(Code::corrupt, format("{} of {} bytes", what, text.size()));
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) return fail(Code::corrupt, format("{}: not a JSON object", what));
  return value;
}

}  // namespace

std::string encode(const ScoreRequest& request) { return json{{"id", request.id}, {"window", request.window}}.dump(); }

std::string encode(const ScoreAnswer& answer) {
  if (!answer.ready) return json{{"id", answer.id}, {"ready", false}}.dump();
  json rows = json::array();
  for (const RowSeen& seen : answer.rows) rows.push_back({seen.row, seen.digest});
  return json{{"id", answer.id},         {"ready", true},         {"loss", answer.loss},    {"version", answer.version},
              {"record", answer.record}, {"dense", answer.dense}, {"rows", std::move(rows)}}
      .dump();
}

Result<ScoreRequest> decode_request(std::string_view text) {
  FRESHET_ASSIGN(const json value, parse(text, "request"));
  try {
    ScoreRequest request{.id = value.at("id").get<std::uint64_t>(), .window = value.at("window").get<Text>()};
    if (request.window.size() > kWindowBytesMax) return fail(Code::corrupt, "request: the window is too long");
    return request;
  } catch (const json::exception& error) {
    return fail(Code::corrupt, format("request: {}", error.what()));
  }
}

Result<ScoreAnswer> decode_answer(std::string_view text) {
  FRESHET_ASSIGN(const json value, parse(text, "answer"));
  try {
    ScoreAnswer answer{.id = value.at("id").get<std::uint64_t>(), .ready = value.at("ready").get<bool>()};
    if (!answer.ready) return answer;
    answer.loss = value.at("loss").get<double>();
    answer.version = value.at("version").get<std::uint64_t>();
    answer.record = value.at("record").get<std::string>();
    answer.dense = value.at("dense").get<std::vector<std::uint64_t>>();
    for (const json& pair : value.at("rows")) {
      answer.rows.push_back({.row = pair.at(0).get<std::uint32_t>(), .digest = pair.at(1).get<std::uint64_t>()});
    }
    return answer;
  } catch (const json::exception& error) {
    return fail(Code::corrupt, format("answer: {}", error.what()));
  }
}

}  // namespace freshet::live
