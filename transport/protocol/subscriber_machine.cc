// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/subscriber_machine.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "core/base/digest.h"
#include "core/base/text.h"

namespace freshet::protocol {
namespace {

constexpr std::size_t kArchitecturesNamedMax = 4;

/// Whether a version that could not be installed may be had later. Otherwise it is the version itself that is wrong.
bool may_be_had_later(Code code) {
  return code == Code::unavailable || code == Code::timed_out || code == Code::out_of_space || code == Code::io_error ||
         code == Code::cancelled || code == Code::failed_precondition;
}

}  // namespace

SubscriberMachine::SubscriberMachine(Options options) : options_(std::move(options)), selector_(options_.channels) {
  if (options_.mode == Mode::every) {
    position_ = options_.after;
    position_incarnation_ = options_.after_incarnation;
  }
  highest_seen_ = position_;
}

void SubscriberMachine::on_start(Time now) {
  if (phase_ == Phase::idle) greet_anew(now);
}

void SubscriberMachine::on_message(Message message, Time now) {
  if (phase_ == Phase::idle || phase_ == Phase::stopped) return;
  const auto dispatch = [&](auto&& m) {
    using M = std::decay_t<decltype(m)>;
    if constexpr (std::is_same_v<M, Welcome> || std::is_same_v<M, Grant> || std::is_same_v<M, Refusal> ||
                  std::is_same_v<M, Pong> || std::is_same_v<M, UnknownSession>) {
      on(std::forward<decltype(m)>(m), now);
    }
    if constexpr (std::is_same_v<M, Announcement>) on_announcement(m, now);
  };
  std::visit(dispatch, std::move(message));
}

void SubscriberMachine::on(const Welcome& welcome, Time now) {
  if (phase_ == Phase::following && welcome.session == current_) {
    if (welcome.incarnation != incarnation_) return on_two_publishers(now);
    claim_until_.reset();
    waiting_.reset();  // It may have been said to the connection that broke.
    return heard(now);
  }
  if (phase_ != Phase::greeting || welcome.session != current_) return;
  heard(now);
  const bool same_publisher = welcome.incarnation == incarnation_;
  newest_known_ = same_publisher ? std::max(newest_known_, welcome.newest) : welcome.newest;
  if (!same_publisher) hopeless_up_to_ = 0;
  membership_ = welcome.membership_ms != 0 ? std::chrono::milliseconds(welcome.membership_ms) : kMembershipDefault;
  incarnation_ = welcome.incarnation;
  door_token_ = welcome.door_token;
  may_wait_ = keeps_wants_ = welcome.keeps_wants;
  if (!same_publisher) selector_.forget_failures();
  same_publisher ? on_current(welcome.current, now) : on_new_incarnation(welcome.current, now);
  if (!numbers_since_) numbers_since_ = 0;
  if (numbers_began_anew(welcome)) {
    numbers_since_ = welcome.incarnation;
    position_ = welcome.first_number - 1;
    position_incarnation_ = 0;
    owed_all_ = true;
    hello_at_ = now;
    return greet_anew(now);  // So that the publisher too counts from there.
  }
  take_offers(welcome);
  choose_channel(now);
}

/// The directory forgot what it gave out before (it does with its host), and this incarnation gives numbers again: what
/// was taken under them is not what is there now. Or what we were told to begin after was numbered by somebody else:
/// the publisher has not come so far.
bool SubscriberMachine::numbers_began_anew(const Welcome& welcome) const {
  if (options_.mode != Mode::every || position_incarnation_ == 0 || welcome.first_number == 0) return false;
  if (position_ < welcome.first_number) return false;
  return position_incarnation_ != welcome.incarnation || (serving_ == 0 && position_ > welcome.newest);
}

void SubscriberMachine::on_door_open(SessionId session, Time now) {
  if (phase_ != Phase::knocking || session != current_) {
    const auto entry = sessions_.find(session);
    if (entry == sessions_.end() || !entry->second.door_open)
      actions_.emplace_back(action::LeaveDoor{.session = session});
    return;
  }
  sessions_[session].door_open = true;
  sessions_[session].door_token = door_token_;
  channel_->open = true;
  phase_ = Phase::following;
  want_not_before_ = now;
  beat(now);
  consider_want(now);
}

void SubscriberMachine::on_door_closed(SessionId session, Time now) {
  if (session == current_ && phase_ == Phase::knocking && has_other_channel(now)) {
    return channel_failed("the door did not open", now);
  }
  if (session == current_ && phase_ == Phase::following && is_fetching()) {
    sessions_[session].door_open = false;
    return;
  }
  sessions_.erase(session);
  if (session != current_ || (phase_ != Phase::knocking && phase_ != Phase::following)) return;
  connected_ = false;
  greet_anew(now);
}

void SubscriberMachine::greet_anew(Time now) {
  close_channel();
  channel_.reset();
  const std::array<std::uint64_t, 2> seed{options_.session_seed, ++sessions_made_};
  current_ = std::max<SessionId>(1, digest_of(bytes_of(seed.data(), seed.size())).low);
  sessions_[current_] = {};
  want_.reset();
  last_request_ = 0;
  door_token_ = 0;
  claim_until_.reset();
  phase_ = Phase::greeting;
  if (hello_at_ <= now) say_hello(now);
}

void SubscriberMachine::say_hello(Time now) {
  hello_at_ = now + options_.retry_after;
  send(hello_for(current_, door_token_));
}

Hello SubscriberMachine::hello_for(SessionId session, std::uint64_t door_token) const {
  return {.session = session,
          .model = options_.model,
          .mode = options_.mode,
          .label = options_.label,
          .pid = options_.pid,
          .host = options_.host,
          .highest_seen = std::min(highest_seen_, kHighestSeenMax),
          .after = options_.mode == Mode::every ? position_ : 0,
          .door_token = door_token,
          .channels = selector_.options().usable,
          .staged = options_.staged,
          .serves = options_.serves,
          .owed_all = owed_all_ && position_ == 0};
}

void SubscriberMachine::leave_current_session() {
  const auto session = sessions_.find(current_);
  if (session == sessions_.end()) return;
  if (!session->second.held.empty()) return;  // Drained: LeaveDoor comes with the last unpin.
  if (phase_ == Phase::knocking || phase_ == Phase::following) {
    actions_.emplace_back(action::LeaveDoor{.session = current_});
  }
  sessions_.erase(session);
}

void SubscriberMachine::on_installed(SessionId session, VersionNumber number, Status status, Time now) {
  if (!installing_ || installing_->session != session || installing_->number != number) return;
  const Installing done = *std::exchange(installing_, std::nullopt);
  if (done.stage) {
    if (status && done.fetched()) drop(session, number);
    on_staging_done(done, status, now);
  } else if (status) {
    install_pause_ = Duration(0);
    may_wait_ = keeps_wants_;
    position_ = options_.mode == Mode::every ? std::max(position_, number) : number;
    highest_seen_ = std::max(highest_seen_, number);
    serving_ = number;
    position_epoch_ = done.epoch;
    const bool activated = std::exchange(serving_epoch_, done.epoch) != done.epoch;
    gaps_ += done.gap_before;
    given_up_ = 0;
    if (options_.mode == Mode::every) delivered_.insert(number);
    position_incarnation_ = incarnation_;
    selector_.worked(done.channel);
    if (channel_) channel_->failures = 0;
    if (done.fetched()) drop(session, number);  // The bytes are our own.
    consider_better_channel(now);
    follow(now);  // The same version may have been activated anew meanwhile.
    if ((activated || options_.staged) && phase_ == Phase::following) beat(now);
  } else {
    on_install_failed(done, status.error(), now);
  }
  consider_want(now);
}

void SubscriberMachine::on_install_failed(const Installing& failed, const Error& error, Time now) {
  drop(failed.session, failed.number);
  if (failed.fetched() && is_fetched_again(failed, error, now)) return;
  if (!may_be_had_later(error.code())) return failed.stage ? staging_.on_failed(error) : give_up_version(failed);
  install_pause_ = std::clamp(2 * install_pause_, options_.retry_after, kPauseGrowthMax * options_.retry_after);
  want_not_before_ = now + install_pause_;
  if (failed.session == current_) count_install_failure(error, now);
}

void SubscriberMachine::give_up_version(const Installing& failed) {
  if (options_.mode == Mode::latest) {
    position_ = failed.number;
    position_epoch_ = failed.epoch;
    return;
  }
  position_ = std::max(position_, failed.number);
  gaps_ += failed.gap_before + 1;
  given_up_ += failed.gap_before + 1;
}

void SubscriberMachine::on_unpinned(SessionId session, VersionNumber number, Time) { drop(session, number); }

void SubscriberMachine::drop(SessionId id, VersionNumber number) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end()) return;
  const auto hold = entry->second.held.find(number);
  if (hold == entry->second.held.end() || --hold->second > 0) return;
  entry->second.held.erase(hold);
  if (id != current_ && entry->second.held.empty()) {
    sessions_.erase(entry);
    actions_.emplace_back(action::LeaveDoor{.session = id});
    return;
  }
  send_held(id, entry->second);
}

