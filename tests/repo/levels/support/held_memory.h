// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What one rank of a test holds of its job's tensors; every byte says which step it is of.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/layout/layout.h"
#include "repo/levels/checkpointer.h"

namespace freshet::test {

/// One tensor of each kind.
inline std::vector<LaidTensor> three_tensors() {
  return {
      {.spec = {.name = "a", .dtype = DType::f32, .shape = {50'000}}, .layout = {}},
      {.spec = {.name = "b", .dtype = DType::f32, .shape = {6, 1000}}, .layout = {.cut = Cut::split}},
      {.spec = {.name = "rng", .dtype = DType::u64, .shape = {4}, .role = Role::opaque}, .layout = {.cut = Cut::own}}};
}

struct HeldMemory {
  HeldMemory(std::uint32_t ranks, std::uint32_t rank, const std::vector<LaidTensor>& tensors = three_tensors()) {
    for (LaidTensor one : tensors) {
      if (one.layout.cut == Cut::own) one.layout.argument = rank;
      held.emplace_back(held_piece(one, 0, ranks, rank).bytes());
    }
  }
  void fill(int step) {
    for (auto& bytes : held) std::memset(bytes.data(), step, bytes.size());
  }
  bool is_of(int step) const {
    return std::ranges::all_of(held, [&](const auto& bytes) {
      return std::ranges::all_of(bytes, [&](std::byte byte) { return byte == static_cast<std::byte>(step); });
    });
  }
  std::vector<Bytes> views() const { return {held.begin(), held.end()}; }
  std::vector<MutableBytes> writable() { return {held.begin(), held.end()}; }
  std::vector<std::vector<std::byte>> held;
};

/// The options of a job of one rank.
inline Checkpointer::Options alone(const std::string& folder) { return {.model = "net", .local = {folder}}; }

}  // namespace freshet::test
