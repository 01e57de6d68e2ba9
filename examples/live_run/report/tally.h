// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Adds up what the roles report: the numbers of the summary and the series of the plots. Knows no processes and no
/// clock.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "examples/live_run/report/summary.h"

namespace freshet::live {

/// One thread at a time.
class Tally {
 public:
  /// `life` numbers the process among all that were started, since each counts from zero. Seconds are the run's.
  /// corrupt when the line is not what a role reports; then nothing is added that would be wrong.
  Status on_line(const std::string& line, std::uint32_t life, double seconds);

  struct Point {
    double seconds = 0;
    double value = 0;
  };
  struct Served {
    double seconds = 0;
    double loss_sum = 0;
    std::uint64_t count = 0;
  };
  struct Published {
    std::uint64_t version = 0;
    double seconds = 0;
    std::uint64_t bytes = 0;
  };

  // What the progress line and the plots show.
  std::uint64_t steps = 0;
  std::uint64_t model_bytes = 0;
  std::uint64_t newest_version = 0;  ///< Known from anybody.
  std::uint64_t newest_served = 0;
  std::uint64_t newest_stored = 0;
  std::uint64_t bytes_published = 0;
  bool load_ready = false;
  std::uint64_t resumed_from = 0;            ///< The version that the trainer of now went on from; 0: none.
  std::optional<std::uint64_t> finished_at;  ///< The trainer's last version, once it trains no more.
  std::string repository_error;              ///< Of the last put, while it fails.
  std::vector<std::string> errors;           ///< Told by roles, at most a few.
  std::vector<std::string> torn_reasons;
  std::vector<Point> trained_loss;
  std::vector<Served> served_loss;
  std::vector<Point> update_latency_ms;
  std::vector<Published> published;

  std::uint64_t versions_published() const { return versions_.size(); }
  std::uint64_t requests() const;
  std::uint64_t failed_requests() const;
  std::uint64_t torn_reads() const;
  /// The mean over what came in the last `seconds` of the series; NaN of nothing.
  double recent_trained_loss(double seconds) const;
  double recent_served_loss(double seconds) const;
  double last_update_latency_ms() const;

  Summary summary() const;

 private:
  void on_version(const nlohmann::json& event, double seconds);
  void on_update(const nlohmann::json& event, double seconds);
  void on_load(const nlohmann::json& event, std::uint32_t life, double seconds);
  void on_stored(const nlohmann::json& event);
  void saw_version(std::uint64_t version);

  struct LoadCounts {
    std::uint64_t requests = 0;
    std::uint64_t failed = 0;
    std::uint64_t torn = 0;
    std::uint64_t checked = 0;
  };
  std::map<std::uint32_t, LoadCounts> loads_;
  std::map<std::uint32_t, std::uint64_t> skipped_;
  std::set<std::uint64_t> versions_;
  std::set<std::uint64_t> versions_served_;
  std::vector<double> notify_us_;
  std::vector<double> blocked_ms_;
  std::vector<double> loop_calls_ms_;
  std::vector<double> stalls_us_;
  std::vector<double> request_latencies_ms_;
  double initial_loss_ = 0;
  std::uint64_t repo_versions_ = 0;
  std::uint64_t repo_bytes_ = 0;
};

}  // namespace freshet::live
