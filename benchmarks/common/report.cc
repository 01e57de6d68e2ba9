// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/common/report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/format.h"
#include "core/vector/level.h"

namespace freshet::benchmarks {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

/// Runnable processes beside ours when the report was begun: what else disturbed the numbers.
double load_average() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? load : 0;
}

nlohmann::json machine(double load) {
  utsname name{};
  ::uname(&name);
  const double pages = static_cast<double>(::sysconf(_SC_PHYS_PAGES));
  return {{"processor", processor_name()},
          {"processors", std::thread::hardware_concurrency()},
          {"memory_bytes", pages * static_cast<double>(::sysconf(_SC_PAGESIZE))},
          {"load_average_before", load},
          {"kernel", name.release},
          {"architecture", name.machine},
          {"vector", name_of(vector_level())},
          {"compiler", __VERSION__}};
}

}  // namespace

Report::Report(std::string benchmark) : benchmark_(std::move(benchmark)), load_before_(load_average()) {}

void Report::add_row(const std::string& case_name, const std::string& subject, const std::string& unit,
                     const Samples& samples) {
  if (samples.count() == 0) return;
  rows_.push_back({.case_name = case_name,
                   .subject = subject,
                   .unit = unit,
                   .median = samples.median(),
                   .min = samples.min(),
                   .max = samples.max(),
                   .n = samples.count()});
}

double Report::median(const std::string& case_name, const std::string& subject) const {
  for (const Row& row : rows_) {
    if (row.case_name == case_name && row.subject == subject) return row.median;
  }
  return std::nan("");
}

std::string Report::table() const {
  const nlohmann::json here = machine(load_before_);
  std::string text =
      format("Machine: {}, {} processors, {:.0f} GB of memory, Linux {}, load average before the run {:.1f}.\n\n",
             here["processor"].get<std::string>(), here["processors"].get<int>(),
             here["memory_bytes"].get<double>() / 1e9, here["kernel"].get<std::string>(), load_before_);
  text += "| case | subject | median | min | max | n | unit |\n| --- | --- | ---: | ---: | ---: | ---: | --- |\n";
  for (const Row& row : rows_) {
    text += format("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {} | {} |\n", row.case_name, row.subject, row.median,
                   row.min, row.max, row.n, row.unit);
  }
  text += "\n| ratio | value |\n| --- | ---: |\n";
  for (const auto& [name, value] : ratios_) {
    if (std::isfinite(value)) text += format("| {} | {:.2f} |\n", name, value);
  }
  for (const auto& [subject, reason] : skipped_) text += format("\nskipped {}: {}\n", subject, reason);
  return text;
}

std::string Report::json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : rows_) {
    rows.push_back({{"case", row.case_name},
                    {"subject", row.subject},
                    {"unit", row.unit},
                    {"median", row.median},
                    {"min", row.min},
                    {"max", row.max},
                    {"n", row.n}});
  }
  nlohmann::json ratios = nlohmann::json::object();
  for (const auto& [name, value] : ratios_) {
    if (std::isfinite(value)) ratios[name] = value;
  }
  nlohmann::json result = {
      {"benchmark", benchmark_}, {"machine", machine(load_before_)}, {"rows", rows}, {"ratios", ratios}};
  if (!skipped_.empty()) result["skipped"] = skipped_;
  return result.dump();
}

}  // namespace freshet::benchmarks
