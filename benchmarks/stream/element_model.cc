// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/element_model.h"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <random>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::size_t kDrawnValues = std::size_t{1} << 16;
constexpr float kSpread = 0.02f;

std::uint16_t to_bf16(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }

std::uint64_t scramble(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

/// Normal values, drawn once and then picked at random: a billion of them would take a minute.
void fill(std::span<std::uint16_t> out) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0.0f, kSpread);
  std::vector<std::uint16_t> drawn;
  for (std::size_t i = 0; i < kDrawnValues; ++i) drawn.push_back(to_bf16(normal(random)));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = drawn[scramble(i) % kDrawnValues];
}

}  // namespace

Result<std::unique_ptr<ElementModel>> ElementModel::create(std::uint64_t bytes, std::size_t tensors) {
  std::unique_ptr<ElementModel> model(new ElementModel());
  const std::uint64_t tensor_bytes = std::max(bytes / tensors / kPageBytes, std::uint64_t{1}) * kPageBytes;
  const std::uint64_t all_bytes = tensor_bytes * tensors;
  void* const memory =
      ::mmap(nullptr, all_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return fail_errno(errno, format("map {} bytes", all_bytes));
  model->memory_ = static_cast<std::byte*>(memory);
  model->bytes_ = all_bytes;
  fill({static_cast<std::uint16_t*>(memory), all_bytes / 2});
  for (std::size_t i = 0; i < tensors; ++i) {
    model->views_.push_back(
        {.spec = {.name = format("layer{:05}.kernel", i), .dtype = DType::bf16, .shape = {tensor_bytes / 2}},
         .data = Bytes(model->memory_ + i * tensor_bytes, tensor_bytes)});
  }
  return model;
}

ElementModel::~ElementModel() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

std::uint64_t ElementModel::step(double share, std::uint64_t seed) {
  auto* const elements = reinterpret_cast<std::uint16_t*>(memory_);
  const std::uint64_t count = bytes_ / sizeof(std::uint16_t);
  std::mt19937_64 random(seed);
  const double per_gap = 1.0 / std::log1p(-share);
  std::uint64_t changed = 0;
  for (double at = -1;;) {
    const double drawn = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
    at += 1 + std::floor(std::log(drawn) * per_gap);
    if (at >= static_cast<double>(count)) return changed;
    std::uint16_t& element = elements[static_cast<std::uint64_t>(at)];
    const std::uint64_t luck = random();
    const int by = luck % 16 == 0 ? 2 : 1;
    const bool grows = (luck & 0x100) != 0 || (element & 0x7FFF) <= 2;
    element = static_cast<std::uint16_t>(element + (grows ? by : -by));
    ++changed;
  }
}

void ElementModel::rewrite(std::uint64_t seed) {
  auto* const words = reinterpret_cast<std::uint64_t*>(memory_);
  std::uint64_t state = scramble(seed) | 1;
  // Each of the four elements in a word changes, by bits that nobody can compress.
  constexpr std::uint64_t kOne = 0x0001000100010001ULL;
  for (std::uint64_t i = 0; i < bytes_ / sizeof(std::uint64_t); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    words[i] ^= state | kOne;
  }
}

Digest ElementModel::digest() const {
  std::vector<Bytes> tensors;
  for (const TensorView& view : views_) tensors.push_back(view.data);
  return digest_of_tensors(tensors);
}

Digest digest_of_tensors(std::span<const Bytes> tensors) {
  DigestStream stream;
  for (const Bytes tensor : tensors) stream.update(tensor);
  return stream.finish();
}

}  // namespace freshet::benchmarks
