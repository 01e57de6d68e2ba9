// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Between an ActivationRequest, as programs write it, and the protocol's Activate and Activated. Pure functions.

#include "transport/current.h"
#include "transport/protocol/messages.h"

namespace freshet {

/// invalid_argument when something in it is out of range.
Status check_request(const ActivationRequest& request);

/// failed_precondition when the request expects another epoch.
Status check_expected(const std::string& model, const ActivationRequest& request, const CurrentVersion& current);

/// Asks for it as long as `expected` is current, in whatever version publishes have advanced it to. REQUIRES:
/// check_request passed.
protocol::Activate activate_message(const std::string& model, const ActivationRequest& request,
                                    const CurrentVersion& expected, std::uint64_t id);

Result<ActivationReport> report_of(const protocol::Activated& activated);

/// How long the answer may take: the request's time, the members', and some for the way.
Duration patience_for(const ActivationRequest& request);

}  // namespace freshet
