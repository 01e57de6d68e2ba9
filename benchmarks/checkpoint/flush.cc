// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/flush.h"

#include "benchmarks/checkpoint/disk.h"
#include "benchmarks/checkpoint/job.h"
#include "benchmarks/checkpoint/watch.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kLimit = 20'000'000;  ///< Bytes per second.

}  // namespace

Status measure_flush(const CheckpointOptions& options, Report& report) {
  const std::uint64_t bytes = options.quick ? 40'000'000 : 100'000'000;
  const std::string name = options.quick ? "flush_40MB_at_20MB_s" : "flush_100MB_at_20MB_s";
  FRESHET_ASSIGN(const auto folder, MadeFolder::in(options.folder));
  Job job({.ranks = 1, .folder = folder.path(), .bytes = bytes, .external = true, .limit_bytes_per_second = kLimit});
  Samples alone;
  Samples beside;
  const Job::Life life = [&](std::uint32_t, Checkpointer& checkpointer, State& state) -> Status {
    const auto writable = state.writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer.restore(writable));
    State trained(4'000'000, 1);  // The version that is under way has its own memory, and so has the step.
    const auto step_ms = [&](std::uint64_t step) {
      const Watch watch;
      trained.compute_layer(0, step, 20);
      return watch.ms();
    };
    for (std::uint64_t round = 1; round <= 3; ++round) {
      for (std::uint64_t i = 0; i < 40; ++i) alone.add(step_ms(i));
      state.write(round);
      const auto views = state.views();
      FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(round, views));
      FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::local, kPatience));
      for (std::uint64_t i = 0;; ++i) {
        const double ms = step_ms(i);
        FRESHET_ASSIGN(const bool there, checkpointer.poll(captured.version, CheckpointLevel::external));
        if (there) break;
        beside.add(ms);
      }
    }
    return {};
  };
  FRESHET_TRY(job.run(life));
  report.add_row(name, "step_alone", "ms", alone);
  report.add_row(name, "step_beside_flush", "ms", beside);
  report.set_ratio("steps_beside_flush", alone.median() / beside.median());
  return {};
}

}  // namespace freshet::benchmarks
