// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/rejects.h"

#include "core/base/format.h"
#include "core/base/log.h"

namespace freshet {
namespace {
constexpr Duration kBetweenLines = std::chrono::seconds(10);
}  // namespace

void Rejects::count(std::string_view reason, Time now) {
  ++total_;
  ++unlogged_;
  if (logged_ever_ && now - logged_at_ < kBetweenLines) return;
  logged_ever_ = true;
  logged_at_ = now;
  log_line(LogLevel::warning, format("{}: {} ({} since the last line about it)", who_, reason, unlogged_));
  unlogged_ = 0;
}

}  // namespace freshet
