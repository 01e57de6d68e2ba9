// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/report/tally.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/format.h"

namespace freshet::live {
namespace {

using nlohmann::json;

constexpr std::size_t kSamplesMax = 20'000'000;  ///< Of one kind; later ones of a very long run are left out.
constexpr std::size_t kErrorsMax = 20;
constexpr double kClosingSeconds = 5;

void append(std::vector<double>& samples, const json& values) {
  for (const json& value : values) {
    if (samples.size() < kSamplesMax) samples.push_back(value.get<double>());
  }
}

double number_or_nan(const json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

void append_text(std::vector<std::string>& texts, const json& value) {
  if (texts.size() < kErrorsMax) texts.push_back(value.get<std::string>());
}

}  // namespace

Status Tally::on_line(const std::string& line, std::uint32_t life, double seconds) {
  const json event = json::parse(line, nullptr, false);
  if (!event.is_object()) return fail(Code::corrupt, "a report that is not a JSON object");
  try {
    const auto kind = event.at("event").get<std::string>();
    if (kind == "step") {
      steps = std::max(steps, event.at("step").get<std::uint64_t>());
      if (event.at("loss").is_number()) trained_loss.push_back({seconds, event["loss"].get<double>()});
      append(loop_calls_ms_, event.at("loop_calls_ms"));
    } else if (kind == "version") {
      skipped_[life] = event.at("skipped").get<std::uint64_t>();
      on_version(event, seconds);
    } else if (kind == "trainer") {
      model_bytes = event.at("model_bytes").get<std::uint64_t>();
      if (event.contains("initial_loss")) initial_loss_ = number_or_nan(event["initial_loss"]);
      resumed_from = event.at("resumed").get<std::uint64_t>();
      finished_at.reset();
    } else if (kind == "finished") {
      finished_at = event.at("version").get<std::uint64_t>();
      steps = std::max(steps, event.at("step").get<std::uint64_t>());
    } else if (kind == "update") {
      on_update(event, seconds);
    } else if (kind == "server") {
      append(stalls_us_, event.at("stalls_us"));
    } else if (kind == "ready") {
      load_ready = true;
    } else if (kind == "load") {
      on_load(event, life, seconds);
    } else if (kind == "stored") {
      on_stored(event);
    } else if (kind == "repository") {
      repo_versions_ = event.at("versions").get<std::uint64_t>();
      repo_bytes_ = event.at("disk_bytes").get<std::uint64_t>();
    } else if (kind == "torn") {
      append_text(torn_reasons, event.at("reason"));
    } else if (kind == "error") {
      append_text(errors, event.at("message"));
    }
    return {};
  } catch (const json::exception& error) {
    return fail(Code::corrupt, format("a report that cannot be read: {}", error.what()));
  }
}

void Tally::on_version(const json& event, double seconds) {
  const auto bytes = event.at("bytes").get<std::uint64_t>();
  const auto version = event.at("version").get<std::uint64_t>();
  blocked_ms_.push_back(event.at("blocked_ms").get<double>());
  bytes_published += bytes;
  published.push_back({.version = version, .seconds = seconds, .bytes = bytes});
  saw_version(version);
}

/// A server that joins takes what is there, however old: how long that took to come says nothing about updates.
void Tally::on_update(const json& event, double seconds) {
  saw_version(event.at("version").get<std::uint64_t>());
  if (event.at("joined").get<bool>()) return;
  update_latency_ms.push_back({seconds, event.at("latency_ms").get<double>()});
  notify_us_.push_back(event.at("notify_us").get<double>());
}

void Tally::on_load(const json& event, std::uint32_t life, double seconds) {
  loads_[life] = {.requests = event.at("requests").get<std::uint64_t>(),
                  .failed = event.at("failed").get<std::uint64_t>(),
                  .torn = event.at("torn").get<std::uint64_t>(),
                  .checked = event.at("checked").get<std::uint64_t>()};
  const auto count = event.at("loss_count").get<std::uint64_t>();
  if (count > 0) served_loss.push_back({seconds, number_or_nan(event.at("loss_sum")), count});
  for (const json& version : event.at("versions")) {
    saw_version(version.get<std::uint64_t>());
    versions_served_.insert(version.get<std::uint64_t>());
    newest_served = std::max(newest_served, version.get<std::uint64_t>());
  }
  append(request_latencies_ms_, event.at("latencies_ms"));
}

void Tally::on_stored(const json& event) {
  const bool stored = event.at("stored").get<bool>();
  repository_error = stored ? "" : event.at("error").get<std::string>();
  if (!stored) return;
  saw_version(event.at("version").get<std::uint64_t>());
  newest_stored = std::max(newest_stored, event.at("version").get<std::uint64_t>());
}

/// A trainer that was killed may not have told of its last version; whoever got it does.
void Tally::saw_version(std::uint64_t version) {
  if (version == 0) return;
  versions_.insert(version);
  newest_version = std::max(newest_version, version);
}

std::uint64_t Tally::requests() const {
  std::uint64_t sum = 0;
  for (const auto& [life, counts] : loads_) sum += counts.requests;
  return sum;
}

std::uint64_t Tally::failed_requests() const {
  std::uint64_t sum = 0;
  for (const auto& [life, counts] : loads_) sum += counts.failed;
  return sum;
}

std::uint64_t Tally::torn_reads() const {
  std::uint64_t sum = 0;
  for (const auto& [life, counts] : loads_) sum += counts.torn;
  return sum;
}

double Tally::recent_trained_loss(double seconds) const {
  double sum = 0;
  double count = 0;
  for (auto it = trained_loss.rbegin(); it != trained_loss.rend(); ++it, ++count) {
    if (it->seconds + seconds < trained_loss.back().seconds) break;
    sum += it->value;
  }
  return sum / count;
}

double Tally::recent_served_loss(double seconds) const {
  double sum = 0;
  double count = 0;
  for (auto it = served_loss.rbegin(); it != served_loss.rend(); ++it) {
    if (it->seconds + seconds < served_loss.back().seconds) break;
    sum += it->loss_sum;
    count += static_cast<double>(it->count);
  }
  return sum / count;
}

double Tally::last_update_latency_ms() const {
  return update_latency_ms.empty() ? std::numeric_limits<double>::quiet_NaN() : update_latency_ms.back().value;
}

Summary Tally::summary() const {
  std::vector<double> latencies;
  for (const Point& point : update_latency_ms) latencies.push_back(point.value);
  Summary out{.steps = steps,
              .versions_published = versions_published(),
              .versions_served = versions_served_.size(),
              .requests = requests(),
              .failed_requests = failed_requests(),
              .torn_reads = torn_reads(),
              .model_bytes = model_bytes,
              .bytes_published = bytes_published,
              .update_latency_ms_p50 = percentile(latencies, 0.5),
              .update_latency_ms_p99 = percentile(latencies, 0.99),
              .notify_us_p50 = percentile(notify_us_, 0.5),
              .notify_us_p99 = percentile(notify_us_, 0.99),
              .blocked_ms_p50 = percentile(blocked_ms_, 0.5),
              .blocked_ms_p99 = percentile(blocked_ms_, 0.99),
              .loop_call_ms_p50 = percentile(loop_calls_ms_, 0.5),
              .loop_call_ms_p99 = percentile(loop_calls_ms_, 0.99),
              .loop_call_ms_p999 = percentile(loop_calls_ms_, 0.999),
              .loop_call_ms_max = percentile(loop_calls_ms_, 1),
              .request_latency_ms_p50 = percentile(request_latencies_ms_, 0.5),
              .request_latency_ms_p99 = percentile(request_latencies_ms_, 0.99),
              .reader_stall_us_p99 = percentile(stalls_us_, 0.99),
              .reader_stall_us_p999 = percentile(stalls_us_, 0.999),
              .served_loss = recent_served_loss(kClosingSeconds),
              .trained_loss = recent_trained_loss(kClosingSeconds),
              .initial_loss = initial_loss_,
              .repo_versions = repo_versions_,
              .repo_bytes = repo_bytes_,
              .full_copy_bytes = repo_versions_ * model_bytes};
  for (const double blocked : blocked_ms_) out.blocked_ms_total += blocked;
  for (const auto& answered : served_loss) {
    if (answered.count > 0) out.cumulative_inference_loss += answered.loss_sum;
  }
  for (const auto& [life, counts] : loads_) out.checked_answers += counts.checked;
  for (const auto& [life, count] : skipped_) out.versions_skipped += count;
  return out;
}

}  // namespace freshet::live
