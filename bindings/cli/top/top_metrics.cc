// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/top/top_metrics.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/cli/top/sample.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::cli {
namespace {

struct MetricFamily {
  const char* name;
  const char* kind;
  const char* help;
  const char* member;  ///< Of the publisher's answer.
};

constexpr std::array kOfPublisher = {
    MetricFamily{"freshet_newest_version", "gauge", "The number of the newest version.", "newest"},
    MetricFamily{"freshet_model_bytes", "gauge", "The size of one version.", "model_bytes"},
    MetricFamily{"freshet_updates_total", "counter", "Versions that were published.", "versions_published"},
    MetricFamily{"freshet_published_bytes_total", "counter", "Bytes of changed tensors.", "bytes_published"},
    MetricFamily{"freshet_updates_skipped_total", "counter", "Versions that there was no room for.",
                 "versions_skipped"},
    MetricFamily{"freshet_arena_bytes", "gauge", "The publisher's memory for versions.", "arena_bytes"},
    MetricFamily{"freshet_arena_free_bytes", "gauge", "The part of this memory that is free.", "arena_free_bytes"},
    MetricFamily{"freshet_activation_failed", "gauge", "1: the last activation or candidate failed.",
                 "activation_failure"},
};

constexpr std::array kOfSubscriber = {
    MetricFamily{"freshet_served_version", "gauge", "The number of the version that the subscriber serves; 0: none.",
                 "serving"},
    MetricFamily{"freshet_versions_behind", "gauge", "By how much the newest version is ahead of the served one.",
                 "versions_behind"},
    MetricFamily{"freshet_staleness_seconds", "gauge",
                 "For how long there has been a newer version than the served one; 0: there is none.", "staleness_s"},
    MetricFamily{"freshet_gaps_total", "counter", "Versions that the publisher dropped for the subscriber.", "gaps"},
    MetricFamily{"freshet_subscriber_silent", "gauge", "1: the subscriber sends no heartbeat.", "silent"},
    MetricFamily{"freshet_update_failures_total", "counter", "Versions that the subscriber could not stage.",
                 "failures"},
};

/// Numbers stand as they are, truths as 1 and 0, a text as whether there is one.
std::optional<std::uint64_t> whole_in(const Json& object, const char* member) {
  const auto found = object.find(member);
  if (found == object.end()) return std::nullopt;
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  if (found->is_boolean()) return found->get<bool>() ? 1 : 0;
  if (found->is_string()) return found->get_ref<const std::string&>().empty() ? 0 : 1;
  return std::nullopt;
}

std::optional<std::string> sample_in(const Json& object, const char* member) {
  if (const auto found = object.find(member); found != object.end() && found->is_number_float()) {
    return format("{}", found->get<double>());
  }
  const auto number = whole_in(object, member);
  return number ? std::optional(format("{}", *number)) : std::nullopt;
}

std::string label_value(std::string_view text) {
  std::string escaped;
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

/// A subscriber's labels and its members.
using LabelledSubscriber = std::pair<std::string, Json>;

/// Two subscribers of one process may have one label: the second gets "#2" behind it.
std::vector<LabelledSubscriber> labelled_subscribers(const Json& stat) {
  std::vector<LabelledSubscriber> labelled;
  std::map<std::string, int> seen;
  for (Json one : stat_list(stat, "subscribers")) {
    if (!one.is_object()) continue;
    std::string name = stat_text(one, "label");
    const std::string pid = format("{}", stat_number(one, "pid"));
    for (int nth = ++seen[name + "\n" + pid]; nth > 1; nth = ++seen[name + "\n" + pid]) name += format("#{}", nth);
    const std::uint64_t newest = stat_number(stat, "newest");
    one["versions_behind"] = newest - std::min(newest, stat_number(one, "serving"));
    if (const auto ms = one.find("staleness_ms"); ms != one.end() && ms->is_number()) {
      one["staleness_s"] = ms->get<double>() / 1e3;
    }
    labelled.emplace_back(format(R"({{model="{}",subscriber="{}",pid="{}"}})", label_value(stat_text(stat, "model")),
                                 label_value(name), pid),
                          std::move(one));
  }
  return labelled;
}

std::string heading(const MetricFamily& family) {
  return format("# HELP {0} {1}\n# TYPE {0} {2}\n", family.name, family.help, family.kind);
}

}  // namespace

std::string metrics_text(const std::vector<Json>& models) {
  std::string text;
  const auto add = [&text](const MetricFamily& family, const std::string& samples) {
    if (!samples.empty()) text += heading(family) + samples;
  };
  for (const MetricFamily& family : kOfPublisher) {
    std::string samples;
    for (const Json& model : models) {
      const auto sample = sample_in(model, family.member);
      const std::string label = label_value(stat_text(model, "model"));
      if (sample) samples += format("{}{{model=\"{}\"}} {}\n", family.name, label, *sample);
    }
    add(family, samples);
  }
  std::vector<LabelledSubscriber> subscribers;
  for (const Json& model : models) {
    for (LabelledSubscriber& one : labelled_subscribers(model)) subscribers.push_back(std::move(one));
  }
  for (const MetricFamily& family : kOfSubscriber) {
    std::string samples;
    for (const auto& [labels, members] : subscribers) {
      const auto sample = sample_in(members, family.member);
      if (sample) samples += format("{}{} {}\n", family.name, labels, *sample);
    }
    add(family, samples);
  }
  return text;
}

}  // namespace freshet::cli