void SubscriberMachine::on_taken(VersionNumber number, Time now) {
  if (delivered_.erase(number) != 0) consider_want(now);
}

void SubscriberMachine::on_architecture_known(const Digest& digest) {
  std::erase(architectures_, digest);
  architectures_.push_back(digest);
  if (architectures_.size() > kArchitecturesNamedMax) architectures_.erase(architectures_.begin());
}

void SubscriberMachine::on_announcement(const Announcement& announcement, Time now) {
  const bool attached = phase_ == Phase::knocking || phase_ == Phase::following;
  if (!attached || announcement.model != options_.model || announcement.incarnation != incarnation_) return;
  newest_known_ = std::max(newest_known_, announcement.number);
  absent_until_.reset();
  ++news_heard_;
  on_current(announcement.current, now);
  on_candidate(announcement.candidate, announcement.turn, now);
  consider_want(now);
}

/// One session's Hello reached two publishers, since the address was looked up anew in between: what is said now may go
/// to the one whose door or channel this is not.
void SubscriberMachine::on_two_publishers(Time now) {
  leave_current_session();
  greet_anew(now);
}

void SubscriberMachine::on(const Pong& pong, Time now) {
  if (phase_ != Phase::following || pong.session != current_) return;
  if (pong.incarnation != incarnation_) return claim_session(now);
  heard(now);
  newest_known_ = std::max(newest_known_, pong.newest);
  on_current(pong.current, now);
  on_answered(pong, now);
  if (wants_current())
    waiting_.reset();  // What answers it would have come before this: it was lost, or is not meant to.
  on_candidate(pong.candidate, pong.turn, now);
  consider_want(now);
}

