// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a run came to: the JSON line, and the table for people.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace freshet::live {

/// The value that a share of the samples does not exceed (nearest rank); NaN of none.
double percentile(std::vector<double> samples, double share);

struct Summary {
  std::uint64_t steps = 0;
  std::uint64_t versions_published = 0;
  std::uint64_t versions_served = 0;   ///< That answered a request.
  std::uint64_t versions_skipped = 0;  ///< The arena had no room for them.
  std::uint64_t requests = 0;
  std::uint64_t failed_requests = 0;  ///< Without an answer within the deadline.
  std::uint64_t torn_reads = 0;
  std::uint64_t checked_answers = 0;
  std::uint64_t model_bytes = 0;
  std::uint64_t bytes_published = 0;  ///< Of tensors that changed.
  double update_latency_ms_p50 = 0;
  double update_latency_ms_p99 = 0;
  double notify_us_p50 = 0;
  double notify_us_p99 = 0;
  double blocked_ms_p50 = 0;
  double blocked_ms_p99 = 0;
  double blocked_ms_total = 0;
  double loop_call_ms_p50 = 0;  ///< Of publish_if_due(), called after every step, mostly without a publish.
  double loop_call_ms_p99 = 0;
  double loop_call_ms_p999 = 0;
  double loop_call_ms_max = 0;
  double request_latency_ms_p50 = 0;
  double request_latency_ms_p99 = 0;
  double reader_stall_us_p99 = 0;
  double reader_stall_us_p999 = 0;
  double served_loss = 0;                ///< Held-out, as users saw it in the last seconds.
  double cumulative_inference_loss = 0;  ///< Summed over all requests that were answered (Viper, section 4.2).
  double trained_loss = 0;               ///< Of the training batches of the last seconds.
  double initial_loss = 0;               ///< Held-out, before the first step.
  std::uint64_t repo_versions = 0;
  std::uint64_t repo_bytes = 0;       ///< On disk.
  std::uint64_t full_copy_bytes = 0;  ///< What as many whole copies would take.
  std::uint64_t restarts = 0;
  double seconds = 0;
};

nlohmann::json to_json(const Summary& summary);
std::string to_table(const Summary& summary);

/// "8.0 MB", "1.2 GB".
std::string people_bytes(std::uint64_t bytes);

}  // namespace freshet::live
