// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A session as `freshet top` shows it.

#include "transport/protocol/publisher/publisher_machine.h"
#include "transport/publisher.h"

namespace freshet {

inline SubscriberStat subscriber_stat(const protocol::PublisherMachine::SessionStat& session) {
  return SubscriberStat{.label = session.label,
                        .pid = session.pid,
                        .every = session.mode == protocol::Mode::every,
                        .silent = session.silent,
                        .serving = session.serving,
                        .held = session.held,
                        .queued_versions = session.queued_versions,
                        .gaps = session.gaps,
                        .channel = std::string(protocol::to_string(session.channel)),
                        .channel_why = session.channel_why,
                        .serves = session.serves,
                        .member = session.member,
                        .epoch = session.epoch,
                        .staged = session.staged,
                        .failed = session.failed,
                        .behind = session.behind};
}

}  // namespace freshet
