// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/layers.h"

#include "benchmarks/checkpoint/disk.h"
#include "benchmarks/checkpoint/state.h"
#include "benchmarks/checkpoint/watch.h"
#include "repo/levels/checkpointer.h"

namespace freshet::benchmarks {
namespace {

constexpr int kLayerCopies = 4;

void compute(State& state, std::uint64_t step) {
  for (std::size_t layer = state.layers(); layer-- > 0;) state.compute_layer(layer, step, kLayerCopies);
}

}  // namespace

Status measure_layers(const CheckpointOptions& options, Report& report) {
  const std::string name = options.quick ? "layers_60MB" : "layers_600MB";
  FRESHET_ASSIGN(const auto folder, MadeFolder::in(options.memory_folder()));
  State state(options.quick ? 60'000'000 : 600'000'000, 9);
  Checkpointer::Options opened{.model = "model", .local = {folder.path()}};
  FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(opened), state.laid()));
  const auto writable = state.writable();
  FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer->restore(writable));
  Samples alone;
  Samples whole;
  Samples layers;
  Samples layers_loop;
  std::uint64_t step = 0;
  for (int i = 0; i <= options.repetitions(); ++i) {  // The first one warms up.
    const Watch alone_watch;
    compute(state, ++step);
    const double alone_ms = alone_watch.ms();

    compute(state, ++step);
    const auto views = state.views();
    FRESHET_ASSIGN(const auto at_once, checkpointer->checkpoint(step, views));
    FRESHET_TRY(checkpointer->wait(at_once.version, CheckpointLevel::local, kPatience));

    const Watch layers_watch;
    FRESHET_TRY(checkpointer->begin(++step));
    for (std::size_t layer = state.layers(); layer-- > 0;) {
      state.compute_layer(layer, step, kLayerCopies);
      FRESHET_TRY(checkpointer->capture_beside(layer, state.layer(layer)));
    }
    FRESHET_ASSIGN(const auto by_layer, checkpointer->end());
    const double layers_ms = layers_watch.ms();
    FRESHET_TRY(checkpointer->wait(by_layer.version, CheckpointLevel::local, kPatience));
    if (i == 0) continue;
    alone.add(alone_ms);
    whole.add(ms_of(at_once.blocked));
    layers.add(ms_of(by_layer.blocked));
    layers_loop.add(layers_ms);
  }
  FRESHET_TRY(checkpointer->finish(kPatience));
  report.add_row(name, "step_alone", "ms", alone);
  report.add_row(name, "whole_blocked", "ms", whole);
  report.add_row(name, "layers_blocked", "ms", layers);
  report.add_row(name, "layers_step", "ms", layers_loop);
  report.set_ratio("layers_vs_whole", whole.median() / layers.median());
  return {};
}

}  // namespace freshet::benchmarks
