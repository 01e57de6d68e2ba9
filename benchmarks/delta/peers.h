// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The formats in which others send few changes, written anew from their descriptions. All of them find the changes
/// with the codec's own scan, so that formats are compared and not scans. They prove nothing and apply to any base.

#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet::benchmarks {

/// For bf16. One thread at a time.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  virtual std::vector<std::byte> encode(Bytes base, Bytes target) = 0;
  virtual Status apply(Bytes payload, MutableBytes memory) = 0;
};

/// Every changed element as a 32-bit index and its new value (vLLM, verl, TRL).
std::unique_ptr<Peer> make_index_and_value();
/// base xor target, all of it, through zstd level 1 (slime, miles, SkyRL).
std::unique_ptr<Peer> make_xor_zstd();
/// 16-bit gaps and xor of values, each through zstd level 1 (NeMo-RL).
std::unique_ptr<Peer> make_gap_xor_zstd();

}  // namespace freshet::benchmarks
