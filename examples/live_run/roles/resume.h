// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where training starts: at the newest version of the run's repository, or, when there is none, at the beginning.

#include <memory>

#include "core/model/manifest.h"
#include "examples/live_run/journal.h"
#include "examples/live_run/model/layout.h"

namespace freshet::live {

struct StartingPoint {
  Weights weights;
  std::shared_ptr<const Manifest> resumed;  ///< Null at the beginning.
  RecordId record;                          ///< Of the resumed version.
};

/// Reads beside the process that owns the repository. A repository that is not there yet, or has no version yet, is a
/// beginning; one that cannot be read (it may be in the making, or in repair after a crash of its own) is tried again
/// for a while, and an error then.
Result<StartingPoint> begin(const Layout& layout);
Result<StartingPoint> resume_or_begin(const Layout& layout, const std::string& repository);

}  // namespace freshet::live
