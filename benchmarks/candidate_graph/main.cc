// SPDX-License-Identifier: Apache-2.0
/// candidate_graph: how long a search's client takes to make a match query of a mutated candidate: by way of an
/// Architecture, and with the configs' hashes remembered (core/model/slot_id.h) or not.
///
/// usage: candidate_graph [--quick] [--json]

#include <chrono>
#include <random>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "core/base/check.h"
#include "core/base/format.h"
#include "repo/match/graph.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kLayers = 40;

/// A chain of dense layers with skips, of a space with 31 choices in each place.
Architecture::Parts first_candidate() {
  Architecture::Parts parts;
  parts.layers.push_back({.name = "x", .class_name = "Input", .config = R"({"dtype":"f32","shape":[null,64]})"});
  for (std::uint32_t i = 1; i < kLayers; ++i) {
    Layer layer{.name = format("l{}", i), .class_name = "keras.layers.Dense", .inputs = {{.layer = i - 1}}};
    if (i > 4 && i % 3 == 0) {
      layer.class_name = "keras.layers.Add";
      layer.inputs.push_back({.layer = i - 3});
    } else {
      layer.tensors = {{.name = "kernel", .tensor = static_cast<std::uint32_t>(parts.tensors.size())}};
      parts.tensors.push_back({.name = layer.name + ".kernel", .dtype = DType::f32, .shape = {64, 64}});
    }
    parts.layers.push_back(std::move(layer));
  }
  return parts;
}

void mutate(Architecture::Parts& parts, std::mt19937_64& random) {
  Layer& layer = parts.layers[1 + random() % (kLayers - 1)];
  static constexpr std::string_view kActivations[] = {"relu", "tanh", "swish", "sigmoid"};
  layer.config = format(R"({{"activation":"{}","bias_initializer":"zeros","kernel_initializer":"glorot_uniform",)"
                        R"("kernel_regularizer":null,"units":{},"use_bias":true}})",
                        kActivations[random() % 4], 16 * (1 + random() % 8));
}

/// Microseconds for each candidate.
template <typename Work>
Samples time_each(const std::vector<Architecture::Parts>& candidates, Work work) {
  Samples samples;
  for (const Architecture::Parts& parts : candidates) {
    const auto started = std::chrono::steady_clock::now();
    const std::shared_ptr<const MatchGraph> graph = work(parts);
    samples.add(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started).count());
    FRESHET_CHECK(graph->size() == kLayers);
  }
  return samples;
}

Status measure(bool quick, Report& report) {
  std::mt19937_64 random(1);
  std::vector<Architecture::Parts> candidates;
  Architecture::Parts parts = first_candidate();
  for (std::size_t i = 1; i < kLayers; ++i) mutate(parts, random);
  for (int i = 0; i < (quick ? 2000 : 20000); ++i) {
    mutate(parts, random);
    candidates.push_back(parts);
  }
  ConfigHashes known;
  const auto architecture = [](const Architecture::Parts& candidate) {
    return MatchGraph::of(*Architecture::build(candidate).value());
  };
  const auto cold = [](const Architecture::Parts& candidate) {
    ConfigHashes unknown;
    return MatchGraph::of(candidate, unknown).value();
  };
  const auto warm = [&](const Architecture::Parts& candidate) { return MatchGraph::of(candidate, known).value(); };
  const std::string name = format("{}_layers", kLayers);
  report.add_row(name, "architecture", "us", time_each(candidates, architecture));
  report.add_row(name, "cold", "us", time_each(candidates, cold));
  report.add_row(name, "warm", "us", time_each(candidates, warm));
  report.set_ratio("warm_vs_architecture", report.median(name, "architecture") / report.median(name, "warm"));
  report.set_ratio("warm_vs_cold", report.median(name, "cold") / report.median(name, "warm"));
  report.set_ratio("hits", static_cast<double>(known.hits()) / static_cast<double>(known.hits() + known.misses()));
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  CommonOptions options;
  return run_benchmark(count, words,
                       {.name = "candidate_graph",
                        .about = "The graph of a mutated candidate, with and without a cache of config hashes",
                        .options = options},
                       [&](Report& report) { return measure(options.quick, report); });
}
