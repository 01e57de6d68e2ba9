// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "bindings/cli/frame/output.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

constexpr Duration kBetweenDrawings = std::chrono::milliseconds(100);
constexpr std::size_t kCells = 24;

void write_to_terminal(const std::string& text) { (void)!::write(STDERR_FILENO, text.data(), text.size()); }

}  // namespace

std::string progress_text(const std::string& label, std::uint64_t done, std::uint64_t total, Duration elapsed) {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string text = label + " ";
  if (total == 0) {
    text += human_bytes(done);
  } else {
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const auto full = static_cast<std::size_t>(share * kCells);
    std::string bar(kCells, ' ');
    std::fill_n(bar.begin(), full, '=');
    if (full < kCells) bar[full] = '>';
    text += format("[{}] {} of {}", bar, human_bytes(done), human_bytes(total));
  }
  // A rate over less than a second says little.
  if (seconds < 1 || rate < 1) return text;
  text += format(", {}/s", human_bytes(static_cast<std::uint64_t>(rate)));
  if (total > done) text += format(", {:.0f} s left", static_cast<double>(total - done) / rate);
  return text;
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), visible_(::isatty(STDERR_FILENO) == 1), started_(system_clock().now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) write_to_terminal("\r\x1b[K");
}

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  if (!visible_) return;
  const Time now = system_clock().now();
  if (shown_ && now - drawn_ < kBetweenDrawings) return;
  shown_ = true;
  drawn_ = now;
  write_to_terminal("\r" + progress_text(label_, done, total, now - started_) + "\x1b[K");
}

}  // namespace freshet::cli
