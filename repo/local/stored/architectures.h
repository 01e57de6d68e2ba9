// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Architectures on the disk. Private to this room.

#include <memory>

#include "core/base/result.h"
#include "core/model/graph.h"
#include "repo/backend/backend.h"
#include "repo/local/stored/recent.h"

namespace freshet {

/// Any thread. Every version of an architecture shares the decoded one; the last few are remembered.
class StoredArchitectures {
 public:
  explicit StoredArchitectures(const Backend& backend) : backend_(backend) {}

  /// corrupt: it is missing, or another one.
  Result<std::shared_ptr<const Architecture>> get(const Digest& digest) const;
  /// get() would say corrupt; nothing is remembered for this answer.
  bool is_damaged(const Digest& digest) const;

 private:
  const Backend& backend_;
  mutable Recent<Architecture, 16> recent_;
};

}  // namespace freshet
