// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The socket files of a hub in the host directory's folder, and those that dead hubs left there.

#include <string>

#include "core/base/result.h"

namespace freshet {

struct HubFiles {
  std::string door;
  std::string control;

  /// Names that nobody in `folder` uses. Removes on the way what hubs left that died without cleaning up: theirs are
  /// the doors that refuse a connection.
  static Result<HubFiles> choose(const std::string& folder);
};

}  // namespace freshet
