#include "transport/zmq/rejects.h"

#include <cstdio>

#include "core/format.h"

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
  // Straight to stderr: stdout belongs to the program, and so does the choice of a logger.
  const std::string line = format("freshet: {}: {} ({} since the last such line)\n", who_, reason, unlogged_);
  std::fwrite(line.data(), 1, line.size(), stderr);
  unlogged_ = 0;
}

}  // namespace freshet
