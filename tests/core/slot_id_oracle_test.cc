// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "core/base/format.h"
#include "core/model/graph.h"

namespace freshet {
namespace {

using Json = nlohmann::json;

/// The definition of "the same slot" without any hash: two calls are the same when their configs are equal as values,
/// their inputs are the same calls, and as many calls of their kind stand before them. Knows graph files only.
class Oracle {
 public:
  Oracle(const Json& left, const Json& right) : left_(left["layers"]), right_(right["layers"]) {}

  bool same(std::size_t left, std::size_t right) const {
    return same_kind(left_, left, right_, right) && ordinal(left_, left) == ordinal(right_, right);
  }

 private:
  static std::string bare(const Json& layer) {
    const std::string name = layer["class"];
    return name.substr(name.rfind('.') + 1);
  }
  static bool is_input(const Json& layer) {
    return bare(layer) == "Input" && layer.value("inputs", Json::array()).empty();
  }
  static bool forgets_order(const Json& layer) {
    const std::string name = bare(layer);
    return name == "Add" || name == "Maximum" || layer.value("commutative", false);
  }
  static std::size_t index_of(const Json& layers, const Json& name) {
    std::size_t i = 0;
    while (layers[i]["name"] != name) ++i;
    return i;
  }
  static std::pair<std::size_t, int> input(const Json& layers, const Json& input) {
    if (input.is_string()) return {index_of(layers, input), 0};
    return {index_of(layers, input[0]), input[1].get<int>()};
  }
  static std::size_t first_call(const Json& layers, std::size_t call) {
    while (layers[call].contains("tensors_of")) call = index_of(layers, layers[call]["tensors_of"]);
    return call;
  }
  static Json bare_tensors(const Json& layer) {
    Json tensors = layer.value("tensors", Json::object());
    for (auto& tensor : tensors) {
      tensor.erase("key");
      if (tensor.contains("slice")) tensor["shape"] = tensor["slice"]["global_shape"];
      tensor.erase("slice");
    }
    return tensors;
  }

  std::size_t ordinal(const Json& layers, std::size_t call) const {
    std::size_t before = 0;
    for (std::size_t i = 0; i < call; ++i) before += same_kind(layers, i, layers, call) ? 1 : 0;
    return before;
  }

  bool same_across(const Json& a, std::size_t i, const Json& b, std::size_t j) const {
    if (&a == &b) return i == j;
    return same_kind(a, i, b, j) && ordinal(a, i) == ordinal(b, j);
  }

  bool same_kind(const Json& a, std::size_t i, const Json& b, std::size_t j) const {
    const Json& x = a[i];
    const Json& y = b[j];
    if (x["class"] != y["class"] || x.value("config", Json::object()) != y.value("config", Json::object()))
      return false;
    if (is_input(x) != is_input(y) || (is_input(x) && inputs_before(a, i) != inputs_before(b, j))) return false;
    if (x.contains("tensors_of") != y.contains("tensors_of")) return false;
    if (x.contains("tensors_of") && !same_across(a, first_call(a, i), b, first_call(b, j))) return false;
    if (bare_tensors(x) != bare_tensors(y)) return false;
    return same_inputs(a, i, b, j);
  }

  static std::size_t inputs_before(const Json& layers, std::size_t call) {
    std::size_t before = 0;
    for (std::size_t i = 0; i < call; ++i) before += is_input(layers[i]) ? 1 : 0;
    return before;
  }

  /// In order; or, when a call forgets the order and the other one's stands for itself, see below.
  bool same_inputs(const Json& a, std::size_t i, const Json& b, std::size_t j) const {
    const Json x = a[i].value("inputs", Json::array());
    const Json y = b[j].value("inputs", Json::array());
    if (x.size() != y.size()) return false;
    std::vector<bool> taken(y.size());
    for (std::size_t n = 0; n < x.size(); ++n) {
      const auto [from, port] = input(a, x[n]);
      bool found = false;
      const bool any_order = forgets_order(a[i]);
      for (std::size_t m = any_order ? 0 : n; m < (any_order ? y.size() : n + 1) && !found; ++m) {
        const auto [other, other_port] = input(b, y[m]);
        found = !taken[m] && port == other_port && same_across(a, from, b, other);
        if (found) taken[m] = true;
      }
      if (!found) return false;
    }
    return true;
  }

