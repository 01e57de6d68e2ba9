// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/hosts.h"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "transport/option_text.h"

namespace freshet::live {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 5> kRoles = {"trainer", "relay", "server", "repository", "load"};

struct TextField {
  const char* name;
  std::string& (*of)(HostPlan&);
};
constexpr TextField kTextFields[] = {
    {"netns", [](HostPlan& plan) -> std::string& { return plan.netns; }},
    {"directory", [](HostPlan& plan) -> std::string& { return plan.directory; }},
    {"listen", [](HostPlan& plan) -> std::string& { return plan.listen; }},
    {"keys", [](HostPlan& plan) -> std::string& { return plan.security.key_file; }},
    {"allow", [](HostPlan& plan) -> std::string& { return plan.security.allow_file; }},
    {"server_key", [](HostPlan& plan) -> std::string& { return plan.security.server_key; }},
};

Status set_field(HostPlan& plan, const std::string& name, const json& value) {
  if (name == "trusted_fabric" && value.is_boolean()) {
    plan.security.trusted_fabric = value.get<bool>();
    return {};
  }
  if (name == "at" && value.is_string()) {
    plan.at = parse_addresses(value.get<std::string>());
    return {};
  }
  if (name == "channel" && value.is_string()) {
    FRESHET_ASSIGN(plan.channel, parse_channel(value.get<std::string>()));
    return {};
  }
  for (const TextField& field : kTextFields) {
    if (name != field.name || !value.is_string()) continue;
    field.of(plan) = value.get<std::string>();
    return {};
  }
  return fail(Code::invalid_argument, format("hosts: \"{}\" is no key, or has no such value", name));
}

Result<HostPlan> parse_plan(const std::string& role, const json& object) {
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end() || !object.is_object())
    return fail(Code::invalid_argument, format("hosts: \"{}\" is no role, or no object", role));
  HostPlan plan;
  for (const auto& [name, value] : object.items()) FRESHET_TRY(set_field(plan, name, value));
  return plan;
}

}  // namespace

Result<HostPlans> parse_host_plans(const std::string& json_text) {
  const json object = json::parse(json_text, nullptr, false);
  if (!object.is_object()) return fail(Code::invalid_argument, "hosts: not a JSON object");
  HostPlans plans;
  for (const auto& [role, value] : object.items()) {
    FRESHET_ASSIGN(plans[role], parse_plan(role, value));
  }
  const auto relay = plans.find("relay");
  if (relay != plans.end() && (relay->second.at.empty() || relay->second.listen.empty()))
    return fail(Code::invalid_argument, "hosts: a relay needs \"at\" and \"listen\"");
  return plans;
}

Result<HostPlans> read_host_plans(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Code::not_found, format("{}: cannot be read", path));
  std::stringstream text;
  text << file.rdbuf();
  return parse_host_plans(text.str());
}

std::string to_json(const HostPlans& plans) {
  json object = json::object();
  for (const auto& [role, plan] : plans) {
    HostPlan copy = plan;
    json& out = object[role] = json::object();
    for (const TextField& field : kTextFields) {
      if (!field.of(copy).empty()) out[field.name] = field.of(copy);
    }
    if (!plan.at.empty()) out["at"] = format("{}", fmt::join(plan.at, ","));
    if (plan.channel) out["channel"] = to_string(*plan.channel);
    if (plan.security.trusted_fabric) out["trusted_fabric"] = true;
  }
  return object.dump();
}

Status enter_host(const HostPlan& plan) {
  if (!plan.directory.empty()) ::setenv("FRESHET_RUN_DIR", plan.directory.c_str(), 1);
  if (plan.netns.empty()) return {};
  const FileDescriptor space(::open(plan.netns.c_str(), O_RDONLY | O_CLOEXEC));
  if (!space) return fail_errno(errno, "open " + plan.netns);
  if (::setns(space.get(), CLONE_NEWNET) != 0) return fail_errno(errno, "enter " + plan.netns);
  return {};
}

}  // namespace freshet::live
