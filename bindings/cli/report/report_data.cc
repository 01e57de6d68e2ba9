// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/report/report_data.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "bindings/cli/repo/repo.h"
#include "bindings/runtime/scheduled_publisher.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/local/side_by_side.h"

namespace freshet::cli {
namespace {

constexpr std::size_t kReadAtOnce = 16;
constexpr std::size_t kReadInBatch = 64;
constexpr std::size_t kReportMetricsMax = 8;
constexpr std::size_t kMetricsOfVersionMax = 16;  ///< That are looked at.
constexpr std::size_t kReportTextMax = 200;
constexpr std::size_t kOwnersAskedMax = 1000;
constexpr std::size_t kRunBytes = 14;  ///< Of a run as JSON, about.

/// What the page needs of a record. Of a retired or damaged version: nothing.
struct RecordPart {
  VersionId id;
  std::uint64_t step = 0;
  std::int64_t created_ms = 0;
  Metrics metrics;
  std::string why;
  std::shared_ptr<const Architecture> architecture;  ///< With `runs` alone.
  std::vector<std::pair<std::size_t, VersionId>> runs;
};

RecordPart part_of(const VersionRecord& record, const MetricChoice& metric, std::size_t runs_max) {
  const Manifest& manifest = record.manifest;
  RecordPart part{
      .id = manifest.id, .step = manifest.step, .created_ms = manifest.created_unix_ns / kNanosecondsPerMillisecond};
  for (const auto& [name, value] : manifest.metrics) {
    if (!std::isfinite(value)) continue;
    if (part.metrics.size() < kMetricsOfVersionMax || name == metric.name) part.metrics.emplace_back(name, value);
  }
  const auto why = std::ranges::find(manifest.tags, kScheduleTag, &Tags::value_type::first);
  if (why != manifest.tags.end()) part.why = shown(why->second, kReportTextMax);
  if (!record.has_weights) return part;
  for (std::size_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const VersionId& writer = manifest.owners[tensor].writer;
    if (part.runs.empty() || part.runs.back().second != writer) part.runs.emplace_back(0, writer);
    ++part.runs.back().first;
    if (part.runs.size() > runs_max) {
      part.runs.clear();
      return part;
    }
  }
  if (!part.runs.empty()) part.architecture = manifest.architecture;
  return part;
}

/// Gives each value a place in a table, from 0 on.
template <typename Key, typename Compare = std::less<Key>>
class Places {
 public:
  std::size_t of(const Key& key) {
    const auto [place, is_new] = places_.try_emplace(key, keys_.size());
    if (is_new) keys_.push_back(key);
    return place->second;
  }
  bool has(const Key& key) const { return places_.count(key) != 0; }
  const std::vector<Key>& keys() const { return keys_; }

 private:
  std::map<Key, std::size_t, Compare> places_;
  std::vector<Key> keys_;
};

/// The graphs and owner maps of a page, as long as there is room. One thread at a time.
class Details {
 public:
  /// True: nothing more fits.
  bool full() const { return left_ == 0; }
  std::size_t runs_max() const { return left_ / kRunBytes; }

  struct Map {
    Json graph = -1;
    Json runs = 0;
  };
  /// REQUIRES: the part has runs.
  Map add(const RecordPart& part) {
    const Architecture& architecture = *part.architecture;
    std::size_t needed = part.runs.size() * kRunBytes;
    const bool is_new = !graphs_of_.has(architecture.digest());
    if (is_new) {
      for (const TensorSpec& tensor : architecture.tensors()) {
        needed += 16 + (names_.has(name_of(tensor)) ? 0 : name_of(tensor).size() + 3);
      }
    }
    if (needed > left_) {
      left_ = 0;
      return {};
    }
    left_ -= needed;
    if (is_new) add_graph(architecture);
    Map map{.graph = graphs_of_.of(architecture.digest()), .runs = Json::array()};
    for (const auto& [count, writer] : part.runs) {
      map.runs.push_back(count);
      map.runs.push_back(owners_.of(writer));
    }
    return map;
  }

  /// Adds "tensors", "graphs" and "owners". `known` has the names of versions by their identities.
  void add_to(Json& json, const Repository& repository, const std::map<VersionId, VersionName>& known) const {
    json["tensors"] = names_.keys();
    json["graphs"] = graphs_;
    Json& names = json["owners"] = Json::array();
    std::size_t asked = 0;
    for (const VersionId& id : owners_.keys()) {
      const auto found = known.find(id);
      VersionName name = found == known.end() ? VersionName() : found->second;
      if (found == known.end() && asked++ < kOwnersAskedMax) {
        const Result<std::optional<VersionName>> stored = repository.find(id);
        if (stored && *stored) name = **stored;
      }
      names.push_back(name.number == 0 ? std::string() : printable(to_string(name)));
    }
  }

 private:
  static std::string name_of(const TensorSpec& tensor) { return shown(tensor.name, kReportTextMax); }

  void add_graph(const Architecture& architecture) {
    Json names = Json::array();
    Json sizes = Json::array();
    for (const TensorSpec& tensor : architecture.tensors()) {
      names.push_back(names_.of(name_of(tensor)));
      sizes.push_back(tensor.bytes());
    }
    graphs_.push_back({{"names", std::move(names)}, {"bytes", std::move(sizes)}});
    graphs_of_.of(architecture.digest());
  }

