// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber/subscriber_versions.h"

#include <utility>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::protocol {
namespace {

constexpr int kAbsentPauses = 8;

/// Whether a version that could not be installed may be had later. Otherwise it is the version itself that is wrong.
bool may_be_had_later(Code code) {
  return code == Code::unavailable || code == Code::timed_out || code == Code::out_of_space || code == Code::io_error ||
         code == Code::cancelled || code == Code::failed_precondition;
}

}  // namespace

bool SubscriberVersions::on_welcome(const Welcome& welcome, bool same_publisher, Time now) {
  news_.on_welcome(welcome, same_publisher);
  if (same_publisher) {
    on_current(welcome.current, now);
  } else if (options_.mode == Mode::latest) {
    turn_ = 0;
    candidate_ = 0;
    follow(now);
  }
  return !position_.begins_anew_with(welcome);
}

void SubscriberVersions::on_open(Time now) {
  wants_.pause_until(now);
  beat(now);
  consider_want(now);
}

void SubscriberVersions::on_announcement(const Announcement& announcement, Time now) {
  const bool is_ours = announcement.model == options_.model && announcement.incarnation == session_.incarnation();
  if (!session_.is_attached() || !is_ours) return;
  news_.on_announcement(announcement);
  on_current(announcement.current, now);
  on_candidate(announcement.candidate, announcement.turn, now);
  consider_want(now);
}

void SubscriberVersions::on_current(const Current& pair, Time now) {
  if (news_.on_current(pair) && options_.mode == Mode::latest) follow(now);
}

void SubscriberVersions::on_record(const Current& pair, Time now) {
  if (options_.mode == Mode::every || pair.epoch <= news_.current().epoch) return;
  on_current(pair, now);
  consider_want(now);
}

/// An activation is obeyed at once: with the staged version, by its name alone if it is the served one, or else by
/// fetching it, before which everything else on its way is abandoned, so that it is not served after this.
void SubscriberVersions::follow(Time now) {
  const Current& known = news_.current();
  if (known.epoch <= position_.serving_epoch() || known.version == 0) return;
  const bool is_staged = staging_.ready() && staging_.ready()->number == known.version;
  if (!is_staged && known.version != position_.serving()) {
    if (wants_.installing() && wants_.installing()->number != known.version) abandon_install();
    if (wants_.want() && wants_.want()->want.exactly != 0) wants_.take_want();
    return;
  }
  abandon_install();
  wants_.forget();
  if (is_staged) swap_staged(known.epoch);
  position_.on_activated(known.epoch);
  // So that the publisher knows how long two versions were served side by side.
  if (session_.is_following()) beat(now);
}

void SubscriberVersions::on_refuted(VersionNumber number, Time now) {
  if (options_.mode == Mode::every || number != position_.serving()) return;
  position_.on_refuted();
  news_.forget_confirmed();
  news_.forget_absent();
  wants_.forget_waiting();  // It names what we have no more.
  consider_want(now);
}

void SubscriberVersions::on_taken(VersionNumber number, Time now) {
  if (position_.on_taken(number)) consider_want(now);
}

void SubscriberVersions::swap_staged(std::uint64_t epoch) {
  const Staging::Ready ready = staging_.take();
  position_.on_swapped(ready.number);
  out_.add(action::SwapStaged{.session = ready.session, .number = ready.number, .epoch = epoch});
}

void SubscriberVersions::abandon_install() {
  if (const auto abandoned = wants_.take_installing()) sessions_.abandon(abandoned->session, abandoned->number);
}

void SubscriberVersions::on_candidate(VersionNumber candidate, std::uint64_t turn, Time now) {
  if (!options_.staged || turn < turn_) return;
  const bool is_news = turn != turn_ || candidate != candidate_;
  turn_ = turn;
  candidate_ = candidate;
  unstage(staging_.on_candidate(candidate == position_.serving() ? 0 : candidate));
  stop_staging_others();
  if (is_news) say_staged();
  consider_want(now);
}

