// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/directory.h"

#include <cstdlib>
#include <future>

#include "core/base/format.h"
#include "core/base/text.h"
#include "transport/directory/host_directory.h"
#ifdef FRESHET_REDIS
#include "transport/redis/redis_directory.h"
#endif

namespace freshet {
namespace {

constexpr std::size_t kAlsoMax = 16;

std::string named_or_default(const std::string& text) {
  if (!text.empty()) return text;
  const char* const named = std::getenv("FRESHET_DIRECTORY");
  return named == nullptr ? "" : named;
}

std::string shown_record(const CurrentVersion& record) {
  return format("(epoch {}, version {}{})", record.epoch, record.version, record.hold ? ", held" : "");
}

bool is_in_range(const CurrentVersion& record) {
  return record.epoch <= protocol::kEpochMax && record.version <= protocol::kNumberMax;
}

Status check_address(const std::string& address, Code code) {
  if (address.size() <= protocol::kAddressBytesMax && check_label("address", address, protocol::kAddressBytesMax)) {
    return {};
  }
  return fail(code, format("\"{}\" is not an address", shown(address)));
}

Result<std::unique_ptr<Directory>> open_redis([[maybe_unused]] const std::string& text) {
#ifdef FRESHET_REDIS
  FRESHET_ASSIGN(RedisAddress address, RedisAddress::parse(text));
  FRESHET_ASSIGN(std::unique_ptr<HostDirectory> host, HostDirectory::open(""));
  return RedisDirectory::open(std::move(address), {}, std::move(host)).map([](auto redis) {
    return std::unique_ptr<Directory>(std::move(redis));
  });
#else
  // Without what follows, which may be a password.
  return fail(Code::unsupported,
              format("directory {}://…: this build cannot use Redis, because it was configured without hiredis",
                     text.substr(0, text.find("://"))));
#endif
}

}  // namespace

Result<CurrentVersion> Directory::Claim::compare_and_swap_current(const CurrentVersion& expected,
                                                                 const CurrentVersion& desired) {
  std::promise<Result<CurrentVersion>> promise;
  auto answer = promise.get_future();
  // Ends: an implementation calls it exactly once, within its patience.
  swap_current(expected, desired, [&promise](Result<CurrentVersion> result) { promise.set_value(std::move(result)); });
  return answer.get();
}

Result<std::unique_ptr<Directory::Watch>> Directory::watch_commits(const std::string& /*model*/) {
  return fail(Code::unsupported, format("{} carries no announcements (a directory on Redis does)", text()));
}

bool is_remote_directory(const std::string& text) {
  const std::string named = named_or_default(text);
  return named.starts_with("redis://") || named.starts_with("rediss://") || named.starts_with("redis+unix://");
}

Result<std::unique_ptr<Directory>> open_directory(const std::string& text) {
  const std::string named = named_or_default(text);
  if (is_remote_directory(named)) return open_redis(named);
  return HostDirectory::open(named).map([](auto host) { return std::unique_ptr<Directory>(std::move(host)); });
}

Status check_swap(const std::string& model, const CurrentVersion& expected, const CurrentVersion& desired) {
  FRESHET_TRY(check_model_name(model));
  if (!is_in_range(expected) || !is_in_range(desired)) {
    return fail(Code::invalid_argument, format("current of {}: epoch or version out of range", model));
  }
  if (desired.comes_after(expected.epoch, expected.version)) return {};
  return fail(Code::invalid_argument, format("current of {} cannot go back, from {} to {}", model,
                                             shown_record(expected), shown_record(desired)));
}

Error not_expected(const std::string& model, const CurrentVersion& expected, const CurrentVersion& actual) {
  return Error(Code::failed_precondition,
               format("{} is at {}, not at {}", model, shown_record(actual), shown_record(expected)));
}

Status check_entry(const Directory::Entry& entry, Code code) {
  const auto bad = [&](std::string_view what) {
    return fail(code, format("directory entry of {}: {}", shown(entry.model), what));
  };
  if (!check_model_name(entry.model)) return bad("its model has no allowed name");
  if (entry.pid < 0) return bad("pid is not a process id");
  if (entry.incarnation > protocol::kNumberMax) return bad("incarnation is out of range");
  if (!check_address(entry.control, code)) return bad("control is not an address");
  if (!entry.host.empty() && !check_label("host", entry.host, protocol::kLabelBytesMax))
    return bad("the host is not a valid name");
  if (entry.also.size() > kAlsoMax) return bad("it has too many addresses");
  for (const std::string& address : entry.also) {
    if (!check_address(address, code)) return bad("one of its addresses is invalid");
  }
  return {};
}

Status check_server(const std::string& model, const Directory::Server& server, Code code) {
  FRESHET_TRY(check_model_name(model));
  if (server.number > protocol::kNumberMax) return fail(code, format("server of {}: version out of range", model));
  if (auto status = check_address(server.address, code); !status) {
    return fail(std::move(status).error().with_context("server of " + model));
  }
  return {};
}

}  // namespace freshet
