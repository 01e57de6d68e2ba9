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
  // A host that lost its power may leave a new record without its bytes: replace() writes nothing to the disk.
  if (text->empty()) return CurrentVersion{};
  const json object = read_json(*text);
  if (!object.is_object()) return fail(Code::corrupt, name + ": not a JSON object");
  const auto epoch = count_in(object, "epoch");
  const auto number = count_in(object, "number");
  const auto hold = object.find("hold");
  if (!epoch || !number || hold == object.end() || !hold->is_boolean() || *epoch > protocol::kEpochMax ||
      *number > protocol::kNumberMax) {
    return fail(Code::corrupt,
                name + " does not hold an epoch and a version; remove the file to forget the current version");
  }
  return CurrentVersion{.epoch = *epoch, .version = *number, .hold = hold->get<bool>()};
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
  const auto address = text_in(object, "address");
  const auto number = count_in(object, "number");
  const auto until = count_in(object, "until");
  if (text_in(object, "model") != model || !address || !number || !until ||
      *until > std::numeric_limits<std::int64_t>::max()) {
    return bad();
  }
  ServerRecord record{.server = {.address = *address, .number = *number},
                      .until = Time(Duration(static_cast<std::int64_t>(*until)))};
  FRESHET_TRY(check_server(model, record.server, Code::corrupt));
  return record;
}

}  // namespace freshet::host_files
