// SPDX-License-Identifier: Apache-2.0
/// Trains the example's language model and writes its learning curve: the loss of every step's batch, and the loss on a
/// fixed held-out sample after the step. What benchmarks/schedules/data/text_*.csv were made with.

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <random>

#include "benchmarks/common/command_line.h"
#include "core/base/format.h"
#include "examples/live_run/model/corpus.h"
#include "examples/live_run/model/optimizer.h"

namespace freshet::live {
namespace {

/// The rates' factor at a step; straight lines between the points.
struct RatePoint {
  double step = 0;
  double factor = 1;
};

struct Options {
  std::vector<std::string> text;
  std::vector<std::string> first;    ///< Text of the steps that are not recorded; `text` when there is none.
  std::uint64_t unrecorded = 0;      ///< Steps before the first row.
  std::uint64_t training_bytes = 0;  ///< 0: all.
  std::uint64_t steps = 4000;
  std::size_t batch = 32;
  std::size_t held_out = 2048;  ///< Positions.
  std::uint64_t cosine_period = 0;
  std::vector<std::string> rate_points;
  LearningRates rates;
  Layout::Options layout;
};

/// "STEP:FACTOR".
Result<std::vector<RatePoint>> parse_rate_points(const std::vector<std::string>& texts) {
  std::vector<RatePoint> points;
  for (const std::string& text : texts) {
    RatePoint point;
    char rest = 0;
    const int found = std::sscanf(text.c_str(), "%lf:%lf%c", &point.step, &point.factor, &rest);
    if (found != 2 || !(point.factor >= 0) || (!points.empty() && !(point.step > points.back().step))) {
      return fail(Code::invalid_argument, format("--rate {}: STEP:FACTOR is expected, steps growing", text));
    }
    points.push_back(point);
  }
  return points;
}

double interpolate(const std::vector<RatePoint>& points, double step) {
  if (points.empty()) return 1;
  if (step <= points.front().step) return points.front().factor;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const RatePoint &before = points[i - 1], &after = points[i];
    if (step > after.step) continue;
    return before.factor + (after.factor - before.factor) * (step - before.step) / (after.step - before.step);
  }
  return points.back().factor;
}

class Recorder {
 public:
  Recorder(const Options& options, const Layout& layout, std::vector<RatePoint> points, Weights weights)
      : options_(options),
        layout_(layout),
        points_(std::move(points)),
        weights_(std::move(weights)),
        optimizer_(layout, options.rates) {}

  Status run();

 private:
  std::vector<Position> held_out_sample(const Corpus& corpus) const;
  float rate_factor(std::uint64_t step) const;
  double train_step(std::uint64_t step, const Text& text);

