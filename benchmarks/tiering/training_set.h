// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Training sets from a seed: many small files, or a few of records.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace freshet::benchmarks {

struct TrainingSet {
  std::string name;
  std::vector<std::uint64_t> files;  ///< Their sizes; file N is called so, in six digits.
  std::size_t piece_bytes = 0;       ///< What a trainer reads at once.
  unsigned seed = 0;

  std::uint64_t bytes() const;
};

/// Sizes lognormal with a median of 110 KB, as ImageNet's have; each is read in one piece where it is below 1 MiB.
TrainingSet small_files(std::size_t count, unsigned seed);
/// Read in pieces of 128 KiB.
TrainingSet record_files(std::size_t count, std::uint64_t bytes_each, unsigned seed);

std::string file_name(std::size_t number);

/// What a trainer makes of bytes, cheap and of every bit: pieces may be added one after another, if all but the last
/// are multiples of eight bytes.
struct Sum {
  std::uint64_t value = 0;
  void add(const void* bytes, std::size_t count);
};

/// Writes the files into the folder, which is made, and `list`, a name a line. Returns the sum of all files' sums.
Result<std::uint64_t> write_set(const TrainingSet& set, const std::string& folder, const std::string& list);

/// Writes what is dirty below a folder to the disk and has the page cache forget it; fails when it does not.
Status forget_pages(const std::string& folder);

}  // namespace freshet::benchmarks
