// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Asks a publisher how it is doing, from outside its process, as `freshet top` does.

#include <stop_token>
#include <string>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "transport/security.h"

namespace freshet {

struct StatQuery {
  std::string model;      ///< Empty: all models of the endpoint; `at` is then required.
  std::string at;         ///< Address of the publisher's control socket; empty: ask the host directory.
  std::string directory;  ///< Folder of the host directory; empty for the default.
  SecurityOptions security;
};

/// A JSON object, {"models": [...]}, each with the members of PublisherStat (WIRE.md, StatReply). It is the publisher's
/// word: the reader checks it. Any thread.
///
/// Errors: not_found when nobody publishes the model; timed_out when the publisher does not answer; invalid_argument
/// for a bad address or for one of another host without keys; failed_precondition when keys are missing or refused;
/// cancelled when a stop is asked for.
Result<std::string> ask_stat(const StatQuery& query, Duration at_most, const std::stop_token& stop = {});

}  // namespace freshet
