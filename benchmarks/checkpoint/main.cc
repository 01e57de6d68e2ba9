// SPDX-License-Identifier: Apache-2.0
/// checkpoint: for how long a rank stands still for a checkpoint, until a version is at each level, and until it is
/// back; against memcpy, plain files, plain streams, and the peers that the command line names.

#include <filesystem>
#include <functional>

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

Status measure(const CheckpointOptions& options, Report& report) {
  FRESHET_TRY(measure_alone(options, report));
  FRESHET_TRY(measure_peers(options, report));
  FRESHET_TRY(measure_layers(options, report));
  FRESHET_TRY(measure_groups(options, report));
  if (const Status link = measure_link(options, report); !link) {
    if (link.error().code() != Code::unavailable) return link;
    for (const char* ratio : {"group_vs_link", "lost_host_vs_link"}) report.skip(ratio, link.error().message());
  }
  FRESHET_TRY(measure_ranks(options, report));
  report.skip("a_replaced_rank", "not measured: ranks do not come back into a running job");
  FRESHET_TRY(measure_flush(options, report));
  FRESHET_TRY(measure_figures(options, report));
  return measure_waste(options, report);
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
        app.add_option("--folder", options.folder, "Where shards and files are made");
        app.add_option("--veloc", options.veloc,
                       "Where a VELOC is installed (include/veloc.h, lib/libveloc-client.so)");
        app.add_option("--redset", options.redset, "Where redset, kvtree and rankstr are installed");
        app.add_option("--python", options.python, "A Python that has torch (default: that of build/venv)");
      }};
  return run_benchmark(count, words, line, [&](Report& report) { return measure(options, report); });
}
