// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What other threads ask of a subscriber's loop, and wait for. Any thread but the loop's.

#include "transport/subscribe/subscriber_loop.h"

namespace freshet::detail {

Status stage(SubscriberLoop& loop, VersionNumber version, Duration at_most);
Result<VersionNumber> commit_staged(SubscriberLoop& loop);

/// Waits until what is served is as new as the request wants it. `asked`: when somebody asked. Errors as
/// Subscriber::snapshot_at_least.
Status wait_until_new_enough(SubscriberLoop& loop, const SnapshotRequest& request, Time asked, Time deadline);

}  // namespace freshet::detail
