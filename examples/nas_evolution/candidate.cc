// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_evolution/candidate.h"

#include <cstring>
#include <map>
#include <utility>

#include "examples/nas_spaces/random.h"

namespace freshet::nas {
namespace {

/// Calls back with each four-byte value of f32 tensors.
template <typename Change>
void change_values(MutableBytes bytes, Change change) {
  for (std::size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    value = change(value);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
}

}  // namespace

Candidate::Candidate(Genes genes, std::shared_ptr<const Architecture> architecture, std::uint64_t seed)
    : genes_(std::move(genes)),
      architecture_(std::move(architecture)),
      seed_(seed),
      frozen_(architecture_->tensors().size()) {
  for (const TensorSpec& spec : architecture_->tensors()) bytes_.emplace_back(spec.bytes());
  start_over();
}

void Candidate::start_over() {
  Random random(seed_);
  for (auto& bytes : bytes_) {
    change_values(bytes, [&random](float) { return static_cast<float>(random.unit() - 0.5); });
  }
  frozen_.assign(frozen_.size(), false);
}

double Candidate::trainable_share() const {
  std::uint64_t trainable = 0;
  for (std::size_t i = 0; i < bytes_.size(); ++i) trainable += frozen_[i] ? 0 : bytes_[i].size();
  return architecture_->bytes() == 0 ? 0 : static_cast<double>(trainable) / static_cast<double>(architecture_->bytes());
}

std::vector<TensorView> Candidate::views(bool trainable_only) const {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    if (!trainable_only || !frozen_[i]) views.push_back({architecture_->tensors()[i], bytes_[i]});
  }
  return views;
}

void Candidate::train(std::uint64_t seed) {
  Random random(seed);
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    if (frozen_[i]) continue;
    change_values(bytes_[i],
                  [&random](float value) { return value * 0.99f + 0.01f * static_cast<float>(random.unit() - 0.5); });
  }
}

std::vector<SharedTensor> shared_tensors(const Architecture& ours, const Architecture& theirs) {
  std::map<SlotId, std::size_t> layer_of;
  for (std::size_t i = 0; i < theirs.layers().size(); ++i) layer_of.emplace(theirs.slots()[i], i);
  std::vector<SharedTensor> shared;
  for (std::size_t i = 0; i < ours.layers().size(); ++i) {
    const auto twin = layer_of.find(ours.slots()[i]);
    if (twin == layer_of.end()) continue;
    for (const LayerTensor& tensor : ours.layers()[i].tensors) {
      for (const LayerTensor& other : theirs.layers()[twin->second].tensors) {
        if (other.name != tensor.name) continue;
        if (!same_form(ours.tensors()[tensor.tensor], theirs.tensors()[other.tensor])) continue;
        shared.push_back({.ours = tensor.tensor, .theirs = other.tensor});
      }
    }
  }
  return shared;
}

}  // namespace freshet::nas
