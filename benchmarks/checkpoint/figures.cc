// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/figures.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <map>
#include <thread>

#include "benchmarks/checkpoint/disk.h"
#include "benchmarks/checkpoint/job.h"
#include "benchmarks/checkpoint/state.h"
#include "benchmarks/checkpoint/watch.h"
#include "core/base/format.h"
#include "repo/levels/checkpointer.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint32_t kRanks = 2;  ///< As many as processors, which train.
constexpr int kCopies = 4;
constexpr std::uint64_t kEvery = 3;  ///< Iterations between two checkpoints.

struct Model {
  std::string name;
  std::uint64_t bytes;
  std::size_t tensors;
};

enum class Figure { none, rank_0_file, single, sharded, by_layer };

/// Ranks that train the same model, iteration by iteration, all together.
class Training {
 public:
  Training(const Model& model, Figure figure, std::string folder, std::uint64_t checkpoints)
      : figure_(figure), folder_(std::move(folder)), iterations_(checkpoints * kEvery) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      states_.push_back(std::make_unique<State>(model.bytes, model.tensors));
    }
  }

  Status run() {
    std::vector<Status> ended(kRanks);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([this, rank, &ended] {
        ended[rank] = live(rank);
        step_ends_.arrive_and_drop();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : ended) FRESHET_TRY(status);
    return {};
  }
  const Samples& blocked_ms() const { return blocked_; }
  const Samples& iteration_ms() const { return iteration_; }

 private:
  Status open(std::uint32_t rank) {
    const bool all = figure_ == Figure::sharded || figure_ == Figure::by_layer;
    if (!all && !(figure_ == Figure::single && rank == 0)) return {};
    Checkpointer::Options options{.model = "model", .rank = rank, .ranks = all ? kRanks : 1};
    options.meet = all ? meet_ : "";
    options.local = {format("{}/{}", folder_, rank)};
    options.patience = kPatience;
    options.lost_after = std::chrono::seconds(10);
    FRESHET_ASSIGN(checkpointers_[rank], Checkpointer::open(std::move(options), states_[rank]->laid()));
    const auto writable = states_[rank]->writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointers_[rank]->restore(writable));
    return {};
  }

  Status live(std::uint32_t rank) {
    FRESHET_TRY(open(rank));
    State& state = *states_[rank];
    Checkpointer* const checkpointer = checkpointers_[rank].get();
    double last_ms = 0;
    const Watch watch;
    for (std::uint64_t step = 1; step <= iterations_; ++step) {
      const bool due = step % kEvery == 0;
      const bool by_layer = due && figure_ == Figure::by_layer;
      if (by_layer) FRESHET_TRY(checkpointer->begin(step));
      for (std::size_t layer = state.layers(); layer-- > 0;) {
        state.compute_layer(layer, step, kCopies);
        if (by_layer) FRESHET_TRY(checkpointer->capture_beside(layer, state.layer(layer)));
      }
      double blocked_ms = 0;
      if (by_layer) {
        FRESHET_ASSIGN(const auto captured, checkpointer->end());
        blocked_ms = ms_of(captured.blocked);
      } else if (due) {
        const Watch blocked;
        FRESHET_TRY(checkpoint(rank, step));
        blocked_ms = blocked.ms();
      }
      step_ends_.arrive_and_wait();  // As an all-reduce would: what one rank waits for, all wait for.
      if (rank != 0) continue;
      if (due && figure_ != Figure::none) blocked_.add(blocked_ms);
      iteration_.add(watch.ms() - last_ms);
      last_ms = watch.ms();
    }
    return checkpointer == nullptr ? Status() : checkpointer->finish(kPatience);
  }

  Status checkpoint(std::uint32_t rank, std::uint64_t step) {
    const auto views = states_[rank]->views();
    if (figure_ == Figure::rank_0_file) return rank == 0 ? write_and_sync(folder_ + "/file", views) : Status();
    if (checkpointers_[rank] == nullptr) return {};
    const auto captured = checkpointers_[rank]->checkpoint(step, views);
    // With too many versions under figure, this step has none.
    if (!captured && captured.error().code() != Code::out_of_space) return fail(captured.error());
    return {};
  }

  const Figure figure_;
  const std::string folder_;
  const std::uint64_t iterations_;
  const std::string meet_ = free_meeting_place();
  std::vector<std::unique_ptr<State>> states_;
  std::array<std::unique_ptr<Checkpointer>, kRanks> checkpointers_;
  std::barrier<> step_ends_{kRanks};
  Samples blocked_;
  Samples iteration_;
};

double mean(const Samples& samples) { return samples.sum() / static_cast<double>(samples.count()); }

Status measure_model(const CheckpointOptions& options, const Model& model, bool sets_ratios, Report& report) {
  const std::map<Figure, const char*> figures = {{Figure::rank_0_file, "rank_0_file"},
                                                 {Figure::single, "single_asynchronous"},
                                                 {Figure::sharded, "sharded"},
                                                 {Figure::by_layer, "sharded_by_layer"}};
  const std::uint64_t checkpoints = options.quick ? 2 : 4;
  FRESHET_ASSIGN(const auto nowhere, MadeFolder::in(options.folder));
  Training alone(model, Figure::none, nowhere.path(), checkpoints);
  FRESHET_TRY(alone.run());
  report.add_row(model.name, "iteration", "ms", alone.iteration_ms());
  for (const auto& [figure, name] : figures) {
    FRESHET_ASSIGN(const auto folder, MadeFolder::in(options.folder));
    Training training(model, figure, folder.path(), checkpoints);
    FRESHET_TRY(training.run());
    report.add_row(model.name, format("{}_blocked", name), "ms", training.blocked_ms());
    // What a checkpoint costs the loop, all in all.
    report.add_row(model.name, format("{}_overhead", name), "ms",
                   (mean(training.iteration_ms()) - mean(alone.iteration_ms())) * static_cast<double>(kEvery));
  }
  if (!sets_ratios) return {};
  const auto set = [&](const char* ratio, const char* peer, const char* what) {
    report.set_ratio(format("figures_{}_{}", what, ratio),
                     report.median(model.name, format("{}_{}", peer, what)) /
                         report.median(model.name, format("sharded_by_layer_{}", what)));
  };
  for (const char* what : {"blocked", "overhead"}) {
    set("vs_rank_0_file", "rank_0_file", what);
    set("vs_single", "single_asynchronous", what);
    set("vs_sharded", "sharded", what);
  }
  return {};
}

}  // namespace

Status measure_figures(const CheckpointOptions& options, Report& report) {
  const std::vector<Model> models =
      options.quick
          ? std::vector<Model>{{"figures_9_tensors_30MB", 30'000'000, 9}, {"figures_1000_tensors_4MB", 4'096'000, 1000}}
          : std::vector<Model>{{"figures_9_tensors_600MB", 600'000'000, 9},
                               {"figures_27_tensors_100MB", 100'000'000, 27},
                               {"figures_10000_tensors_41MB", 40'960'000, 10'000}};
  for (const Model& model : models) FRESHET_TRY(measure_model(options, model, &model == &models.front(), report));
  return {};
}

}  // namespace freshet::benchmarks
