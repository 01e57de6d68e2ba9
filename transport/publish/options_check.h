// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What PublisherOptions may say.

#include "core/base/result.h"
#include "transport/publisher.h"

namespace freshet {

/// invalid_argument names the option.
Status check_options(const PublisherOptions& options);

}  // namespace freshet