  const Options& options_;
  const Layout& layout_;
  const std::vector<RatePoint> points_;
  Weights weights_;
  Optimizer optimizer_;
  Pass pass_;
  Gradients gradients_;
  std::vector<RowPlace> touched_;
};

/// Evenly spread, so that the sample is the same whatever the seed.
std::vector<Position> Recorder::held_out_sample(const Corpus& corpus) const {
  const std::uint64_t first = layout_.orders();
  const std::uint64_t places = corpus.held_out.size() - first;
  std::vector<Position> sample;
  for (std::size_t i = 0; i < options_.held_out; ++i) {
    sample.push_back(corpus.held_out.data() + first + i * places / options_.held_out);
  }
  return sample;
}

float Recorder::rate_factor(std::uint64_t step) const {
  double factor = interpolate(points_, static_cast<double>(step));
  if (options_.cosine_period > 0) {
    const auto place = static_cast<double>((step - 1) % options_.cosine_period);
    factor *= 0.5 + 0.5 * std::cos(M_PI * place / static_cast<double>(options_.cosine_period));
  }
  return static_cast<float>(factor);
}

double Recorder::train_step(std::uint64_t step, const Text& text) {
  std::mt19937_64 random(options_.layout.seed * 0x9E3779B97F4A7C15ULL + step);
  std::uniform_int_distribution<std::size_t> position(layout_.orders(), text.size() - 1);
  std::vector<Position> batch;
  for (std::size_t i = 0; i < options_.batch; ++i) batch.push_back(text.data() + position(random));
  gather(layout_, weights_, batch, pass_);
  const double loss = infer(layout_, weights_, pass_);
  backward(layout_, weights_, pass_, gradients_);
  touched_.clear();
  optimizer_.set_rate_factor(rate_factor(step));
  optimizer_.step(pass_, gradients_, 0, weights_, touched_);
  return loss;
}

Status Recorder::run() {
  FRESHET_ASSIGN(Corpus corpus, read_corpus(options_.text));
  FRESHET_ASSIGN(const Corpus first, read_corpus(options_.first.empty() ? options_.text : options_.first));
  if (options_.training_bytes > 0 && options_.training_bytes < corpus.training.size()) {
    corpus.training.resize(options_.training_bytes);
  }
  std::fprintf(stderr, "record_text: %zu bytes of training text, %zu held out, a model of %llu bytes\n",
               corpus.training.size(), corpus.held_out.size(), static_cast<unsigned long long>(layout_.bytes()));
  const std::vector<Position> sample = held_out_sample(corpus);
  Pass held_out;
  std::printf("step,loss,eval_loss\n");
  for (std::uint64_t step = 1; step <= options_.unrecorded + options_.steps; ++step) {
    const bool recorded = step > options_.unrecorded;
    const double loss = train_step(step, recorded ? corpus.training : first.training);
    if (!recorded) continue;
    gather(layout_, weights_, sample, held_out);
    const double eval_loss = infer(layout_, weights_, held_out);
    std::printf("%llu,%.7g,%.7g\n", static_cast<unsigned long long>(step - options_.unrecorded), loss, eval_loss);
  }
  return {};
}

Status record(const Options& options) {
  if (options.batch == 0 || options.held_out == 0 || options.steps == 0) {
    return fail(Code::invalid_argument, "--batch, --held-out and --steps must be at least 1");
  }
  FRESHET_ASSIGN(std::vector<RatePoint> points, parse_rate_points(options.rate_points));
  FRESHET_ASSIGN(const Layout layout, Layout::make(options.layout));
  FRESHET_ASSIGN(Weights weights, Weights::initial(layout));
  return Recorder(options, layout, std::move(points), std::move(weights)).run();
}

}  // namespace
}  // namespace freshet::live

int main(int argc, char** argv) {
  using namespace freshet::live;
  CLI::App app("Records a learning curve of the example's language model as CSV on standard output", "record_text");
  Options options;
  app.add_option("--text", options.text, "Files to train on")->required();
  app.add_option("--unrecorded", options.unrecorded, "Steps before the first row");
  app.add_option("--first", options.first, "Files to train on in these");
  app.add_option("--training-bytes", options.training_bytes, "Use no more of --text for training");
  app.add_option("--steps", options.steps, "Rows to write")->capture_default_str();
  app.add_option("--batch", options.batch, "Positions of a step")->capture_default_str();
  app.add_option("--held-out", options.held_out, "Held-out positions")->capture_default_str();
  app.add_option("--dense-rate", options.rates.dense, "Adam's learning rate")->capture_default_str();
  app.add_option("--row-rate", options.rates.rows, "Adagrad's learning rate")->capture_default_str();
  app.add_option("--warmup", options.rates.warmup_steps, "Steps until the rates are full")->capture_default_str();
  app.add_option("--cosine", options.cosine_period, "Rates fall along a cosine and restart after so many steps");
  app.add_option("--rate", options.rate_points, "STEP:FACTOR, the rates' factor; straight lines between these points");
  app.add_option("--hidden", options.layout.hidden, "Units of each hidden layer")->capture_default_str();
  app.add_option("--row-floats", options.layout.row_floats, "Floats of a row")->capture_default_str();
  app.add_option("--orders", options.layout.orders, "Bytes of context")->capture_default_str();
  app.add_option("--model-bytes", options.layout.model_bytes)->capture_default_str();
  app.add_option("--seed", options.layout.seed)->capture_default_str();
  if (const auto code = freshet::benchmarks::ends_at_words(app, argc, argv)) return *code;
  if (const auto recorded = record(options); !recorded) {
    std::cerr << "record_text: " << recorded.error().message() << "\n";
    return 1;
  }
  return 0;
}
