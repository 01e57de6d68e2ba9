// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a tensor's new payload should travel to somebody who holds the one before: not at all, as an element delta, or
/// whole ("dense"). A pure function of what was measured.

#include <cstdint>

#include "core/model/dtype.h"
#include "core/model/tensor.h"

namespace freshet {

enum class Encoding : std::uint8_t { skip, delta, dense };

/// The cost of the processors at both ends. The defaults are what benchmarks/delta found on one core of a server of
/// 2024, rounded up; measure, where it matters.
struct EncodingCosts {
  double scan_ns_per_byte = 0.1;    ///< Sender: reading base and target.
  double encode_ns_per_change = 7;  ///< Sender: what comes on top for each change.
  double apply_ns_per_change = 8;   ///< Receiver: unpack, change, prove.
  double dense_ns_per_byte = 0.1;   ///< Receiver: copy and digest of a whole payload.
};

struct EncodingQuestion {
  DType dtype = DType::f32;
  std::uint64_t bytes = 0;             ///< Of the tensor.
  std::uint64_t changed_elements = 0;  ///< Counted or estimated (core/delta/element_delta.h); 0 must be certain.
  double link_bytes_per_second = 0;    ///< As measured; 0 or less: not known, taken as 125 MB/s.
  double bytes_per_change = 0;         ///< Of this tensor's last delta; 0 or less: not known, guessed.
  EncodingCosts costs = {};
};

/// The question about these two payloads of a tensor, with the changes counted in a small part of them
/// (estimate_changed_elements): a hundredth of a large tensor is read, an eighth of a small one. Never 0 changes, since
/// a sample can miss them. REQUIRES: as encode_delta.
EncodingQuestion sampled_question(DType dtype, Bytes base, Bytes target, double link_bytes_per_second,
                                  const EncodingCosts& costs = {});

/// The encoding that is done first: for a delta, scanned, encoded, sent and applied one after the other; for dense,
/// sent and digested. Never delta when that would hardly be shorter.
Encoding choose_encoding(const EncodingQuestion& question);

/// How long a delta may be and still be done before the payload itself; 0 when even an empty one would not. The limit
/// for encode_delta(): an expectation can be wrong.
std::uint64_t longest_delta(const EncodingQuestion& question);

/// The time that the sender needs to encode, by the costs; compare it with the measured one.
double expected_encode_ns(const EncodingQuestion& question);

/// A guess at a delta's length: the entropy of the places, and for each change as much as its difference mostly has.
double expected_delta_bytes(const EncodingQuestion& question);

}  // namespace freshet
