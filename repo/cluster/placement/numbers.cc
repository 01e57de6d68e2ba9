// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/placement/numbers.h"

#include <algorithm>
#include <array>

#include "core/base/format.h"
#include "repo/registrar/registrar_records.h"

namespace freshet::cluster {
namespace {

constexpr int kNumberTriesMax = 64;  ///< Each one is lost to somebody else's success.

}  // namespace

Result<VersionNumber> next_number(ProviderRepository& registrar, const Placement& placement, const std::string& model,
                                  VersionNumber wanted) {
  if (wanted > kGivenNumberMax) {
    return fail(Code::invalid_argument, format("number {} of {} is above {}", wanted, model, kGivenNumberMax));
  }
  const SharedRecord placed{.key = kPlacementKey, .value = placement.encode()};
  for (int tries = 0; tries < kNumberTriesMax; ++tries) {
    FRESHET_ASSIGN(const SharedRecord record, registrar.shared_record(kNumberPrefix + model));
    FRESHET_ASSIGN(const VersionNumber last, last_number(record));
    FRESHET_ASSIGN(const VersionNumber next_given, number_after(model, last));
    const VersionNumber given = std::max(next_given, wanted);
    const std::array expected{placed, record};
    const SharedRecord next = number_record(model, given);
    const Status changed = registrar.change_shared_records(expected, std::span(&next, 1));
    if (changed) return given;
    if (changed.error().code() != Code::failed_precondition) return fail(changed.error());
    FRESHET_ASSIGN(const SharedRecord now, registrar.shared_record(kPlacementKey));
    if (now != placed) return fail(Code::failed_precondition, "the registrar knows another placement");
  }
  return fail(Code::unavailable, format("too many callers ask for numbers of {} at once; try again", model));
}

}  // namespace freshet::cluster
