// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Two versions of a bf16 model in a device's memory, and the clock of what a stream does.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/common/report.h"
#include "benchmarks/gpu/rows.h"
#include "core/base/digest.h"
#include "core/gpu/device.h"

namespace freshet::benchmarks {

/// One thread at a time.
class ModelOnDevice {
 public:
  static constexpr std::uint64_t kElementBytes = 2;

  /// Makes room for the old version, the new one, and one more copy.
  static Result<std::unique_ptr<ModelOnDevice>> make(std::shared_ptr<gpu::Device> device, const GpuSizes& sizes);

  /// Writes both versions. `share` of the new one's elements differ, at random places, the same in each tensor.
  Status write(double share);

  gpu::Device& device() { return *device_; }
  const std::shared_ptr<gpu::Device>& shared_device() const { return device_; }
  gpu::StreamHandle stream() const { return stream_.handle(); }
  std::uint64_t bytes() const { return tensors_ * sizes_.tensor_bytes; }
  std::uint64_t tensors() const { return tensors_; }
  std::uint64_t tensor_bytes() const { return sizes_.tensor_bytes; }
  int repetitions() const { return sizes_.repetitions; }
  std::byte* old_version() const { return old_.address(); }
  std::byte* new_version() const { return new_.address(); }
  const gpu::Memory& new_memory() const { return new_; }
  std::byte* fresh() const { return fresh_.address(); }
  /// Elements of a tensor that differ.
  std::uint64_t changed_of_tensor() const { return changed_; }
  const Digest& digest_of_new_tensor() const { return digest_; }

  /// Milliseconds until the device has done what `queue` queues on stream().
  Result<double> ms(const std::function<Status()>& queue);
  Status finish();
  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    return device_->copy(stream(), to, from, bytes);
  }
  /// Milliseconds of a copy of the model within the device.
  Result<double> copy_ms(const std::byte* from) {
    return ms([&] { return copy(fresh(), from, bytes()); });
  }
  /// An error where a tensor of this copy of the model is not the new version's.
  Status check_new(const std::byte* model);

  /// Measures both in turns, after one turn that does not count, and reports peer's time ÷ ours.
  Status compare(const std::string& ratio, const std::string& peer_name, const std::function<Result<double>()>& peer,
                 const std::function<Result<double>()>& ours, Report& report);

 private:
  ModelOnDevice(std::shared_ptr<gpu::Device> device, const GpuSizes& sizes)
      : device_(std::move(device)), sizes_(sizes), tensors_(sizes.model_bytes / sizes.tensor_bytes) {}
  Status write_all(std::byte* to, std::span<const std::byte> tensor);

  const std::shared_ptr<gpu::Device> device_;
  const GpuSizes sizes_;
  const std::uint64_t tensors_;
  gpu::Stream stream_;
  gpu::Event done_;
  gpu::Memory old_;
  gpu::Memory new_;
  gpu::Memory fresh_;
  std::uint64_t changed_ = 0;
  Digest digest_;
};

}  // namespace freshet::benchmarks
