// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which bytes of one tensor have come, and from which parts. Private to this folder.

#include <compare>
#include <cstdint>
#include <map>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "repo/part_puts.h"

namespace freshet {

/// Holds no bytes of tensors. One thread at a time.
class PartBooks {
 public:
  /// About what the books of a part take, and of a run that touches no other one.
  static constexpr std::uint64_t kBytesOfPart = 128;
  static constexpr std::uint64_t kBytesOfRun = 64;

  explicit PartBooks(std::uint64_t tensor_bytes) : tensor_bytes_(tensor_bytes) {}

  /// Notes a part with that digest. True: its bytes are new. False: the same part came before. already_exists: it came
  /// with other bytes, or overlaps another one; nothing was noted. REQUIRES: check_part() passed.
  Result<bool> add(const TensorPart& part, const Digest& digest);

  std::uint64_t bytes() const { return bytes_; }  ///< That have come.
  bool is_complete() const { return bytes_ == tensor_bytes_; }
  /// The first bytes that are missing. REQUIRES: some are.
  struct Hole {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  Hole first_hole() const;

 private:
  struct Runs {
    std::uint64_t offset = 0;
    std::uint64_t count = 0;
    std::uint64_t stride = 0;
    std::uint64_t length = 0;
    auto operator<=>(const Runs&) const = default;
  };
  bool is_free(std::uint64_t begin, std::uint64_t end) const;
  void cover(std::uint64_t begin, std::uint64_t end);

  std::uint64_t tensor_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> covered_;  ///< Ends by beginnings; no two touch.
  std::map<Runs, Digest> parts_;
};

}  // namespace freshet