void SubscriberVersions::unstage(const std::optional<Staging::Ready>& ready) {
  if (!ready) return;
  out_.add(action::DropStaged{.session = ready->session, .number = ready->number});
}

void SubscriberVersions::stop_staging_others() {
  const auto& installing = wants_.installing();
  if (installing && installing->stage && installing->number != staging_.target()) abandon_install();
  const VersionNumber asked_for = wants_.want() ? wants_.want()->want.exactly : 0;
  if (asked_for != 0 && asked_for != staging_.target()) wants_.take_want();
}

Status SubscriberVersions::stage(VersionNumber number, Time now) {
  if (number == position_.serving()) return fail(Code::failed_precondition, format("@{} is being served", number));
  FRESHET_ASSIGN(const std::optional<Staging::Ready> before, staging_.ask(number));
  unstage(before);
  stop_staging_others();
  consider_want(now);
  return {};
}

void SubscriberVersions::forget(VersionNumber number, Time now) {
  if (options_.staged) return;
  unstage(staging_.forget(number));
  stop_staging_others();
  consider_want(now);
}

Result<VersionNumber> SubscriberVersions::commit_staged(Time now) {
  if (!staging_.ready()) return fail(Code::failed_precondition, "no version is staged");
  if (!staging_.is_by_hand()) {
    return fail(Code::failed_precondition,
                format("@{} is the group's candidate: the group commits it", staging_.target()));
  }
  swap_staged(position_.serving_epoch());
  if (session_.is_following()) beat(now);
  return position_.serving();
}

bool SubscriberVersions::wants_current() const {
  const Current& known = news_.current();
  if (known.version == 0 || news_.absent_until() || !position_.is_before(known) || news_.is_hopeless()) return false;
  // What a publish made current, a member takes when somebody decides so.
  return !options_.staged || position_.serving() == 0 || known.epoch > position_.epoch();
}

void SubscriberVersions::say_staged() {
  if (!session_.is_following()) return;
  if (candidate_ != 0 && candidate_ == position_.serving()) {
    // What it serves counts as staged, unless it is about to be replaced by what was activated meanwhile.
    const bool stays = news_.current().epoch <= position_.serving_epoch() || news_.absent_until();
    if (stays) out_.send(Staged{.session = sessions_.current(), .number = candidate_, .turn = turn_});
  } else if (auto word = staging_.word(sessions_.current(), turn_)) {
    out_.send(std::move(*word));
  }
}

void SubscriberVersions::beat(Time now) {
  session_.beats().on_beat(now);
  const SessionChannel& channel = session_.channel();
  told_behind_ = followers_.behind(position_.serving(), position_.serving_epoch());
  out_.send(Ping{.session = sessions_.current(),
                 .serving = position_.serving(),
                 .epoch = position_.serving_epoch(),
                 .staged = staging_.ready() ? staging_.ready()->number : 0,
                 .sent_ns = now.time_since_epoch().count(),
                 .channel_why = channel.offer() != nullptr ? shown(channel.why(), kLabelBytesMax) : std::string(),
                 .behind = told_behind_});
  say_staged();
  sessions_.repeat_held();
}

/// An activation waits at the publisher until nobody is behind.
void SubscriberVersions::on_followers(Time now) {
  const bool is_news = followers_.behind(position_.serving(), position_.serving_epoch()) != told_behind_;
  if (is_news && session_.is_following()) session_.beats().hurry(now);
}

void SubscriberVersions::on_pong(const Pong& pong, Time now) {
  if (!session_.is_following() || pong.session != sessions_.current()) return;
  if (pong.incarnation != session_.incarnation()) return session_.claim(now);
  session_.heard(now);
  news_.on_newest(pong.newest);
  on_current(pong.current, now);
  news_.on_answered(pong, options_.mode, position_, now);
  // What answers the Want that waits would have come before this: it was lost, or is not meant to.
  if (wants_current()) wants_.forget_waiting();
  on_candidate(pong.candidate, pong.turn, now);
  consider_want(now);
}

