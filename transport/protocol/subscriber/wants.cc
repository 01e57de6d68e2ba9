// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/wants.h"

#include <algorithm>

namespace freshet::protocol {
namespace {

constexpr int kGrantPatienceParts = 4;  ///< Of retry_after: how long after the news a grant that waits may come.
constexpr int kPauseGrowthMax = 8;      ///< A pause that grows stops at this many times retry_after.
constexpr std::size_t kArchitecturesNamedMax = 4;

}  // namespace

Want Wants::filled(Want want) {
  want.request = ++last_request_;
  want.known_architectures = architectures_;
  return want;
}

void Wants::ask(Want want, const Current& known, std::uint64_t news_heard, Time now) {
  waiting_.reset();  // It asks for another version; the publisher passes it over for the new Want.
  want_ = Outstanding{.want = filled(std::move(want)),
                      .retry_at = now + retry_after_,
                      .pause = retry_after_,
                      .known = known,
                      .news_heard = news_heard};
  out_.send(want_->want);
}

void Wants::wait(Want want, const Current& known, Time now) {
  if (want_ || installing_ || waiting_ || !may_wait_) return;
  want.waits = true;
  waiting_ = Outstanding{.want = filled(std::move(want)), .retry_at = now, .pause = retry_after_, .known = known};
  out_.send(waiting_->want);
}

void Wants::expect_grant(const Current& known, std::uint64_t news_heard, Time now) {
  want_ = std::exchange(waiting_, std::nullopt);
  want_->want.waits = false;
  want_->known = known;  // If it has to be repeated, it asks for what was heard of by now.
  want_->news_heard = news_heard;
  want_->retry_at = now + retry_after_ / kGrantPatienceParts;
}

void Wants::repeat(Time now) {
  if (!want_ || now < want_->retry_at) return;
  want_->pause = std::min<Duration>(2 * want_->pause, kPauseGrowthMax * retry_after_);
  want_->retry_at = now + want_->pause;
  out_.send(want_->want);
}

bool Wants::on_answered(std::uint64_t request) {
  if (!waiting_ || waiting_->want.request != request) return false;
  want_ = std::exchange(waiting_, std::nullopt);
  return true;
}

void Wants::on_installed(const Installing& done) {
  install_pause_ = Duration(0);
  if (!done.stage) may_wait_ = keeps_wants_;
}

void Wants::on_install_failed(Time now) {
  install_pause_ = std::clamp(2 * install_pause_, retry_after_, kPauseGrowthMax * retry_after_);
  not_before_ = now + install_pause_;
}

bool Wants::may_fetch_again(VersionNumber number) { return std::exchange(unproved_, number) != number; }

void Wants::on_architecture_known(const Digest& digest) {
  std::erase(architectures_, digest);
  architectures_.push_back(digest);
  if (architectures_.size() > kArchitecturesNamedMax) architectures_.erase(architectures_.begin());
}

}  // namespace freshet::protocol
