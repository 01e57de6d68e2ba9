// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/model/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "examples/live_run/model/corpus.h"
#include "examples/live_run/model/optimizer.h"

namespace freshet::live {
namespace {

constexpr std::uint64_t kSeed = 7;

Layout small_layout() {
  auto layout =
      Layout::make({.model_bytes = kModelBytesMin, .orders = 3, .row_floats = 4, .hidden = 12, .seed = kSeed});
  EXPECT_TRUE(layout);
  return *std::move(layout);
}

Text some_text(std::size_t bytes) {
  const std::string words = "the quick brown fox jumps over the lazy dog. ";
  Text text;
  for (std::size_t i = 0; i < bytes; ++i)
    text.push_back(static_cast<std::uint8_t>(words[(i * 7 + i / 5) % words.size()]));
  return text;
}

std::vector<Position> positions(const Text& text, std::size_t count) {
  std::vector<Position> batch;
  for (std::size_t i = 0; i < count; ++i) batch.push_back(text.data() + 3 + i * 2);
  return batch;
}

double loss_of(const Layout& layout, const Weights& weights, const std::vector<Position>& batch) {
  Pass pass;
  gather(layout, weights, batch, pass);
  return infer(layout, weights, pass);
}

/// A small model's weights, and its gradients on `count` positions of a text.
struct OnePass {
  explicit OnePass(std::size_t count) : batch(positions(text, count)) {
    gather(layout, weights, batch, pass);
    infer(layout, weights, pass);
    backward(layout, weights, pass, gradients);
  }

