// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/fetch_ahead.h"

#include <cstdint>
#include <system_error>

namespace freshet::levels {
namespace {

/// Small tensors are fetched together, so many bytes at least.
constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;

}  // namespace

void FetchAhead::begin_next() {
  next_ = come_;
  for (std::uint64_t bytes = 0; next_ < wanted_.size() && bytes < kBatchBytes; ++next_) {
    bytes += wanted_[next_].out.size();
  }
  const auto fetch = [this](const std::stop_token& end) {
    fetched_ = fetch_(std::span(wanted_).subspan(come_, next_ - come_), end);
  };
  try {
    ahead_ = std::jthread(fetch);
  } catch (const std::system_error&) {
    fetch({});  // No thread is left.
  }
}

Status FetchAhead::wait_for(std::size_t count) {
  while (come_ < count) {
    if (next_ == come_) begin_next();
    if (ahead_.joinable()) ahead_.join();
    if (!fetched_) {
      next_ = come_;
      return fetched_;
    }
    come_ = next_;
    if (come_ < wanted_.size()) begin_next();
  }
  return {};
}

}  // namespace freshet::levels
