// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A model's versions in a repository, for the page of `freshet report`.

#include <cstddef>
#include <string>
#include <vector>

#include "bindings/cli/frame/output.h"
#include "bindings/cli/repo/metric.h"
#include "repo/repository.h"

namespace freshet::cli {

inline constexpr std::size_t kReportVersionsMax = 5000;
/// The bytes of graphs and owner maps in the page.
inline constexpr std::size_t kReportDetailBytesMax = std::size_t{2} << 20;

struct ReportData {
  std::vector<LineageRow> rows;  ///< The newest kReportVersionsMax versions, ascending.
  std::size_t left_out = 0;      ///< Older versions.
  /// The metric that the page begins with, as in each row's quality: the chosen one; else the quality; else, if no
  /// version has a quality, the first metric. Empty: none.
  MetricChoice measure;
  /// "metrics": [{"name", "lower"}], at most 8; "measure": a name of them, or "quality", or ""; "tensors": names;
  /// "graphs": [{"names": [tensor…], "bytes": [bytes…]}]; "owners": names of versions; "versions", ascending: [number,
  /// ancestor's number or name or 0, step, created_ms, quality, own_bytes, inherited_bytes, retired, reason of the
  /// publish or 0, graph or -1, owner map or 0, metrics…]. An owner map is [count, owner, count, owner, …], in the
  /// graph's order of tensors. The newest versions' maps come first until kReportDetailBytesMax is used up.
  Json json;
};

/// Errors are the repository's. A damaged record has its row and nothing else.
Result<ReportData> read_report_data(const Repository& repository, const std::string& model, const MetricChoice& metric);

}  // namespace freshet::cli
