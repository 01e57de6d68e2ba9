// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/report/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/format.h"

namespace freshet::live {

using nlohmann::json;

double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double rank = std::ceil(share * static_cast<double>(samples.size()));
  const auto index = static_cast<std::size_t>(std::clamp(rank, 1.0, static_cast<double>(samples.size()))) - 1;
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index), samples.end());
  return samples[index];
}

json to_json(const Summary& s) {
  return {{"steps", s.steps},
          {"versions_published", s.versions_published},
          {"versions_served", s.versions_served},
          {"versions_skipped", s.versions_skipped},
          {"requests", s.requests},
          {"failed_requests", s.failed_requests},
          {"torn_reads", s.torn_reads},
          {"checked_answers", s.checked_answers},
          {"model_bytes", s.model_bytes},
          {"bytes_published", s.bytes_published},
          {"update_latency_ms", {{"p50", s.update_latency_ms_p50}, {"p99", s.update_latency_ms_p99}}},
          {"notify_us", {{"p50", s.notify_us_p50}, {"p99", s.notify_us_p99}}},
          {"blocked_ms", {{"p50", s.blocked_ms_p50}, {"p99", s.blocked_ms_p99}}},
          {"blocked_ms_total", s.blocked_ms_total},
          {"loop_call_ms",
           {{"p50", s.loop_call_ms_p50},
            {"p99", s.loop_call_ms_p99},
            {"p999", s.loop_call_ms_p999},
            {"max", s.loop_call_ms_max}}},
          {"request_latency_ms", {{"p50", s.request_latency_ms_p50}, {"p99", s.request_latency_ms_p99}}},
          {"reader_stall_us", {{"p99", s.reader_stall_us_p99}, {"p999", s.reader_stall_us_p999}}},
          {"served_loss", s.served_loss},
          {"cumulative_inference_loss", s.cumulative_inference_loss},
          {"trained_loss", s.trained_loss},
          {"initial_loss", s.initial_loss},
          {"repo_versions", s.repo_versions},
          {"repo_bytes", s.repo_bytes},
          {"full_copy_bytes", s.full_copy_bytes},
          {"restarts", s.restarts},
          {"seconds", s.seconds}};
}

std::string people_bytes(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return format("{:.2f} GB", value / 1e9);
  if (value >= 1e6) return format("{:.1f} MB", value / 1e6);
  if (value >= 1e3) return format("{:.1f} kB", value / 1e3);
  return format("{} B", bytes);
}

std::string to_table(const Summary& s) {
  std::string out;
  const auto line = [&](const char* name, const std::string& value) { out += format("  {:<26}{}\n", name, value); };
  const auto pair = [](double p50, double p99, int digits, const char* unit) {
    if (std::isnan(p50)) return std::string("none measured");
    return format("p50 {:.{}f} {}, p99 {:.{}f} {}", p50, digits, unit, p99, digits, unit);
  };
  const double changed = static_cast<double>(s.bytes_published) /
                         std::max(1.0, static_cast<double>(s.versions_published) * static_cast<double>(s.model_bytes));
  line("time", format("{:.1f} s, {} steps", s.seconds, s.steps));
  line("model", people_bytes(s.model_bytes));
  line("versions", format("{} published, {} served, {} kept{}", s.versions_published, s.versions_served,
                          s.repo_versions, s.versions_skipped > 0 ? format(", {} skipped", s.versions_skipped) : ""));
  line("loss (nats per byte)", format("{:.3f} at first, {:.3f} trained, {:.3f} served (held-out text)", s.initial_loss,
                                      s.trained_loss, s.served_loss));
  line("requests", format("{}, {} failed; latency {}", s.requests, s.failed_requests,
                          pair(s.request_latency_ms_p50, s.request_latency_ms_p99, 2, "ms")));
  line("torn reads", format("{} in {} checked answers", s.torn_reads, s.checked_answers));
  line("published", format("{} ({:.0f} % of whole copies)", people_bytes(s.bytes_published), changed * 100));
  line("update latency", pair(s.update_latency_ms_p50, s.update_latency_ms_p99, 2, "ms"));
  line("notification", pair(s.notify_us_p50, s.notify_us_p99, 0, "us"));
  line("training blocked", pair(s.blocked_ms_p50, s.blocked_ms_p99, 2, "ms") + " a version");
  line("reader stall", format("p99 {:.2f} us, p99.9 {:.2f} us", s.reader_stall_us_p99, s.reader_stall_us_p999));
  line("repository",
       format("{} on disk; whole copies would take {}", people_bytes(s.repo_bytes), people_bytes(s.full_copy_bytes)));
  line("restarts", format("{}", s.restarts));
  return out;
}

}  // namespace freshet::live
