// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "benchmarks/common/command_line.h"

namespace freshet::benchmarks {

struct CheckpointOptions : CommonOptions {
  std::string folder = std::filesystem::temp_directory_path();  ///< On the disk that is measured.
  std::string only;                                             ///< The part that is measured; empty: all.
  std::string veloc;                                            ///< Where a VELOC is installed; empty: none.
  std::string redset;                                           ///< The same of redset.
  std::string python;                                           ///< A Python that has torch.

  int repetitions() const { return quick ? 3 : 5; }
  /// In memory, where there is such a folder.
  std::string memory_folder() const { return std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : folder; }
};

}  // namespace freshet::benchmarks
