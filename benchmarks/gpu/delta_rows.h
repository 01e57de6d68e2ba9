// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What element deltas cost on a device, beside a copy of the model there.

#include "benchmarks/gpu/model_on_device.h"

namespace freshet::benchmarks {

/// Packs and applies the model's change, with its tables in the device's memory. One thread at a time.
class DeltaOnDevice {
 public:
  /// REQUIRES: the model is written, and stays so.
  static Result<std::unique_ptr<DeltaOnDevice>> make(ModelOnDevice& model);

  /// Compares and packs; copies the new version to fresh() in the same pass, where wanted. Checks what was found.
  Result<double> pack_ms(bool copies);
  /// Applies the packed change to a copy of the old version in fresh(). REQUIRES: packed.
  Result<double> apply_ms();

 private:
  explicit DeltaOnDevice(ModelOnDevice& model) : model_(model) {}
  Status write_tables();
  Status write_old();  ///< To fresh().
  Result<gpu::Memory> upload(std::span<const std::byte> bytes);
  Status zero(const gpu::Memory& memory, std::uint64_t bytes);
  template <typename Row>
  Result<std::vector<Row>> read(const gpu::Memory& memory);

  ModelOnDevice& model_;
  std::uint64_t tiles_ = 0;
  std::uint64_t blocks_bytes_max_ = 0;  ///< Of a tensor.
  gpu::Memory blocks_;
  gpu::Memory with_copy_;     ///< Rows of PackTensor.
  gpu::Memory without_copy_;  ///< Likewise.
  gpu::Memory applied_;       ///< Rows of ApplyTensor.
  gpu::Memory pack_results_;
  gpu::Memory apply_results_;
  gpu::Memory places_;
  gpu::Memory states_;
};

}  // namespace freshet::benchmarks
