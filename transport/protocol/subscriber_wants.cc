// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "transport/protocol/subscriber_machine.h"

// What is asked for, and how the answers are taken: a Want is outstanding, or waits at the publisher for what comes.

namespace freshet::protocol {
namespace {

constexpr int kGrantPatienceParts = 4;  ///< Of retry_after: how long after the news a grant that waits may come.

}  // namespace

void SubscriberMachine::on(Grant grant, Time now) {
  const auto entry = sessions_.find(grant.session);
  if (entry == sessions_.end() || grant.grant <= entry->second.grants_seen) return;
  Session& session = entry->second;
  session.grants_seen = grant.grant;
  const bool is_ours = grant.session == current_;
  if (is_ours) heard(now);
  if (is_ours && waiting_ && waiting_->want.request == grant.request) want_ = std::exchange(waiting_, std::nullopt);
  if (!is_answer(grant)) return send_held(grant.session, session);
  const bool stage = want_->want.exactly != 0;
  want_.reset();
  newest_known_ = std::max(newest_known_, grant.number);
  if (!stage && is_overtaken(grant)) {
    send_held(grant.session, session);
    return consider_want(now);
  }
  const bool asked_for =
      options_.mode == Mode::every
          ? grant.number > position_
          : Current{.epoch = grant.epoch, .version = grant.number}.comes_after(position_epoch_, position_);
  if (!stage && !asked_for) {  // Ask again, but not in a tight circle.
    want_not_before_ = now + options_.retry_after;
    return send_held(grant.session, session);
  }
  ++session.held[grant.number];
  installing_ = Installing{.session = grant.session,
                           .number = grant.number,
                           .gap_before = grant.gap_before,
                           .epoch = grant.epoch,
                           .stage = stage,
                           .channel = grant.channel};
  grant.gap_before += given_up_;  // For whoever takes the version; gaps_ has counted those already.
  actions_.emplace_back(action::Install{.grant = std::move(grant), .granted_at = now, .stage = stage});
}

/// Granted before something else was decided, of which we know already.
bool SubscriberMachine::is_overtaken(const Grant& grant) const {
  return options_.mode == Mode::latest && grant.number != known_.version && grant.epoch < known_.epoch &&
         known_.epoch > serving_epoch_;
}

bool SubscriberMachine::is_answer(const Grant& grant) const {
  return grant.session == current_ && phase_ == Phase::following && want_ && want_->want.request == grant.request &&
         want_->want.channel == grant.channel && !installing_ &&
         (want_->want.exactly == 0 || want_->want.exactly == grant.number);
}

void SubscriberMachine::on_want_refused(const Refusal& refusal, Time now) {
  const Outstanding outstanding = *std::exchange(want_, std::nullopt);
  const Want& refused = outstanding.want;
  heard(now);
  if (refusal.code != Code::not_found) last_refusal_ = refusal.message;
  on_current(refusal.current, now);
  const bool may_pass_by = refusal.code == Code::unavailable || refusal.code == Code::timed_out ||
                           refusal.code == Code::out_of_space || refusal.code == Code::failed_precondition;
  if (refused.exactly != 0 && !may_pass_by) {
    if (refused.exactly == staging_.wanted()) staging_.on_failed(Error(refusal.code, refusal.message));
    say_staged();
    return consider_want(now);
  }
  switch (refusal.code) {
    case Code::not_found:
      // The publisher knows best: whatever news had said otherwise was wrong.
      newest_known_ = refusal.newest;
      if (options_.mode == Mode::latest) {
        on_nothing_current(refusal, outstanding, now);
      } else if (refusal.newest > position_) {
        want_not_before_ = now + options_.retry_after;
      }
      break;
    case Code::unavailable:
    case Code::timed_out:
    case Code::out_of_space:
    case Code::failed_precondition: want_not_before_ = now + options_.retry_after; break;
    default: hopeless_up_to_ = std::max(hopeless_up_to_, refusal.newest); hopeless_ = refusal.current;
  }
  consider_want(now);
}

void SubscriberMachine::consider_want(Time now) {
  if (!has_cause_to_ask()) return consider_waiting(now);
  if (now < want_not_before_) return;
  const bool for_staging = options_.mode == Mode::latest && !wants_current();
  if (waiting_ && !for_staging) return expect_grant(now);
  waiting_.reset();  // It asks for another version; the publisher passes it over for the new Want.
  const Want want{.session = current_,
                  .request = ++last_request_,
                  .after = position_,
                  .known_architectures = architectures_,
                  .after_epoch = position_epoch_,
                  .channel = channel_->offer.kind,
                  .exactly = for_staging ? staging_.wanted() : 0};
  want_ = Outstanding{.want = want,
                      .retry_at = now + options_.retry_after,
                      .pause = options_.retry_after,
                      .known = known_,
                      .news_heard = news_heard_};
  send(want);
}

bool SubscriberMachine::has_cause_to_ask() const {
  if (phase_ != Phase::following || !channel_ || !channel_->open || want_ || installing_) return false;
  if (options_.mode == Mode::latest) return wants_current() || staging_.wanted() != 0;
  if (delivered_.size() >= options_.installs_in_flight_max) return false;
  return newest_known_ > std::max(position_, hopeless_up_to_);
}

/// Asks for what is not there yet, so that it comes without having to be announced and asked for.
void SubscriberMachine::consider_waiting(Time now) {
  const bool attached = phase_ == Phase::following && channel_ && channel_->open && !claim_until_;
  const bool follows = options_.mode == Mode::latest && !options_.staged;
  if (!attached || !follows || want_ || installing_ || waiting_ || !may_wait_) return;
  if (known_.comes_after(position_epoch_, position_)) return;
  const Want want{.session = current_,
                  .request = ++last_request_,
                  .after = position_,
                  .known_architectures = architectures_,
                  .after_epoch = position_epoch_,
                  .channel = channel_->offer.kind,
                  .waits = true};
  waiting_ = Outstanding{.want = want, .retry_at = now, .pause = options_.retry_after, .known = known_};
  send(want);
}

/// The news overtook the grant, which takes another way; or the grant does not come.
void SubscriberMachine::expect_grant(Time now) {
  want_ = std::exchange(waiting_, std::nullopt);
  want_->want.waits = false;
  want_->known = known_;  // If it has to be repeated, it asks for what was heard of by now.
  want_->news_heard = news_heard_;
  want_->retry_at = now + options_.retry_after / kGrantPatienceParts;
}

void SubscriberMachine::repeat_want(Time now) {
  want_->pause = std::min<Duration>(2 * want_->pause, kPauseGrowthMax * options_.retry_after);
  want_->retry_at = now + want_->pause;
  send(want_->want);
}

}  // namespace freshet::protocol