void SubscriberVersions::on_grant(Grant grant, Time now) {
  if (!sessions_.take_grant(grant)) return;
  if (grant.session == sessions_.current()) {
    session_.heard(now);
    wants_.on_answered(grant.request);
  }
  if (!is_answer(grant)) return sessions_.tell_held(grant.session);
  const bool stage = wants_.take_want()->want.exactly != 0;
  news_.on_newest(grant.number);
  if (!stage && is_overtaken(grant)) {
    sessions_.tell_held(grant.session);
    return consider_want(now);
  }
  const bool asked_for = options_.mode == Mode::every
                             ? grant.number > position_.number()
                             : position_.is_before({.epoch = grant.epoch, .version = grant.number});
  if (!stage && !asked_for) {  // Ask again, but not in a tight circle.
    wants_.pause_until(now + options_.retry_after);
    return sessions_.tell_held(grant.session);
  }
  sessions_.hold(grant.session, grant.number);
  wants_.begin_install({.session = grant.session,
                        .number = grant.number,
                        .gap_before = grant.gap_before,
                        .epoch = grant.epoch,
                        .stage = stage,
                        .channel = grant.channel});
  grant.gap_before += position_.given_up();  // For whoever takes the version; gaps() has counted those already.
  out_.add(action::Install{.grant = std::move(grant), .granted_at = now, .stage = stage});
}

/// Granted before something else was decided, of which we know already.
bool SubscriberVersions::is_overtaken(const Grant& grant) const {
  const Current& known = news_.current();
  return options_.mode == Mode::latest && grant.number != known.version && grant.epoch < known.epoch &&
         known.epoch > position_.serving_epoch();
}

bool SubscriberVersions::is_answer(const Grant& grant) const {
  const auto& want = wants_.want();
  return grant.session == sessions_.current() && session_.is_following() && want &&
         want->want.request == grant.request && want->want.channel == grant.channel && !wants_.installing() &&
         (want->want.exactly == 0 || want->want.exactly == grant.number);
}

void SubscriberVersions::on_installed(SessionId session, VersionNumber number, const Status& status, Time now) {
  const auto& installing = wants_.installing();
  if (!installing || installing->session != session || installing->number != number) return;
  const Wants::Installing done = *wants_.take_installing();
  if (!status) {
    on_install_failed(done, status.error(), now);
  } else {
    wants_.on_installed(done);
    if (done.fetched()) sessions_.drop(session, number);  // The bytes are our own.
    if (done.stage) {
      const Staging::Ready ready{.session = session, .number = number};
      number == staging_.wanted() ? staging_.on_staged(ready) : unstage(ready);
      follow(now);  // It may have been decided meanwhile.
    } else {
      const bool activated = position_.on_served(number, done.epoch, done.gap_before, session_.incarnation());
      session_.channel().worked(done.channel);
      session_.consider_better_channel(now);
      follow(now);  // The same version may have been activated anew meanwhile.
      if ((activated || options_.staged) && session_.is_following()) beat(now);
      // A `latest` subscriber's next Want tells it.
      if (options_.mode == Mode::every && session_.is_following()) session_.beats().hurry(now);
    }
  }
  if (done.stage) say_staged();
  consider_want(now);
}

void SubscriberVersions::on_install_failed(const Wants::Installing& failed, const Error& error, Time now) {
  sessions_.drop(failed.session, failed.number);
  const bool is_current = failed.session == sessions_.current();
  if (failed.fetched() && error.code() == Code::corrupt && wants_.may_fetch_again(failed.number)) {
    wants_.pause_until(now);
    if (is_current && session_.channel().is_fetching()) session_.channel_failed(error.message(), now);
    return;
  }
  if (!may_be_had_later(error.code())) {
    return failed.stage ? staging_.on_failed(error)
                        : position_.pass_over(failed.number, failed.epoch, failed.gap_before);
  }
  wants_.on_install_failed(now);
  if (is_current && session_.channel().count_failure(now)) session_.channel_failed(error.message(), now);
}

