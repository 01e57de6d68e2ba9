// SPDX-License-Identifier: Apache-2.0
/// checkpoint: for how long a rank stands still for a checkpoint, until a version is at each level, and until it is
/// back; against memcpy, plain files, plain streams, and the peers that the command line names.

#include <filesystem>

#include "benchmarks/checkpoint/alone.h"
#include "benchmarks/checkpoint/figures.h"
#include "benchmarks/checkpoint/flush.h"
#include "benchmarks/checkpoint/groups.h"
#include "benchmarks/checkpoint/layers.h"
#include "benchmarks/checkpoint/link.h"
#include "benchmarks/checkpoint/options.h"
#include "benchmarks/checkpoint/peers.h"
#include "benchmarks/checkpoint/ranks.h"
#include "benchmarks/checkpoint/waste.h"
#include "benchmarks/common/child.h"
#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"

namespace freshet::benchmarks {
namespace {

/// Beside build/bin, where scripts/python.sh makes it.
std::string venv_python() {
  const auto python = std::filesystem::path(own_path()).parent_path() / "../../venv/bin/python";
  return std::filesystem::exists(python) ? python.lexically_normal().string() : "";
}

/// One rank beside the peers of one rank, all of which write to memory.
Status measure_peers(const CheckpointOptions& options, Report& report) {
  const std::string name = options.quick ? "in_memory_9_tensors_60MB" : "in_memory_9_tensors_600MB";
  const std::uint64_t bytes = options.quick ? 60'000'000 : 600'000'000;
  constexpr std::size_t kTensors = 9;
  FRESHET_TRY(measure_blocked_in_memory(options, name, bytes, kTensors, report));
  const auto against = [&](const Status& peer, const char* ratio, const char* subject) {
    if (!peer) report.skip(ratio, peer.error().message());
    if (peer) report.set_ratio(ratio, report.median(name, subject) / report.median(name, "freshet_blocked"));
  };
  against(run_veloc(options, name, bytes, kTensors, report), "blocked_vs_veloc", "veloc_blocked");
  const Status torch = run_torch(options, name, bytes, kTensors, 1, report);
  against(torch, "blocked_vs_dcp_async", "dcp_async_blocked");
  against(torch, "blocked_vs_torch_save", "torch_save");
  return {};
}

/// Where there are no network namespaces, the reason is told instead.
Status measure_link_or_skip(const CheckpointOptions& options, Report& report) {
  const Status link = measure_link(options, report);
  if (link || link.error().code() != Code::unavailable) return link;
  for (const char* ratio : {"group_vs_link", "lost_host_vs_link"}) report.skip(ratio, link.error().message());
  return {};
}

struct Part {
  std::string_view name;
  Status (*measure)(const CheckpointOptions& options, Report& report);
};
constexpr Part kParts[] = {{"alone", measure_alone},   {"peers", measure_peers},       {"layers", measure_layers},
                           {"groups", measure_groups}, {"link", measure_link_or_skip}, {"ranks", measure_ranks},
                           {"flush", measure_flush},   {"figures", measure_figures},   {"waste", measure_waste}};

Status measure(const CheckpointOptions& options, Report& report) {
  for (const Part& part : kParts) {
    if (options.only.empty() || options.only == part.name) FRESHET_TRY(part.measure(options, report));
  }
  report.skip("a_replaced_rank", "not measured: ranks do not come back into a running job");
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  CheckpointOptions options;
  options.python = venv_python();
  const CommandLine line{
      .name = "checkpoint",
      .about = "For how long a rank stands still for a checkpoint, until each level has it, and until it is back",
      .options = options,
      .add_options = [&](CLI::App& app) {
        std::vector<std::string> parts;
        for (const Part& part : kParts) parts.emplace_back(part.name);
        app.add_option("--only", options.only, "One part of the measurement")->check(CLI::IsMember(parts));
        app.add_option("--folder", options.folder, "Where shards and files are made");
        app.add_option("--veloc", options.veloc,
                       "Where a VELOC is installed (include/veloc.h, lib/libveloc-client.so)");
        app.add_option("--redset", options.redset, "Where redset, kvtree and rankstr are installed");
        app.add_option("--python", options.python, "A Python that has torch (default: that of build/venv)");
      }};
  return run_benchmark(count, words, line, [&](Report& report) { return measure(options, report); });
}
