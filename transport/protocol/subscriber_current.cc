// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "transport/protocol/subscriber_machine.h"

// What a subscriber does about what is current: it follows the publisher's pair, and as a member of the group stages
// the candidate beforehand.

namespace freshet::protocol {
namespace {

constexpr int kAbsentPauses = 8;

}  // namespace

/// News of the pair, in any order: it only grows.
void SubscriberMachine::on_current(const Current& pair, Time now) {
  if (!pair.comes_after(known_.epoch, known_.version)) return;
  known_ = pair;
  absent_why_.clear();
  absent_until_.reset();
  if (options_.mode == Mode::latest) follow(now);
}

void SubscriberMachine::on_record(const Current& pair, Time now) {
  if (options_.mode == Mode::every || pair.epoch <= known_.epoch) return;
  on_current(pair, now);
  consider_want(now);
}

/// Another incarnation starts from what the directory remembers, which may lag behind what we know.
void SubscriberMachine::on_new_incarnation(const Current& pair, Time now) {
  known_ = pair;
  absent_why_.clear();
  absent_until_.reset();
  if (options_.mode == Mode::every) return;
  hopeless_ = {};
  turn_ = 0;
  candidate_ = 0;
  follow(now);
}

/// An activation is obeyed at once: with the staged version, by its name alone if it is the served one, or else by
/// fetching it, before which everything else on its way is abandoned, so that it is not served after this.
void SubscriberMachine::follow(Time now) {
  if (known_.epoch <= serving_epoch_ || known_.version == 0) return;
  const bool is_staged = staging_.ready() && staging_.ready()->number == known_.version;
  if (!is_staged && known_.version != serving_) {
    if (installing_ && installing_->number != known_.version) abandon_install();
    if (want_ && want_->want.exactly != 0) want_.reset();
    return;
  }
  if (installing_) abandon_install();
  want_.reset();
  waiting_.reset();
  if (is_staged) swap_staged(known_.epoch);
  position_epoch_ = serving_epoch_ = known_.epoch;
  position_ = serving_;
  // So that the publisher knows how long two versions were served side by side.
  if (phase_ == Phase::following) beat(now);
}

void SubscriberMachine::on_refuted(VersionNumber number, Time now) {
  if (options_.mode == Mode::every || number != serving_) return;
  serving_ = 0;
  position_ = 0;
  position_epoch_ = serving_epoch_ = 0;
  confirmed_at_.reset();
  absent_until_.reset();
  waiting_.reset();  // It names what we have no more.
  consider_want(now);
}

void SubscriberMachine::swap_staged(std::uint64_t epoch) {
  const Staging::Ready ready = staging_.take();
  serving_ = ready.number;
  highest_seen_ = std::max(highest_seen_, ready.number);
  actions_.emplace_back(action::SwapStaged{.session = ready.session, .number = ready.number, .epoch = epoch});
}

void SubscriberMachine::abandon_install() {
  const Installing abandoned = *std::exchange(installing_, std::nullopt);
  actions_.emplace_back(action::Abandon{.session = abandoned.session, .number = abandoned.number});
  drop(abandoned.session, abandoned.number);
}

void SubscriberMachine::on_candidate(VersionNumber candidate, std::uint64_t turn, Time now) {
  if (!options_.staged || turn < turn_) return;
  const bool is_news = turn != turn_ || candidate != candidate_;
  turn_ = turn;
  candidate_ = candidate;
  unstage(staging_.on_candidate(candidate == serving_ ? 0 : candidate));
  stop_staging_others();
  if (is_news) say_staged();
  consider_want(now);
}

void SubscriberMachine::unstage(const std::optional<Staging::Ready>& ready) {
  if (!ready) return;
  actions_.emplace_back(action::DropStaged{.session = ready->session, .number = ready->number});
}

void SubscriberMachine::stop_staging_others() {
  if (installing_ && installing_->stage && installing_->number != staging_.target()) abandon_install();
  if (want_ && want_->want.exactly != 0 && want_->want.exactly != staging_.target()) want_.reset();
}

Status SubscriberMachine::stage(VersionNumber number, Time now) {
  if (!options_.staged) {
    return fail(Code::failed_precondition, "stage() needs a subscriber that was opened with `staged`");
  }
  return stage_by_hand(number, now);
}

Status SubscriberMachine::bring(VersionNumber number, Time now) {
  if (options_.mode == Mode::every || options_.staged) {
    return fail(Code::failed_precondition,
                options_.staged ? "a member of a group stages versions: use stage() and staged_snapshot()"
                                : "a subscriber of every version gets each one by next(), and none by its number");
  }
  return stage_by_hand(number, now);
}

void SubscriberMachine::forget(VersionNumber number, Time now) {
  if (options_.staged) return;
  unstage(staging_.forget(number));
  stop_staging_others();
  consider_want(now);
}

Status SubscriberMachine::stage_by_hand(VersionNumber number, Time now) {
  if (number == serving_) return fail(Code::failed_precondition, format("@{} is being served", number));
  FRESHET_ASSIGN(const std::optional<Staging::Ready> before, staging_.ask(number));
  unstage(before);
  stop_staging_others();
  consider_want(now);
  return {};
}

Result<VersionNumber> SubscriberMachine::commit_staged(Time now) {
  if (!staging_.ready()) return fail(Code::failed_precondition, "no version is staged");
  if (!staging_.is_by_hand()) {
    return fail(Code::failed_precondition,
                format("@{} is the group's candidate: the group commits it", staging_.target()));
  }
  swap_staged(serving_epoch_);
  position_ = serving_;
  if (phase_ == Phase::following) beat(now);
  return serving_;
}

/// Whether the current version is another one than we have and is to be got now.
bool SubscriberMachine::wants_current() const {
  if (known_.version == 0 || absent_until_ || !known_.comes_after(position_epoch_, position_)) return false;
  if (known_.epoch == hopeless_.epoch && known_.version == hopeless_.version) return false;
  // What a publish made current, a member takes when somebody decides so.
  return !options_.staged || serving_ == 0 || known_.epoch > position_epoch_;
}

/// The publisher has nothing for us. If that is because it has not got what is current (it was started anew under a
/// hold, or relays what has not come yet), it is asked again with its next news, or after a while.
void SubscriberMachine::on_nothing_current(const Refusal& refusal, const Outstanding& refused, Time now) {
  // The publisher knows best, but for what was heard after it was asked.
  if (known_ == refused.known) known_ = refusal.current;
  if (!wants_current()) return;
  // News takes another way than answers: what was refused may have come since.
  if (news_heard_ != refused.news_heard) return;
  absent_why_ = last_refusal_ = refusal.message;
  absent_until_ = now + kAbsentPauses * options_.retry_after;
}

void SubscriberMachine::on_staging_done(const Installing& done, const Status& status, Time now) {
  if (status) {
    install_pause_ = Duration(0);
    if (done.number == staging_.wanted()) {
      staging_.on_staged({.session = done.session, .number = done.number});
    } else {
      unstage(Staging::Ready{.session = done.session, .number = done.number});
    }
    follow(now);  // It may have been decided meanwhile.
  } else {
    on_install_failed(done, status.error(), now);
  }
  say_staged();
}

void SubscriberMachine::say_staged() {
  if (phase_ != Phase::following) return;
  if (candidate_ != 0 && candidate_ == serving_) {
    // What it serves counts as staged, unless it is about to be replaced by what was activated meanwhile.
    const bool stays = known_.epoch <= serving_epoch_ || absent_until_;
    if (stays) send(Staged{.session = current_, .number = candidate_, .turn = turn_});
  } else if (auto word = staging_.word(current_, turn_)) {
    send(std::move(*word));
  }
}

/// A Pong says what was current at some time after its Ping was sent. Only one that finds us where everybody is to be
/// keeps us in good standing.
void SubscriberMachine::on_answered(const Pong& pong, Time now) {
  const Time sent{Duration(pong.ping_ns)};
  if (sent > now || serving_ == 0) return;
  const bool newest = options_.mode == Mode::every
                          ? pong.newest == serving_
                          : pong.current.epoch == serving_epoch_ && pong.current.version == serving_;
  if (newest) confirmed_at_ = std::max(confirmed_at_.value_or(sent), sent);
  if (pong.current.epoch <= serving_epoch_) standing_from_ = std::max(standing_from_.value_or(sent), sent);
}

std::optional<Time> SubscriberMachine::lapses_at() const {
  if (!options_.staged) return std::nullopt;
  return standing_from_ ? *standing_from_ + membership_ : Time::min();
}

void SubscriberMachine::probe(Time now) {
  if (phase_ == Phase::following) beat(now);
}

}  // namespace freshet::protocol
