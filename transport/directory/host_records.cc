// SPDX-License-Identifier: Apache-2.0
// The JSON records of a host directory: entries, current, servers.

#include <fcntl.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/digest.h"
#include "core/base/format.h"
#include "core/json/json_document.h"
#include "transport/directory/host_files.h"
#include "transport/protocol/messages.h"

namespace freshet::host_files {
namespace {

using nlohmann::json;

/// How long others who swap are waited for.
constexpr int kLockTries = 50;
constexpr std::chrono::milliseconds kLockPause{1};

const json* member(const json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

bool is_text(const json* value) { return value != nullptr && value->is_string(); }
bool is_number(const json* value) { return value != nullptr && value->is_number_unsigned(); }

std::string dump(const json& object) { return object.dump(-1, ' ', false, json::error_handler_t::replace); }

Result<FileDescriptor> lock_swaps(int folder, const std::string& model) {
  const std::string name = model + std::string(kSwapSuffix);
  FRESHET_ASSIGN(FileDescriptor file, open_file(folder, name, O_RDWR | O_CREAT));
  for (int i = 0; i < kLockTries; ++i) {
    FRESHET_ASSIGN(const bool locked, try_lock(file.get(), name));
    if (locked) return file;
    std::this_thread::sleep_for(kLockPause);
  }
  return fail(Code::timed_out, format("another process keeps {} locked; try again, or end that process", name));
}

}  // namespace

Result<CurrentVersion> read_current(int folder, const std::string& model) {
  const std::string name = model + std::string(kCurrentSuffix);
  auto text = read_named(folder, name, kTextBytesMax);
  if (!text && text.error().code() == Code::not_found) return CurrentVersion{};
  if (!text) return fail(std::move(text).error());
  const json object = read_json(*text);
  if (!object.is_object()) return fail(Code::corrupt, name + ": not a JSON object");
  const json* epoch = member(object, "epoch");
  const json* number = member(object, "number");
  const json* hold = member(object, "hold");
  if (!is_number(epoch) || !is_number(number) || hold == nullptr || !hold->is_boolean() ||
      epoch->get<std::uint64_t>() > protocol::kEpochMax || number->get<std::uint64_t>() > protocol::kNumberMax) {
    return fail(Code::corrupt,
                name + " does not hold an epoch and a version; remove the file to forget the current version");
  }
  return CurrentVersion{
      .epoch = epoch->get<std::uint64_t>(), .version = number->get<std::uint64_t>(), .hold = hold->get<bool>()};
}

Result<CurrentVersion> swap_current(int folder, const std::string& model, const CurrentVersion& expected,
                                    const CurrentVersion& desired) {
  FRESHET_TRY(check_swap(model, expected, desired));
  FRESHET_ASSIGN(const FileDescriptor lock, lock_swaps(folder, model));
  FRESHET_ASSIGN(const CurrentVersion actual, read_current(folder, model));
  if (actual != expected) return fail(not_expected(model, expected, actual));
  FRESHET_TRY(replace(folder, model + std::string(kCurrentSuffix),
                      dump({{"epoch", desired.epoch}, {"number", desired.version}, {"hold", desired.hold}})));
  return desired;
}

std::string server_file(const std::string& model, const std::string& address) {
  const Digest digest = digest_of(std::as_bytes(std::span(address)));
  return format("{}.{:016x}{}", model, digest.low, kServerSuffix);
}

bool is_server_file(std::string_view name, const std::string& model) {
  constexpr std::size_t kDigits = 16;
  return name.size() == model.size() + 1 + kDigits + kServerSuffix.size() && name.starts_with(model + ".") &&
         name.ends_with(kServerSuffix);
}

std::string server_text(const std::string& model, const ServerRecord& record) {
  return dump({{"model", model},
               {"address", record.server.address},
               {"number", record.server.number},
               {"until", record.until.time_since_epoch().count()}});
}

Result<ServerRecord> parse_server(const std::string& text, const std::string& model) {
  const auto bad = [&] { return fail(Code::corrupt, format("a server's entry of {} is malformed", model)); };
  const json object = read_json(text);
  if (!object.is_object()) return bad();
  const json* named = member(object, "model");
  const json* address = member(object, "address");
  const json* number = member(object, "number");
  const json* until = member(object, "until");
  if (!is_text(named) || named->get<std::string>() != model || !is_text(address) || !is_number(number) ||
      !is_number(until) || until->get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
    return bad();
  }
  ServerRecord record{.server = {.address = address->get<std::string>(), .number = number->get<std::uint64_t>()},
                      .until = Time(Duration(until->get<std::int64_t>()))};
  FRESHET_TRY(check_server(model, record.server, Code::corrupt));
  return record;
}

}  // namespace freshet::host_files
