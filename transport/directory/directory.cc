// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/directory.h"

#include <future>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/similar_names.h"

namespace freshet {
namespace {

constexpr std::size_t kAlsoMax = 16;

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

Status check_swap(const std::string& model, const CurrentVersion& expected, const CurrentVersion& desired) {
  FRESHET_TRY(check_model_name(model));
  if (!is_in_range(expected) || !is_in_range(desired)) {
    return fail(Code::invalid_argument,
                format("model {}: its current version has an epoch or a number out of range", model));
  }
  if (desired.comes_after(expected.epoch, expected.version)) return {};
  return fail(Code::invalid_argument, format("model {}: its current version cannot go back from {} to {}", model,
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

std::string models_beside(Directory& directory, const std::string& model) {
  std::vector<std::string> names;
  const auto entries = directory.list();
  for (std::size_t i = 0; entries && i < entries->size(); ++i) {
    if ((*entries)[i].model != model) names.push_back((*entries)[i].model);
  }
  return here_are(model, names);
}

}  // namespace freshet