  std::size_t left_ = kReportDetailBytesMax;
  Places<std::string> names_;
  Places<Digest> graphs_of_;
  Json graphs_ = Json::array();
  Places<VersionId> owners_;
};

/// The chosen metric, then "loss", then those that most versions have.
std::vector<MetricChoice> page_metrics(const std::vector<RecordPart>& parts, const MetricChoice& chosen) {
  std::map<std::string, std::size_t> counts;
  for (const RecordPart& part : parts) {
    for (const auto& metric : part.metrics) ++counts[metric.first];
  }
  std::vector<std::pair<std::string, std::size_t>> names(counts.begin(), counts.end());
  std::ranges::stable_sort(names, [&](const auto& a, const auto& b) {
    const auto rank = [&](const auto& name) { return name.first == chosen.name ? 0 : name.first == "loss" ? 1 : 2; };
    return rank(a) != rank(b) ? rank(a) < rank(b) : a.second > b.second;
  });
  std::vector<MetricChoice> metrics;
  for (const auto& name : names) {
    if (metrics.size() == kReportMetricsMax) break;
    metrics.push_back(name.first == chosen.name ? chosen : MetricChoice{.name = name.first});
  }
  return metrics;
}

Json short_number(double value) {
  // Six digits are what the page shows.
  return Json::parse(format("{:.7g}", value), nullptr, false);
}
Json short_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? short_number(*value) : Json();
}

Json ancestor_json(const VersionName& ancestor, const std::string& model) {
  if (ancestor.number == 0) return 0;
  return ancestor.model == model ? Json(ancestor.number) : Json(printable(to_string(ancestor)));
}

}  // namespace

Result<ReportData> read_report_data(const Repository& repository, const std::string& model,
                                    const MetricChoice& metric) {
  ReportData data;
  FRESHET_ASSIGN(data.rows, repository.versions(model));
  if (data.rows.size() > kReportVersionsMax) {
    data.left_out = data.rows.size() - kReportVersionsMax;
    data.rows.erase(data.rows.begin(), data.rows.begin() + static_cast<std::ptrdiff_t>(data.left_out));
  }
  Details details;
  std::vector<RecordPart> parts(data.rows.size());
  std::vector<Details::Map> maps(data.rows.size());
  // The newest first: if there is no room for all owner maps, the page has theirs.
  for (std::size_t end = data.rows.size(); end > 0;) {
    const std::size_t begin = end - std::min(end, kReadInBatch);
    const std::size_t runs_max = details.runs_max();
    FRESHET_TRY(run_side_by_side(end - begin, kReadAtOnce, [&](std::size_t i) -> Status {
      const LineageRow& row = data.rows[begin + i];
      if (row.retired) return {};
      const Result<VersionRecord> record = repository.get(row.version);
      if (record) parts[begin + i] = part_of(*record, metric, runs_max);
      return {};
    }));
    for (std::size_t i = end; i-- > begin;) {
      if (!parts[i].runs.empty() && !details.full()) maps[i] = details.add(parts[i]);
      parts[i].runs = {};
      parts[i].architecture.reset();
    }
    end = begin;
  }

  const std::vector<MetricChoice> metrics = page_metrics(parts, metric);
  std::set<std::string> names;
  for (const MetricChoice& one : metrics) names.insert(one.name);
  FRESHET_TRY(check_known(metric, names));
  const bool has_quality =
      std::ranges::any_of(data.rows, [](const LineageRow& row) { return row.quality.has_value(); });
  data.measure = metric.chosen() ? metric : !has_quality && !metrics.empty() ? metrics.front() : MetricChoice();
  data.json = {{"model", model},
               {"measure", data.measure.chosen() ? shown(data.measure.name, kReportTextMax) : "quality"},
               {"left_out", data.left_out},
               {"metrics", Json::array()},
               {"versions", Json::array()}};
  for (const MetricChoice& one : metrics) {
    data.json["metrics"].push_back({{"name", shown(one.name, kReportTextMax)}, {"lower", one.lower_is_better()}});
  }
  std::map<VersionId, VersionName> known;
  for (std::size_t i = 0; i < data.rows.size(); ++i) {
    LineageRow& row = data.rows[i];
    const RecordPart& part = parts[i];
    if (part.created_ms != 0) known.emplace(part.id, row.version);
    Json line = {row.version.number,
                 ancestor_json(row.ancestor, model),
                 part.step,
                 part.created_ms,
                 short_number(row.quality),
                 row.own_bytes,
                 row.inherited_bytes,
                 row.retired ? 1 : 0,
                 part.why.empty() ? Json(0) : Json(part.why),
                 std::move(maps[i].graph),
                 std::move(maps[i].runs)};
    for (const MetricChoice& one : metrics) line.push_back(short_number(one.of(part.metrics)));
    data.json["versions"].push_back(std::move(line));
    if (data.measure.chosen()) row.quality = data.measure.of(part.metrics);
  }
  details.add_to(data.json, repository, known);
  return data;
}

}  // namespace freshet::cli
