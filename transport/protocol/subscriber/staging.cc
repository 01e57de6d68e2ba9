// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/staging.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::protocol {

std::optional<Staging::Ready> Staging::aim_at(VersionNumber number, bool by_hand) {
  by_hand_ = by_hand;
  if (number == target_) return std::nullopt;
  target_ = number;
  failed_.reset();
  return std::exchange(ready_, std::nullopt);
}

std::optional<Staging::Ready> Staging::on_candidate(VersionNumber number) {
  if (number == 0 && by_hand_) return std::nullopt;
  return aim_at(number, false);
}

Result<std::optional<Staging::Ready>> Staging::ask(VersionNumber number) {
  if (target_ != 0 && !by_hand_) {
    return fail(Code::failed_precondition, format("the group is staging @{}", target_));
  }
  if (number == target_) failed_.reset();  // Asked for once more.
  return aim_at(number, true);
}

std::optional<Staging::Ready> Staging::forget(VersionNumber number) {
  if (!by_hand_ || target_ != number) return std::nullopt;
  return aim_at(0, false);
}

void Staging::on_staged(const Ready& ready) {
  FRESHET_CHECK(ready.number == target_ && !ready_);
  ready_ = ready;
}

void Staging::on_failed(Error why) { failed_ = std::move(why); }

Staging::Ready Staging::take() {
  FRESHET_CHECK(ready_.has_value());
  const Ready ready = *std::exchange(ready_, std::nullopt);
  target_ = 0;
  by_hand_ = false;
  return ready;
}

std::optional<Staged> Staging::word(SessionId session, std::uint64_t turn) const {
  if (target_ == 0 || by_hand_ || (!ready_ && !failed_)) return std::nullopt;
  return Staged{.session = session, .number = target_, .failed = failed_, .turn = turn};
}

}  // namespace freshet::protocol
