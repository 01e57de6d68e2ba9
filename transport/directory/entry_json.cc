// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/entry_json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/format.h"
#include "core/json/json_document.h"

namespace freshet {
namespace {

using nlohmann::json;

constexpr std::size_t kEntryBytesMax = 32 * 1024;

const json* member(const json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

bool is_text(const json* value) { return value != nullptr && value->is_string(); }
bool is_number(const json* value) { return value != nullptr && value->is_number_unsigned(); }

}  // namespace

std::string entry_json(const Directory::Entry& entry) {
  return json{{"model", entry.model},     {"pid", entry.pid},   {"incarnation", entry.incarnation},
              {"control", entry.control}, {"host", entry.host}, {"also", entry.also}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Directory::Entry> parse_entry_json(const std::string& text, const std::string& model) {
  const auto bad = [&](std::string_view what) {
    return fail(Code::corrupt, format("directory entry of {}: {}", model, what));
  };
  if (text.size() > kEntryBytesMax) return bad("too long");
  const json object = read_json(text);
  if (!object.is_object()) return bad("not a JSON object");
  const json* named = member(object, "model");
  const json* pid = member(object, "pid");
  const json* incarnation = member(object, "incarnation");
  const json* control = member(object, "control");
  const json* host = member(object, "host");
  const json* also = member(object, "also");
  if (!is_text(named) || named->get<std::string>() != model) return bad("names another model");
  if (!is_number(pid) || pid->get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
    return bad("pid is not a process id");
  }
  if (!is_number(incarnation)) return bad("incarnation is not a number");
  if (!is_text(control)) return bad("control is not an address");
  if (host != nullptr && !host->is_string()) return bad("the host is not a valid name");
  if (also != nullptr && !also->is_array()) return bad("also is not a list");
  Directory::Entry entry{.model = model,
                         .pid = static_cast<std::int32_t>(pid->get<std::uint64_t>()),
                         .incarnation = incarnation->get<std::uint64_t>(),
                         .control = control->get<std::string>(),
                         .host = host == nullptr ? "" : host->get<std::string>()};
  for (const json& address : also == nullptr ? json::array() : *also) {
    if (!address.is_string()) return bad("one of its addresses is invalid");
    entry.also.push_back(address.get<std::string>());
  }
  FRESHET_TRY(check_entry(entry, Code::corrupt));
  return entry;
}

}  // namespace freshet