void SubscriberMachine::on(const UnknownSession& unknown, Time now) {
  if (unknown.session != current_) return claim_drained(unknown.session);
  // A session without a door leaves nothing behind: no use to insist.
  const bool insist = !is_fetching() || !claim_until_;
  if (phase_ == Phase::following && insist) return claim_session(now);
  leave_current_session();
  greet_anew(now);
}

void SubscriberMachine::claim_session(Time now) {
  if (claim_until_) return;
  claim_until_ = now + options_.silent_after;
  say_hello(now);
}

/// A drained session that stayed with a broken connection: taken along, so that what it lets go of is heard. Once for
/// each heartbeat, since a publisher that never heard of it says so again.
void SubscriberMachine::claim_drained(SessionId id) {
  const auto entry = sessions_.find(id);
  if (entry == sessions_.end() || !entry->second.door_open || std::exchange(entry->second.claimed, true)) return;
  send(hello_for(id, entry->second.door_token));
}

void SubscriberMachine::on(const Refusal& refusal, Time now) {
  if (refusal.session != current_) return;
  if (phase_ == Phase::greeting && refusal.request == 0) {
    last_refusal_ = refusal.message;
    hello_at_ = now + kRefusedHelloPauses * options_.retry_after;
  }
  if (phase_ != Phase::following) return;
  if (waiting_ && waiting_->want.request == refusal.request) {
    may_wait_ = false;
    want_ = std::exchange(waiting_, std::nullopt);
  }
  if (want_ && want_->want.request == refusal.request) on_want_refused(refusal, now);
}

void SubscriberMachine::heard(Time now) {
  last_heard_ = now;
  connected_ = ever_heard_ = true;
}

