// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Compares two versions' owner maps. Private to this room.

#include <functional>

#include "repo/repository.h"

namespace freshet {

/// Repository::diff(), of two records; `name_of` names writers, or answers an empty name.
VersionDiff diff_of(const VersionRecord& a, const VersionRecord& b,
                    const std::function<VersionName(const VersionId& writer)>& name_of);

}  // namespace freshet