  const Layout layout = small_layout();
  Weights weights = Weights::initial(layout).value();
  const Text text = some_text(200);
  const std::vector<Position> batch;
  Pass pass;
  Gradients gradients;
};

/// (L(w + h v) - L(w - h v)) / 2h along `direction`, over `floats` values at `at`.
double measured_slope(const Layout& layout, Weights& weights, const std::vector<Position>& batch, float* at,
                      const std::vector<float>& direction, float h) {
  const std::vector<float> before(at, at + direction.size());
  for (std::size_t i = 0; i < direction.size(); ++i) at[i] = before[i] + h * direction[i];
  const double above = loss_of(layout, weights, batch);
  for (std::size_t i = 0; i < direction.size(); ++i) at[i] = before[i] - h * direction[i];
  const double below = loss_of(layout, weights, batch);
  std::copy(before.begin(), before.end(), at);
  return (above - below) / (2.0 * static_cast<double>(h));
}

std::vector<float> random_direction(std::size_t floats, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> direction(floats);
  for (float& value : direction) value = normal(random);
  double norm = 0;
  for (const float value : direction) norm += static_cast<double>(value) * static_cast<double>(value);
  for (float& value : direction) value /= static_cast<float>(std::sqrt(norm));
  return direction;
}

TEST(Model, DenseGradientsAgreeWithFiniteDifferences) {
  OnePass one(16);
  auto& [layout, weights, text, batch, pass, gradients] = one;

  std::mt19937 random(kSeed);
  for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) {
    const Matrix& gradient = gradients.dense[tensor];
    ASSERT_EQ(static_cast<std::uint64_t>(gradient.size()) * sizeof(float), layout.tensors()[tensor].bytes());
    for (int i = 0; i < 5; ++i) {
      const auto direction = random_direction(static_cast<std::size_t>(gradient.size()), random);
      double slope = 0;
      for (std::size_t j = 0; j < direction.size(); ++j) {
        slope += static_cast<double>(direction[j]) * static_cast<double>(gradient.data()[j]);
      }
      const double measured = measured_slope(layout, weights, batch, weights.tensor(tensor), direction, 3e-3f);
      EXPECT_NEAR(slope, measured, 0.03 * gradient.norm() + 5e-4) << layout.tensors()[tensor].name;
    }
  }
}

TEST(Model, RowGradientsAgreeWithFiniteDifferences) {
  OnePass one(8);
  auto& [layout, weights, text, batch, pass, gradients] = one;

  std::mt19937 random(kSeed);
  std::set<std::uint32_t> seen;
  for (const RowPlace& place : pass.rows) {
    if (!seen.insert(place.row).second) continue;
    const auto direction = random_direction(layout.row_floats(), random);
    double slope = 0;  // A row that stands in the batch more than once gets the sum of its gradients.
    for (std::size_t i = 0; i < pass.rows.size(); ++i) {
      if (pass.rows[i].row != place.row) continue;
      for (std::size_t j = 0; j < direction.size(); ++j) {
        slope += static_cast<double>(direction[j]) *
                 static_cast<double>(gradients.input.data()[i * layout.row_floats() + j]);
      }
    }
    float* row = weights.tensor(place.tensor) + place.row_in_block * layout.row_floats();
    EXPECT_NEAR(slope, measured_slope(layout, weights, batch, row, direction, 3e-3f), 2e-3) << "row " << place.row;
  }
  EXPECT_GT(seen.size(), 10u);
}

TEST(Model, BeginsAtTheLossOfAGuessAndLearns) {
  const Layout layout = small_layout();
  auto weights = Weights::initial(layout);
  ASSERT_TRUE(weights);
  const Text text = some_text(500);
  const auto batch = positions(text, 32);
  const double first = loss_of(layout, *weights, batch);
  EXPECT_NEAR(first, std::log(256.0), 0.5);
  Optimizer optimizer(layout);
  Pass pass;
  Gradients gradients;
  std::vector<RowPlace> touched;
  for (int step = 0; step < 200; ++step) {
    gather(layout, *weights, batch, pass);
    infer(layout, *weights, pass);
    backward(layout, *weights, pass, gradients);
    optimizer.step(pass, gradients, 0, *weights, touched);
  }
  EXPECT_LT(loss_of(layout, *weights, batch), first / 3);
}

TEST(Optimizer, ChangesNoRowThatItDoesNotTell) {
  OnePass one(16);
  auto& [layout, weights, text, batch, pass, gradients] = one;
  std::vector<RowPlace> touched;
  constexpr std::uint32_t kFrozen = 2;
  Optimizer(layout).step(pass, gradients, kFrozen, weights, touched);

  std::set<std::uint32_t> told;
  for (const RowPlace& place : touched) told.insert(place.row);
  std::set<std::uint32_t> expected;
  for (const Position position : batch) expected.insert(layout.row_of(3, position).row);
  EXPECT_EQ(told, expected);
  std::vector<float> initial(layout.row_floats());
  std::uint32_t row = 0;
  for (std::uint32_t tensor = kDenseTensors; tensor < layout.tensors().size(); ++tensor) {
    for (std::uint64_t i = 0; i < layout.rows_of(tensor); ++i, ++row) {
      layout.initial_row(row, initial.data());
      const float* now = weights.tensor(tensor) + i * layout.row_floats();
      if (!told.contains(row)) {
        ASSERT_EQ(std::memcmp(initial.data(), now, initial.size() * sizeof(float)), 0);
      }
    }
  }
  EXPECT_EQ(row, layout.rows());
}

TEST(Layout, CutsTheTableIntoManyBlocksWhateverItsSize) {
  for (const std::uint64_t bytes : {kModelBytesMin, kModelBytesDefault, std::uint64_t{600'000'000}, kModelBytesMax}) {
    const auto layout = Layout::make({.model_bytes = bytes});
    ASSERT_TRUE(layout);
    EXPECT_LE(layout->bytes(), bytes);
    EXPECT_GT(static_cast<double>(layout->bytes()), 0.95 * static_cast<double>(bytes));
    EXPECT_GE(layout->tensors().size(), kDenseTensors + 64);
    std::uint64_t sum = 0;
    for (const TensorSpec& spec : layout->tensors()) {
      EXPECT_TRUE(spec.check());
      sum += spec.bytes();
    }
    EXPECT_EQ(sum, layout->bytes());
  }
  EXPECT_FALSE(Layout::make({.model_bytes = kModelBytesMin - 1}));
  EXPECT_FALSE(Layout::make({.model_bytes = kModelBytesMax + 1}));
}

TEST(Layout, PlacesEveryContextInsideItsOrdersTable) {
  const auto layout = Layout::make({});
  ASSERT_TRUE(layout);
  const auto architecture = layout->architecture();
  ASSERT_TRUE(architecture) << architecture.error().message();
  std::mt19937 random(kSeed);
  Text bytes(64);
  for (int i = 0; i < 2000; ++i) {
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    for (std::uint32_t order = 1; order <= layout->orders(); ++order) {
      const RowPlace place = layout->row_of(order, bytes.data() + 32);
      ASSERT_LT(place.tensor, layout->tensors().size());
      ASSERT_TRUE(layout->tensors()[place.tensor].name.starts_with("order" + std::to_string(order)));
      ASSERT_LT(place.row_in_block, layout->rows_of(place.tensor));
      ASSERT_LT(place.row, layout->rows());
    }
  }
}

}  // namespace
}  // namespace freshet::live
