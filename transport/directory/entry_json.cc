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
  const auto pid = count_in(object, "pid");
  const auto incarnation = count_in(object, "incarnation");
  const auto control = text_in(object, "control");
  const auto host = text_in(object, "host");
  const json also = object.value("also", json::array());
  if (text_in(object, "model") != model) return bad("names another model");
  if (!pid || *pid > std::numeric_limits<std::int32_t>::max()) return bad("pid is not a process id");
  if (!incarnation) return bad("incarnation is not a number");
  if (!control) return bad("control is not an address");
  if (!host && object.contains("host")) return bad("the host is not a valid name");
  if (!also.is_array()) return bad("also is not a list");
  Directory::Entry entry{.model = model,
                         .pid = static_cast<std::int32_t>(*pid),
                         .incarnation = *incarnation,
                         .control = *control,
                         .host = host.value_or("")};
  for (const json& address : also) {
    if (!address.is_string()) return bad("one of its addresses is invalid");
    entry.also.push_back(address.get<std::string>());
  }
  FRESHET_TRY(check_entry(entry, Code::corrupt));
  return entry;
}

}  // namespace freshet
