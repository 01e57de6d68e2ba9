// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/store_load/model.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t bytes) { return std::max(kAlignment, bytes / kAlignment * kAlignment); }

void add_f32(Sizes& sizes, std::initializer_list<std::uint64_t> elements) {
  for (const std::uint64_t count : elements) sizes.push_back(4 * count);
}

}  // namespace

Sizes even_sizes(std::uint64_t bytes, std::size_t layers) { return Sizes(layers, aligned(bytes / layers)); }

Sizes uneven_sizes(std::uint64_t bytes, std::size_t layers) {
  Sizes sizes;
  const double sum = static_cast<double>(layers) * static_cast<double>(layers + 1) / 2;
  for (std::size_t i = 1; i <= layers; ++i) {
    sizes.push_back(aligned(static_cast<std::uint64_t>(static_cast<double>(bytes) * static_cast<double>(i) / sum)));
  }
  return sizes;
}

Sizes vgg19_sizes() {
  Sizes sizes;
  std::uint64_t in = 3;
  for (const auto& [out, count] : {std::pair(64, 2), {128, 2}, {256, 4}, {512, 4}, {512, 4}}) {
    for (int i = 0; i < count; ++i) {
      const auto width = static_cast<std::uint64_t>(out);
      add_f32(sizes, {9 * in * width, width});
      in = width;
    }
  }
  add_f32(sizes, {25088 * 4096, 4096, 4096 * 4096, 4096, 4096 * 1000, 1000});
  return sizes;
}

Sizes bert_large_sizes() {
  constexpr std::uint64_t kHidden = 1024;
  Sizes sizes;
  add_f32(sizes, {30522 * kHidden, 512 * kHidden, 2 * kHidden, kHidden, kHidden});
  for (int layer = 0; layer < 24; ++layer) {
    for (int i = 0; i < 4; ++i) add_f32(sizes, {kHidden * kHidden, kHidden});
    add_f32(sizes,
            {kHidden, kHidden, 4 * kHidden * kHidden, 4 * kHidden, 4 * kHidden * kHidden, kHidden, kHidden, kHidden});
  }
  add_f32(sizes, {kHidden * kHidden, kHidden});
  return sizes;
}

Model::Model(const Sizes& sizes) : sizes_(sizes) {
  const std::uint64_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  memory_.resize(bytes);
  loaded_.resize(bytes);
  std::mt19937_64 random(1);
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t value = random();
    std::memcpy(memory_.data() + at, &value, sizeof value);
  }
  std::vector<TensorSpec> specs;
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    specs.push_back({.name = format("layer{}.kernel", i), .dtype = DType::u8, .shape = {sizes[i]}});
    tensors_.push_back(MutableBytes(memory_).subspan(offset, sizes[i]));
    rooms_.push_back(MutableBytes(loaded_).subspan(offset, sizes[i]));
    offset += sizes[i];
  }
  manifest_.name = {.model = "model"};
  manifest_.id.run = {.high = 1, .low = 1};
  manifest_.id.incarnation = 1;
  manifest_.architecture = Architecture::guess_chain(std::move(specs)).value();
  for (const MutableBytes tensor : tensors_) manifest_.digests.push_back(digest_of(tensor));
}

std::vector<std::uint32_t> Model::share(unsigned percent) const {
  std::vector<std::uint32_t> order(sizes_.size());
  std::iota(order.begin(), order.end(), 0);
  if (percent == 100) return order;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(7));
  const std::uint64_t wanted = bytes() / 100 * percent;
  std::vector<std::uint32_t> chosen;
  std::uint64_t sum = 0;
  for (const std::uint32_t tensor : order) {
    if (sum + sizes_[tensor] > wanted) continue;
    sum += sizes_[tensor];
    chosen.push_back(tensor);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::uint64_t Model::bytes_of(std::span<const std::uint32_t> tensors) const {
  std::uint64_t sum = 0;
  for (const std::uint32_t tensor : tensors) sum += sizes_[tensor];
  return sum;
}

const Manifest& Model::next(std::span<const std::uint32_t> changed) {
  const VersionId before = manifest_.id;
  ++manifest_.id.sequence;
  if (before.sequence == 0) {
    manifest_.owners = OwnerMap::all_written_by(manifest_.id, sizes_.size());
  } else {
    manifest_.owners = manifest_.owners.with_written(manifest_.id, changed);
    manifest_.ancestor = before;
  }
  for (const std::uint32_t tensor : changed) {
    std::memcpy(tensors_[tensor].data(), &manifest_.id.sequence, sizeof(std::uint64_t));
    manifest_.digests[tensor] = digest_of(tensors_[tensor]);
  }
  return manifest_;
}

std::vector<Repository::TensorRead> Model::reads(std::span<const std::uint32_t> tensors) {
  std::vector<Repository::TensorRead> reads;
  for (const std::uint32_t tensor : tensors) reads.push_back({.tensor = tensor, .out = rooms_[tensor]});
  return reads;
}

Status Model::check_loaded(std::span<const std::uint32_t> tensors) const {
  for (const std::uint32_t tensor : tensors) {
    if (std::memcmp(rooms_[tensor].data(), tensors_[tensor].data(), sizes_[tensor]) != 0) {
      return fail(Code::corrupt, format("tensor {} was loaded with other bytes", tensor));
    }
  }
  return {};
}

}  // namespace freshet::benchmarks