  const Json& left_;
  const Json& right_;
};

/// Small graphs of few classes, so that equal and nearly equal calls are frequent. A class fixes whether it is flagged
/// commutative: a flagged and an unflagged call compare by how their inputs happen to sort, which no oracle should
/// know.
Json random_graph(std::mt19937& random) {
  const auto pick = [&random](std::size_t count) { return random() % count; };
  Json graph = {{"freshet_graph", 1}, {"layers", Json::array()}};
  Json& layers = graph["layers"];
  const std::size_t count = 3 + pick(6);
  for (std::size_t i = 0; i < count; ++i) {
    const char* const classes[] = {"Input", "k.Input", "Dense", "Dense", "Add", "k.Add", "Pair", "Flagged"};
    const std::string name = classes[pick(std::size(classes))];
    Json layer = {{"name", format("n{}", random())}, {"class", name}};
    if (name == "Flagged") layer["commutative"] = true;
    if (pick(4) == 0) layer["config"] = pick(2) == 0 ? Json{{"u", 1}} : Json{{"u", 1.0}};
    layer["inputs"] = Json::array();
    for (std::size_t n = name.find("Input") == std::string::npos && i > 0 ? pick(4) : 0; n > 0; --n) {
      const Json& from = layers[pick(i)]["name"];
      layer["inputs"].push_back(pick(3) == 0 ? Json{from, pick(2)} : Json(from));
    }
    if (i > 0 && pick(5) == 0) {
      layer["tensors_of"] = layers[pick(i)]["name"];
    } else if (pick(3) == 0) {
      layer["tensors"]["w"] = {{"dtype", pick(2) == 0 ? "f32" : "f16"}, {"shape", {2}}, {"key", std::to_string(i)}};
      if (pick(2) == 0) {
        layer["tensors"]["w"]["slice"] = {{"global_shape", {2 * (1 + pick(2))}}, {"offset", {0}}, {"parts", 2}};
      }
    }
    layers.push_back(std::move(layer));
  }
  return graph;
}

/// Either another graph or a shuffled relative of the first, in which most calls are the same.
Json relative_of(const Json& graph, std::mt19937& random) {
  if (random() % 3 == 0) return random_graph(random);
  Json other = graph;
  for (Json& layer : other["layers"]) {
    if (random() % 6 == 0) layer["config"] = {{"u", random() % 2 + 1}};
    if (random() % 2 == 0) std::shuffle(layer["inputs"].begin(), layer["inputs"].end(), random);
  }
  return other;
}

TEST(SlotIdOracle, EqualIdsAreEqualCallsAndNothingElse) {
  const unsigned seed = 3;
  std::mt19937 random(seed);
  std::size_t equal = 0;
  std::size_t unequal = 0;
  for (int round = 0; round < 3000; ++round) {
    const Json left = random_graph(random);
    const Json right = relative_of(left, random);
    const auto a = parse_graph_json(left.dump());
    const auto b = parse_graph_json(right.dump());
    ASSERT_TRUE(a) << a.error().message();
    ASSERT_TRUE(b) << b.error().message();
    const Oracle oracle(left, right);
    for (std::size_t i = 0; i < left["layers"].size(); ++i) {
      for (std::size_t j = 0; j < right["layers"].size(); ++j) {
        const bool same = (*a)->slots()[i] == (*b)->slots()[j];
        ASSERT_EQ(same, oracle.same(i, j)) << "seed " << seed << " round " << round << "\n"
                                           << left << "\n"
                                           << right << "\n"
                                           << i << " " << j;
        (same ? equal : unequal) += 1;
      }
    }
  }
  EXPECT_GT(equal, 5000u);
  EXPECT_GT(unequal, 5000u);
}

}  // namespace
}  // namespace freshet
