// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/update_latency/model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {
constexpr std::uint64_t kPageBytes = 4096;
}

Result<std::unique_ptr<Model>> Model::create(std::uint64_t bytes, std::size_t tensors) {
  std::unique_ptr<Model> model(new Model());
  // Layers of a network differ in size: shares of 1, 2 and 3.
  std::uint64_t shares = 0;
  for (std::size_t i = 0; i < tensors; ++i) shares += 1 + i % 3;
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < tensors; ++i) {
    sizes.push_back(bytes * (1 + i % 3) / shares / kPageBytes * kPageBytes);
    model->offsets_.push_back(model->bytes_);
    model->bytes_ += sizes.back();
  }
  model->descriptor_ = ::memfd_create("update-latency-model", MFD_CLOEXEC);
  if (model->descriptor_ < 0) return fail_errno(errno, "memfd_create");
  if (::ftruncate(model->descriptor_, static_cast<off_t>(model->bytes_)) != 0) return fail_errno(errno, "ftruncate");
  void* const memory =
      ::mmap(nullptr, model->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, model->descriptor_, 0);
  if (memory == MAP_FAILED) return fail_errno(errno, "mmap");
  model->memory_ = static_cast<std::byte*>(memory);
  std::mt19937_64 random(1);
  for (std::uint64_t at = 0; at < model->bytes_; at += sizeof(std::uint64_t)) {
    const std::uint64_t value = random();
    std::memcpy(model->memory_ + at, &value, sizeof(value));
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    model->views_.push_back(
        {.spec = {.name = format("layer{}.kernel", i), .dtype = DType::f32, .shape = {sizes[i] / 4}},
         .data = Bytes(model->memory_ + model->offsets_[i], sizes[i])});
  }
  return model;
}

Model::~Model() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t Model::bytes_of(std::span<const std::uint32_t> tensors) const {
  std::uint64_t sum = 0;
  for (const std::uint32_t tensor : tensors) sum += views_[tensor].data.size();
  return sum;
}

std::string Model::sizes() const {
  std::string text;
  for (const TensorView& view : views_) text += format("{}{}", text.empty() ? "" : ",", view.data.size());
  return text;
}

std::vector<std::uint32_t> Model::quarter() const {
  std::vector<std::uint32_t> tensors;
  std::uint64_t sum = 0;
  for (auto i = static_cast<std::uint32_t>(size()); i-- > 0;) {
    if (sum + views_[i].data.size() / 2 > bytes_ / 4) continue;
    tensors.push_back(i);
    sum += views_[i].data.size();
  }
  return {tensors.rbegin(), tensors.rend()};
}

std::vector<std::uint32_t> Model::all() const {
  std::vector<std::uint32_t> tensors(size());
  std::iota(tensors.begin(), tensors.end(), 0u);
  return tensors;
}

void Model::step(std::span<const std::uint32_t> tensors, std::uint64_t stamp) {
  for (const std::uint32_t tensor : tensors) {
    for (std::uint64_t at = 0; at < views_[tensor].data.size(); at += kPageBytes) {
      std::memcpy(memory_ + offsets_[tensor] + at, &stamp, sizeof(stamp));
    }
  }
}

std::vector<std::uint64_t> parse_sizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) sizes.push_back(std::stoull(item));
  return sizes;
}

}  // namespace freshet::benchmarks
