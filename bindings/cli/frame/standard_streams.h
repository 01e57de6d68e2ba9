// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The descriptors 0 to 2 as every program expects them.

#include "core/base/result.h"

namespace freshet::cli {

/// Opens /dev/null for each of stdin, stdout and stderr that the process was started without. Otherwise the next file
/// would get its number, and lines would be written into that file. Call it before anything is opened.
Status hold_standard_streams();

}  // namespace freshet::cli
