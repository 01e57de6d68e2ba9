// SPDX-License-Identifier: Apache-2.0
#include "repo/match/explain.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/match/graph.h"

namespace freshet {
namespace {

constexpr std::size_t kConfigShownMax = 120;

/// What a call reads, by slot: equal in two architectures where their layers match.
using Inputs = std::vector<std::pair<SlotId, std::uint32_t>>;

Inputs inputs_of(const Architecture& architecture, std::uint32_t layer) {
  Inputs inputs;
  for (const LayerInput& input : architecture.layers()[layer].inputs) {
    inputs.emplace_back(architecture.slots()[input.layer], input.port);
  }
  if (is_commutative(architecture.layers()[layer])) std::sort(inputs.begin(), inputs.end());
  return inputs;
}

std::string tensors_text(const Architecture& architecture, const Layer& layer) {
  std::string text;
  for (const LayerTensor& tensor : layer.tensors) {
    const TensorSpec& spec = architecture.tensors()[tensor.tensor];
    text += format("{}{} {} [", text.empty() ? "" : ", ", tensor.name, name_of(spec.dtype));
    const Shape& shape = spec.global_shape();
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      text += format("{}{}", axis == 0 ? "" : ", ", shape[axis]);
    }
    text += "]";
  }
  return text.empty() ? "none" : text;
}

bool same_tensors(const Architecture& left, const Layer& a, const Architecture& right, const Layer& b) {
  std::map<std::string, std::pair<DType, std::vector<std::uint64_t>>> of_a;
  std::map<std::string, std::pair<DType, std::vector<std::uint64_t>>> of_b;
  const auto fill = [](auto& map, const Architecture& architecture, const Layer& layer) {
    for (const LayerTensor& tensor : layer.tensors) {
      const TensorSpec& spec = architecture.tensors()[tensor.tensor];
      map[tensor.name] = {spec.dtype, spec.global_shape()};
    }
  };
  fill(of_a, left, a);
  fill(of_b, right, b);
  return of_a == of_b;
}

class Explainer {
 public:
  Explainer(const Architecture& query, const Architecture& stored) : query_(query), stored_(stored) {
    for (std::uint32_t i = 0; i < stored.layers().size(); ++i) {
      by_slot_.emplace(stored.slots()[i], i);
      if (!is_input(stored.layers()[i])) by_inputs_[inputs_of(stored, i)].push_back(i);
      if (is_input(stored.layers()[i])) placeholders_.push_back(i);
    }
  }

  std::vector<MatchStep> run() {
    std::vector<MatchStep> steps;
    steps.reserve(query_.layers().size());
    std::size_t placeholders = 0;
    for (std::uint32_t i = 0; i < query_.layers().size(); ++i) {
      const Layer& layer = query_.layers()[i];
      const bool input = is_input(layer);
      MatchStep step{.layer = i};
      if (const auto same = by_slot_.find(query_.slots()[i]); same != by_slot_.end()) {
        step.stored = same->second;
        step.counted = !input;
      } else if (input) {
        step.why_not = why_not_input(layer, placeholders);
      } else {
        step.why_not = why_not(i, steps);
      }
      if (input) ++placeholders;
      steps.push_back(std::move(step));
    }
    return steps;
  }

 private:
  std::string why_not_input(const Layer& layer, std::size_t ordinal) const {
    if (ordinal >= placeholders_.size()) {
      return format("it has {} input placeholders, and this is number {}", placeholders_.size(), ordinal + 1);
    }
    return difference(layer, placeholders_[ordinal]);
  }

  std::string why_not(std::uint32_t index, const std::vector<MatchStep>& steps) const {
    const Layer& layer = query_.layers()[index];
    for (const LayerInput& input : layer.inputs) {
      if (!steps[input.layer].stored) {
        return format("its input {} does not match", shown(query_.layers()[input.layer].name));
      }
    }
    const auto there = by_inputs_.find(inputs_of(query_, index));
    if (there == by_inputs_.end()) return "no layer has these inputs";
    // The nearest of those at this place: of its kind, else of its class, else any.
    const auto of_kind = std::ranges::count_if(there->second, [&](auto at) { return same_kind(layer, at); });
    if (of_kind != 0) return format("one of more equal layers here; it has {} of them", of_kind);
    const auto of_class = std::ranges::find_if(
        there->second, [&](auto at) { return stored_.layers()[at].class_name == layer.class_name; });
    return difference(layer, of_class != there->second.end() ? *of_class : there->second.front());
  }

  bool same_kind(const Layer& layer, std::uint32_t at) const {
    const Layer& other = stored_.layers()[at];
    return layer.class_name == other.class_name && layer.config == other.config && same_call(layer, other) &&
           same_tensors(query_, layer, stored_, other);
  }

  bool same_call(const Layer& layer, const Layer& other) const {
    if (layer.tensors_of.has_value() != other.tensors_of.has_value()) return false;
    return !layer.tensors_of || query_.slots()[*layer.tensors_of] == stored_.slots()[*other.tensors_of];
  }

  std::string difference(const Layer& layer, std::uint32_t at) const {
    const Layer& other = stored_.layers()[at];
    const std::string place = "its " + shown(other.name);
    if (layer.class_name != other.class_name) {
      return format("{} is a {}, this a {}", place, shown(other.class_name), shown(layer.class_name));
    }
    if (layer.config != other.config) {
      return format("{} has the config {}, this {}", place, shown(other.config, kConfigShownMax),
                    shown(layer.config, kConfigShownMax));
    }
    if (!same_call(layer, other)) return place + " calls another layer's tensors";
    if (!same_tensors(query_, layer, stored_, other)) {
      return format("{} has the tensors {}, this {}", place, tensors_text(stored_, other), tensors_text(query_, layer));
    }
    return place + " has other inputs";
  }

  const Architecture& query_;
  const Architecture& stored_;
  std::unordered_map<SlotId, std::uint32_t> by_slot_;
  std::map<Inputs, std::vector<std::uint32_t>> by_inputs_;
  std::vector<std::uint32_t> placeholders_;
};

}  // namespace

std::vector<MatchStep> explain_match(const Architecture& query, const Architecture& stored) {
  return Explainer(query, stored).run();
}

}  // namespace freshet
