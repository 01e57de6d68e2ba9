// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Files of keys, read whole: the descriptor is looked at, not the name, so that what is checked is what is read.

#include <sys/stat.h>

#include <string>

#include "core/base/result.h"

namespace freshet {

struct SmallFile {
  std::string text;
  struct stat status {};  ///< Taken before the text was read.
};

/// invalid_argument when it is no regular file or longer than `bytes_max`; otherwise the system's reason.
Result<SmallFile> read_small_file(const std::string& path, std::size_t bytes_max);

}  // namespace freshet