void SubscriberMachine::beat(Time now) {
  beat_at_ = now + options_.heartbeat;
  send(Ping{.session = current_,
            .serving = serving_,
            .epoch = serving_epoch_,
            .staged = staging_.ready() ? staging_.ready()->number : 0,
            .sent_ns = now.time_since_epoch().count(),
            .channel_why = channel_ ? shown(channel_->why, kLabelBytesMax) : std::string(),
            .behind = behind()});
  say_staged();
  // Repeated without need most of the time: one that was lost would leave versions held for nobody.
  for (auto& [id, session] : sessions_) {
    if (session.grants_seen > 0) send_held(id, session);
    session.claimed = false;
  }
}

std::uint32_t SubscriberMachine::behind() const {
  const auto late = std::count_if(follower_epochs_.begin(), follower_epochs_.end(),
                                  [this](std::uint64_t epoch) { return epoch < serving_epoch_; });
  // Numbers, not epochs: an epoch may advance with the version that is in use already.
  const bool applies_late = applied_ && *applied_ != serving_;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(
      static_cast<std::uint64_t>(late) + behind_followers_ + (applies_late ? 1U : 0U), kBehindMax));
}

void SubscriberMachine::on_higher_seen(VersionNumber number, Time) {
  if (number <= highest_seen_) return;
  highest_seen_ = number;
  if (phase_ == Phase::following) send(hello_for(current_, door_token_));
}

void SubscriberMachine::on_stop(Time) {
  if (installing_) abandon_install();
  close_channel();
  channel_.reset();
  for (const auto& [id, session] : sessions_) {
    send(Bye{.session = id, .reads_on = session.door_open && !session.held.empty()});
    actions_.emplace_back(action::LeaveDoor{.session = id});
  }
  sessions_.clear();
  want_.reset();
  connected_ = false;
  phase_ = Phase::stopped;
}

bool SubscriberMachine::minds_silence() const {
  return phase_ == Phase::following && (is_fetching() ? !claim_until_ : elsewhere_);
}

/// Its door is open, so it lives, but it is stopped: what it handed out stays as it is, and is served meanwhile.
void SubscriberMachine::go_elsewhere(Time now) {
  if (installing_) abandon_install();
  leave_current_session();
  greet_anew(now);
}

void SubscriberMachine::on_tick(Time now) {
  if ((connected_ || minds_silence()) && now - last_heard_ >= options_.silent_after) {
    connected_ = false;
    if (minds_silence()) is_fetching() ? claim_session(now) : go_elsewhere(now);
  }
  switch (phase_) {
    case Phase::idle:
    case Phase::stopped: return;
    case Phase::greeting:
      if (now >= hello_at_) say_hello(now);
      return;
    case Phase::knocking:
      if (now >= knock_until_) return on_knock_unanswered(now);
      if (now >= beat_at_) beat(now);
      return;
    case Phase::following:
      if (claim_until_ && now >= *claim_until_) {
        leave_current_session();
        return greet_anew(now);
      }
      if (claim_until_ && now >= hello_at_) say_hello(now);
      if (now >= beat_at_) {
        beat(now);
        consider_better_channel(now);
      }
      tick_channel(now);
      if (absent_until_ && now >= *absent_until_) absent_until_.reset();
      if (want_ && now >= want_->retry_at) repeat_want(now);
      consider_want(now);
  }
}

Time SubscriberMachine::next_tick() const {
  Time next = connected_ || minds_silence() ? last_heard_ + options_.silent_after : Time::max();
  switch (phase_) {
    case Phase::idle:
    case Phase::stopped: return Time::max();
    case Phase::greeting: return std::min(next, hello_at_);
    case Phase::knocking: return std::min({next, knock_until_, beat_at_});
    case Phase::following: break;
  }
  next = std::min({next, beat_at_, next_channel_tick()});
  if (claim_until_) next = std::min({next, hello_at_, *claim_until_});
  if (has_cause_to_ask()) next = std::min(next, want_not_before_);
  if (want_) next = std::min(next, want_->retry_at);
  if (absent_until_) next = std::min(next, *absent_until_);
  return next;
}

std::vector<SubscriberAction> SubscriberMachine::take_actions() { return std::exchange(actions_, {}); }

void SubscriberMachine::send_held(SessionId id, const Session& session) {
  Held held{.session = id, .grants_seen = session.grants_seen};
  for (const auto& [number, times] : session.held) held.numbers.push_back(number);
  send(std::move(held));
}

void SubscriberMachine::send(Message message) { actions_.emplace_back(action::SendControl{std::move(message)}); }

}  // namespace freshet::protocol