void SubscriberVersions::on_refused(const Refusal& refusal, Time now) {
  if (refusal.session != sessions_.current() || !session_.is_following()) return;
  if (wants_.on_answered(refusal.request)) wants_.on_waiting_refused();
  if (!wants_.want() || wants_.want()->want.request != refusal.request) return;
  on_want_refused(*wants_.take_want(), refusal, now);
  consider_want(now);
}

void SubscriberVersions::on_want_refused(const Wants::Outstanding& refused, const Refusal& refusal, Time now) {
  session_.heard(now);
  if (refusal.code != Code::not_found) session_.set_last_refusal(refusal.message);
  on_current(refusal.current, now);
  const bool may_pass_by = refusal.code == Code::unavailable || refusal.code == Code::timed_out ||
                           refusal.code == Code::out_of_space || refusal.code == Code::failed_precondition;
  if (may_pass_by) return wants_.pause_until(now + options_.retry_after);
  if (refused.want.exactly != 0) {
    if (refused.want.exactly == staging_.wanted()) staging_.on_failed(Error(refusal.code, refusal.message));
    return say_staged();
  }
  if (refusal.code != Code::not_found) return news_.set_hopeless(refusal.newest, refusal.current);
  news_.correct_newest(refusal.newest);
  if (options_.mode == Mode::latest) return on_nothing_current(refusal, refused, now);
  if (refusal.newest > position_.number()) wants_.pause_until(now + options_.retry_after);
}

/// The publisher has nothing for us. If that is because it has not got what is current (it was started anew under a
/// hold, or relays what has not come yet), it is asked again with its next news, or after a while.
void SubscriberVersions::on_nothing_current(const Refusal& refusal, const Wants::Outstanding& refused, Time now) {
  // The publisher knows best, but for what was heard after it was asked.
  if (news_.current() == refused.known) news_.correct_current(refusal.current);
  if (!wants_current()) return;
  // News takes another way than answers: what was refused may have come since.
  if (news_.heard() != refused.news_heard) return;
  session_.set_last_refusal(refusal.message);
  news_.set_absent(refusal.message, now + kAbsentPauses * options_.retry_after);
}

Want SubscriberVersions::next_want() const {
  return {.session = sessions_.current(),
          .after = position_.number(),
          .after_epoch = position_.epoch(),
          .channel = session_.channel().offer()->kind,
          .serving = position_.serving()};
}

void SubscriberVersions::consider_want(Time now) {
  if (!has_cause_to_ask()) return consider_waiting(now);
  if (now < wants_.not_before()) return;
  const bool for_staging = options_.mode == Mode::latest && !wants_current();
  if (wants_.is_waiting() && !for_staging) return wants_.expect_grant(news_.current(), news_.heard(), now);
  Want want = next_want();
  want.exactly = for_staging ? staging_.wanted() : 0;
  wants_.ask(std::move(want), news_.current(), news_.heard(), now);
}

bool SubscriberVersions::has_cause_to_ask() const {
  if (!session_.is_open() || !wants_.is_idle()) return false;
  if (options_.mode == Mode::latest) return wants_current() || staging_.wanted() != 0;
  return position_.untaken() < options_.installs_in_flight_max && news_.has_newer_than(position_.number());
}

void SubscriberVersions::consider_waiting(Time now) {
  const bool follows = options_.mode == Mode::latest && !options_.staged;
  if (!session_.is_open() || session_.is_claiming() || !follows || position_.is_before(news_.current())) return;
  wants_.wait(next_want(), news_.current(), now);
}

void SubscriberVersions::tick(Time now) {
  if (!session_.is_following()) return;
  if (news_.absent_until() && now >= *news_.absent_until()) news_.forget_absent();
  wants_.repeat(now);
  consider_want(now);
}

Time SubscriberVersions::next_tick() const {
  if (!session_.is_following()) return Time::max();
  Time next = news_.absent_until().value_or(Time::max());
  if (has_cause_to_ask()) next = std::min(next, wants_.not_before());
  if (wants_.want()) next = std::min(next, wants_.want()->retry_at);
  return next;
}

}  // namespace freshet::protocol
