// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a benchmark found: rows, ratios, and what could not be measured and why. Printed as a table for people and as
/// one JSON object, the last line, for programs.

#include <map>
#include <string>
#include <vector>

#include "benchmarks/common/statistics.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

class Report {
 public:
  explicit Report(std::string benchmark);

  void add_row(const std::string& case_name, const std::string& subject, const std::string& unit,
               const Samples& samples);
  /// Left out of the JSON when it is not finite (a peer is missing).
  void set_ratio(const std::string& name, double value) { ratios_[name] = value; }
  void skip(const std::string& subject, const std::string& reason) { skipped_[subject] = reason; }
  /// Left out, and why, when `measured` is an error.
  void skip_failed(const std::string& subject, const Status& measured) {
    if (!measured) skip(subject, measured.error().message());
  }
  bool has_ratio(const std::string& name) const { return ratios_.contains(name); }

  /// NaN when there is no such row.
  double median(const std::string& case_name, const std::string& subject) const;

  std::string table() const;
  std::string json() const;

 private:
  struct Row {
    std::string case_name;
    std::string subject;
    std::string unit;
    double median = 0;
    double min = 0;
    double max = 0;
    std::size_t n = 0;
  };

  const std::string benchmark_;
  const double load_before_;
  std::vector<Row> rows_;
  std::map<std::string, double> ratios_;
  std::map<std::string, std::string> skipped_;
};

}  // namespace freshet::benchmarks
