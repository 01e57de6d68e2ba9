// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One question to a publisher's hub over a control connection of its own, asked again now and then until it is
/// answered: the first one may have gone to a publisher that died.

#include <functional>
#include <stop_token>
#include <string>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "transport/protocol/messages.h"
#include "transport/security.h"

namespace freshet {

struct HubQuestion {
  std::string model;      ///< For the directory.
  std::string at;         ///< Address of the control socket; empty: ask the directory.
  std::string directory;  ///< Empty for the default.
  const SecurityOptions& security;
  protocol::Message request;
  std::function<bool(const protocol::Message&)> is_answer;
};

/// timed_out when no answer came; not_found when nobody publishes the model; failed_precondition when keys are missing
/// or refused; invalid_argument for a bad address; cancelled when a stop is asked for. Any thread.
Result<protocol::Message> ask_hub(const HubQuestion& question, Duration at_most, const std::stop_token& stop);

}  // namespace freshet
