// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What other threads ask of a subscriber's loop, and wait for. Any thread but the loop's.

#include <stop_token>

#include "transport/subscribe/subscriber_loop.h"

namespace freshet::detail {

// Where a stop token is given, its request ends the wait with `cancelled`.

Status stage(SubscriberLoop& loop, VersionNumber version, Duration at_most, const std::stop_token& stop);
/// A kept version, pinned: fetched and proved beside the served one, unless it is that one. One thread at a time.
/// Errors as Subscriber::snapshot_of.
Result<PinTable::Pin> bring(SubscriberLoop& loop, VersionNumber version, Time deadline, const std::stop_token& stop);
Result<VersionNumber> commit_staged(SubscriberLoop& loop, const std::stop_token& stop);

/// Waits until what is served is as new as the request wants it. `asked`: when somebody asked. Errors as
/// Subscriber::snapshot_at_least.
Status wait_until_new_enough(SubscriberLoop& loop, const SnapshotRequest& request, Time asked, Time deadline,
                             const std::stop_token& stop);

}  // namespace freshet::detail
