// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>

#include "core/base/format.h"

namespace freshet::live {
namespace {

constexpr double kRecentSeconds = 2;

std::string loss_text(double loss) { return std::isfinite(loss) ? format("{:.2f}", loss) : "-"; }

std::size_t columns_of(std::FILE* out) {
  winsize size = {};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string progress_text(const Tally& tally, double seconds) {
  const std::uint64_t lag = tally.newest_version - std::min(tally.newest_served, tally.newest_version);
  const double latency = tally.last_update_latency_ms();
  std::string text = format("{:5.1f} s", seconds);
  if (tally.failed_requests() > 0) text += format("  FAILED {}", tally.failed_requests());
  if (tally.torn_reads() > 0) text += format("  TORN {}", tally.torn_reads());
  if (!tally.repository_error.empty()) text += "  repository failing";
  text +=
      format("  step {}  loss {} served {}  v{} served v{} lag {}  sent {}", tally.steps,
             loss_text(tally.recent_trained_loss(kRecentSeconds)), loss_text(tally.recent_served_loss(kRecentSeconds)),
             tally.newest_version, tally.newest_served, lag, people_bytes(tally.bytes_published));
  if (std::isfinite(latency)) text += format("  latency {:.1f} ms", latency);
  text += format("  requests {}", tally.requests());
  return text;
}

Progress::Progress(std::FILE* out)
    : out_(out),
      terminal_(::isatty(::fileno(out)) == 1),
      due_(terminal_ ? Duration(std::chrono::milliseconds(200)) : Duration(std::chrono::seconds(1))) {}

void Progress::show(const Tally& tally, double seconds, Time now) {
  if (!due_.due(now)) return;
  std::string text = progress_text(tally, seconds);
  if (terminal_) {
    text = text.substr(0, columns_of(out_) - 1);
    std::fprintf(out_, "\r\033[K%s", text.c_str());
  } else {
    std::fprintf(out_, "%s\n", text.c_str());
  }
  std::fflush(out_);
  shown_ = true;
}

void Progress::say(const std::string& text) {
  if (terminal_ && shown_) std::fprintf(out_, "\r\033[K");
  shown_ = false;
  std::fprintf(out_, "%s\n", text.c_str());
  std::fflush(out_);
}

}  // namespace freshet::live
