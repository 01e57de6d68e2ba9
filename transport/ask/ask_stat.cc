// SPDX-License-Identifier: Apache-2.0
#include "transport/ask/ask_stat.h"

#include <utility>

#include "transport/zmq/ask_hub.h"

namespace freshet {

Result<std::string> ask_stat(const StatQuery& query, Duration at_most, const std::stop_token& stop) {
  const auto is_answer = [](const protocol::Message& message) {
    return std::holds_alternative<protocol::StatReply>(message);
  };
  FRESHET_ASSIGN(protocol::Message answer, ask_hub({.model = query.model,
                                                    .at = query.at,
                                                    .directory = query.directory,
                                                    .security = query.security,
                                                    .request = protocol::StatRequest{.model = query.model},
                                                    .is_answer = is_answer},
                                                   at_most, stop));
  return std::move(std::get<protocol::StatReply>(answer).json);
}

}  // namespace freshet
