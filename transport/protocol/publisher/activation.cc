// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/activation.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::protocol {
namespace {

constexpr std::size_t kAnswersKept = 32;
/// A tick that comes so much later than it was wanted: this process was stopped, or its host.
constexpr Duration kOversleptBy = std::chrono::milliseconds(250);
/// How often that is looked after, where there are members.
constexpr int kLooksPerMembership = 8;
constexpr std::uint32_t kDirectoryPatienceMs = 5000;
constexpr std::size_t kNumbersNamedMax = 16;

Duration lapse_after(const Activation::Options& options) {
  return options.membership + options.membership / kLooksPerMembership + kOversleptBy;
}

bool may_be_read_later(Code code) {
  return code != Code::failed_precondition && code != Code::invalid_argument && code != Code::unsupported;
}

std::string who(const Activation::Follower& follower) {
  const Hello& hello = *follower.hello;
  return format("{} (process {})", hello.label.empty() ? "a subscriber" : hello.label, hello.pid);
}

std::string to_text(const Current& pair) {
  return format("epoch {}, @{}{}", pair.epoch, pair.version, pair.hold ? ", held" : "");
}

std::string to_text(const std::vector<VersionNumber>& numbers) {
  if (numbers.empty()) return "none is";
  const std::size_t from = numbers.size() > kNumbersNamedMax ? numbers.size() - kNumbersNamedMax : 0;
  std::string text = from > 0 ? "kept are … " : "kept are ";
  for (std::size_t i = from; i < numbers.size(); ++i) text += format("{}@{}", i > from ? ", " : "", numbers[i]);
  return text;
}

}  // namespace

Activation::Activation(Options options)
    : options_(std::move(options)), current_(options_.current), recorded_(options_.current) {
  // Nobody can be serving anything of a model of which nothing was ever current.
  if (current_ != Current{}) members_known_at_ = options_.started + lapse_after(options_);
}

void Activation::on_committed(VersionNumber number, Time now) {
  newest_ = number;
  if (options_.follows || current_.hold) return;
  if (options_.group_commit) {
    next_candidate_ = number;
    return begin_next_candidate(now);
  }
  advance_to({.epoch = current_.epoch, .version = number});
}

void Activation::begin_next_candidate(Time now) {
  if (pending_ || current_.hold || next_candidate_ <= current_.version) return;
  pending_ = Pending{.number = std::exchange(next_candidate_, 0),
                     .as_group = true,
                     .deadline = now + options_.group_within,
                     .turn = ++turn_};
  wake_by(now);
}

VersionNumber Activation::candidate() const { return pending_ && pending_->as_group ? pending_->number : 0; }

std::set<VersionNumber> Activation::wanted() const {
  std::set<VersionNumber> numbers;
  if (current_.version != 0) numbers.insert(current_.version);
  if (pending_) numbers.insert(pending_->number);
  return numbers;
}

void Activation::on_ask(const Peer& peer, const Activate& ask, const std::vector<VersionNumber>& kept, Time now) {
  const Asker asker{.peer = peer, .request = ask.request};
  if (pending_ && pending_->asker == asker) return;
  if (settling_ && std::ranges::find(settling_->askers, asker) != settling_->askers.end()) return;
  const auto same = [&](const Answer& one) { return one.peer == peer && one.activated.request == ask.request; };
  if (const auto before = std::find_if(answered_.begin(), answered_.end(), same); before != answered_.end()) {
    return answers_.push_back(*before);
  }
  if (auto refused = why_refused(ask, kept)) return answer(asker, {.refused = std::move(refused)});
  const VersionNumber number = ask.desired.version != 0 ? ask.desired.version : std::max(newest_, current_.version);
  if (number == current_.version && ask.desired.hold == current_.hold) {
    // Nothing is to be decided, but some followers may not serve it.
    if (!settling_) begin_settling({.as_group = ask.as_group}, now);
    if (settling_->askers.size() == kAnswersKept) return answer(asker, {.behind = settling_->counted()});
    settling_->askers.push_back(asker);
    return wake_by(now);
  }
  if (pending_)
    give_up(Error(Code::cancelled, format("{}@{} was given up, because another request asked for @{}", options_.model,
                                          pending_->number, number)));
  // A change of the hold alone leaves nothing to be staged.
  const bool as_group = ask.as_group && number != current_.version;
  const std::uint32_t within_ms = ask.within_ms != 0 ? ask.within_ms : kDirectoryPatienceMs;
  next_candidate_ = 0;
  pending_ = Pending{.asker = asker,
                     .number = number,
                     .hold = ask.desired.hold,
                     .as_group = as_group,
                     .deadline = now + std::chrono::milliseconds(within_ms),
                     .turn = ++turn_,
                     .swapping = !as_group};
  wake_by(now);
}

std::optional<Error> Activation::why_refused(const Activate& ask, const std::vector<VersionNumber>& kept) const {
  if (options_.follows) {
    return Error(Code::unsupported,
                 format("{} is relayed here; ask its publisher to make a version current", options_.model));
  }
  const Current& expected = ask.expected;
  const bool as_expected = expected.epoch == current_.epoch && expected.hold == current_.hold &&
                           (expected.version == 0 || expected.version == current_.version);
  if (!as_expected) {
    return Error(Code::failed_precondition,
                 format("{} is at {}, not at {}", options_.model, to_text(current_), to_text(expected)));
  }
  const VersionNumber number = ask.desired.version;
  if (number != 0 && number != current_.version && !std::binary_search(kept.begin(), kept.end(), number)) {
    return Error(Code::not_found, format("{}@{} is not kept here; {}", options_.model, number, to_text(kept)));
  }
  if (number == 0 && newest_ == 0 && current_.version == 0) {
    return Error(Code::not_found, format("nothing of {} was published yet", options_.model));
  }
  if (current_.epoch >= kEpochMax) return Error(Code::out_of_space, "there is no epoch left");
  return why_busy(ask);
}

std::optional<Error> Activation::why_busy(const Activate& ask) const {
  if (!pending_) return std::nullopt;
  if (pending_->swapping) {
    return Error(Code::unavailable,
                 format("{}@{} is being activated: the directory has not confirmed it yet{}{}", options_.model,
                        pending_->number, pending_->doubt.empty() ? "" : ": ", pending_->doubt));
  }
  // Going back need not wait for what is being staged; and what somebody asks for comes before what was published.
  if (!ask.as_group || !pending_->asker) return std::nullopt;
  return Error(Code::unavailable, format("{}@{} is being staged", options_.model, pending_->number));
}

/// Later than it says so of itself by as much as our clock may step without being noticed.
Time Activation::lapses_at(const Follower& follower) const {
  return std::max(follower.last_heard, awake_since_) + lapse_after(options_);
}

bool Activation::in_standing(const Follower& follower, Time now) const { return now < lapses_at(follower); }

void Activation::consider(const std::vector<Follower>& followers, Time now) {
  if (wake_at_ != Time::max() && now - wake_at_ > kOversleptBy) awake_since_ = now;
  wake_at_ = Time::max();
  if (has_members_) wake_by(now + options_.membership / kLooksPerMembership);
  if (settling_) settle(followers, now);
  if (pending_ && !pending_->swapping) decide_staging(followers, now);
  if (pending_ && pending_->swapping) tell_doubt(now);
  prepare_swap(now);
}

void Activation::decide_staging(const std::vector<Follower>& followers, Time now) {
  const Follower* slow = nullptr;
  std::uint32_t staged = 0;
  for (const Follower& follower : followers) {
    if (!follower.member || !in_standing(follower, now)) continue;
    const bool has_said =
        follower.word != nullptr && follower.word->number == pending_->number && follower.word->turn >= pending_->turn;
    if (has_said && follower.word->failed) {
      const Error& why = *follower.word->failed;
      give_up(Error(why.code(), format("{} could not stage {}@{}: {}", who(follower), options_.model, pending_->number,
                                       why.message())));
      return begin_next_candidate(now);
    }
    if (has_said) {
      ++staged;
    } else {
      slow = &follower;
      wake_by(lapses_at(follower));
    }
  }
  // Decided when the directory can be asked at once, so that nobody joins in between.
  const bool can_ask = !in_flight_ && now >= swap_not_before_;
  if (slow == nullptr && now >= members_known_at_ && can_ask) {
    pending_->swapping = true;
    pending_->staged = staged;
    return;
  }
  if (now >= pending_->deadline) {
    give_up(Error(Code::timed_out, why_not_staged(slow, now)));
    return begin_next_candidate(now);
  }
  wake_by(pending_->deadline);
  if (slow == nullptr && now < members_known_at_) wake_by(members_known_at_);
  if (!in_flight_ && now < swap_not_before_) wake_by(swap_not_before_);
}

std::string Activation::why_not_staged(const Follower* slow, Time now) const {
  if (slow != nullptr) {
    return format("{} has not staged {}@{} in time, and serves @{}", who(*slow), options_.model, pending_->number,
                  slow->serving);
  }
  if (now < members_known_at_) {
    return format("the members of an earlier publisher of {} may still come back", options_.model);
  }
  return format("{}@{} is staged, but the directory does not answer{}{}", options_.model, pending_->number,
                last_failure_.empty() ? "" : ": ", last_failure_);
}

void Activation::give_up(Error why) {
  last_failure_ = why.message();
  answer(pending_->asker, {.refused = std::move(why)});
  pending_.reset();
  ++turn_;
}

/// Whoever asked is not kept longer than it wanted to wait; the activation goes on, since it may have happened.
void Activation::tell_doubt(Time now) {
  if (!pending_->asker) return;
  if (now < pending_->deadline) return wake_by(pending_->deadline);
  answer(std::exchange(pending_->asker, std::nullopt),
         {.refused = Error(Code::unavailable, format("whether {}@{} became current is not known yet, the directory "
                                                     "does not answer{}{}",
                                                     options_.model, pending_->number,
                                                     pending_->doubt.empty() ? "" : ": ", pending_->doubt))});
}

void Activation::prepare_swap(Time now) {
  if (options_.follows || in_flight_) return;
  const bool decides = pending_ && pending_->swapping;
  const bool is_behind = epoch_floor_ > current_.epoch;
  if (!decides && !is_behind && !current_.comes_after(recorded_.epoch, recorded_.version)) return;
  if (now < swap_not_before_) return wake_by(swap_not_before_);
  Current desired = current_;
  desired.epoch = std::max(desired.epoch, epoch_floor_);
  if (decides) {
    pending_->newest_at_swap = newest_;
    desired = {.epoch = std::max({recorded_.epoch, current_.epoch, epoch_floor_}) + 1,
               .version = pending_->number,
               .hold = pending_->hold};
  }
  in_flight_ = Swap{.expected = recorded_, .desired = desired};
  in_flight_decides_ = decides;
  to_swap_ = in_flight_;
}

void Activation::on_swapped(Result<Current> record, Time now) {
  if (!in_flight_) return;
  const Swap swap = *std::exchange(in_flight_, std::nullopt);
  const bool decides = in_flight_decides_;
  if (!record) {
    swap_not_before_ = now + options_.swap_again_after;
    wake_by(swap_not_before_);
    last_failure_ = record.error().message();
    if (!decides) return;
    if (!may_be_read_later(record.error().code())) return give_up(std::move(record).error());
    pending_->doubt = record.error().message();
    return;
  }
  recorded_ = *record;
  if (recorded_ != swap.desired) return on_overtaken(recorded_, now);
  if (decides) {
    on_decided(swap.desired, now);
  } else if (swap.desired.epoch > current_.epoch) {
    on_caught_up(swap.desired);
  }
  wake_by(now);
}

/// The directory knows of no other pair of that epoch, so ours goes on under it.
void Activation::on_caught_up(const Current& pair) {
  const VersionNumber number = current_.version;
  advance_to(pair);
  if (!pair.hold) advance_to({.epoch = pair.epoch, .version = number});
}

/// The record is not what was expected: somebody else decided, or it was lost.
void Activation::on_overtaken(const Current& record, Time now) {
  swap_not_before_ = now + options_.swap_again_after;
  wake_by(swap_not_before_);
  if (record.epoch <= current_.epoch) return;
  if (pending_) {
    give_up(Error(Code::failed_precondition,
                  format("the directory has {} at {} already", options_.model, to_text(record))));
  }
  advance_to(record);
}

void Activation::on_seen(const Current& pair, Time now) {
  if (options_.follows) return advance_to(pair);
  // While a swap is under way its answer tells, and in order.
  if (in_flight_ || pair.epoch <= current_.epoch) return;
  recorded_ = pair;
  on_overtaken(pair, now);
}

void Activation::on_epoch_seen(std::uint64_t epoch, Time now) {
  // Counted from what the directory knew and what was decided here, so that nobody gets further by asking again.
  const std::uint64_t believed = std::min(options_.current.epoch + epochs_decided_ + kEpochsBelieved, kEpochMax / 2);
  if (epoch > believed || epoch <= epoch_floor_) return;
  epoch_floor_ = epoch;
  wake_by(now);
}

void Activation::on_decided(const Current& pair, Time now) {
  const Pending decided = *std::exchange(pending_, std::nullopt);
  if (settling_) end_settling(Duration(0));
  Settling settling{.is_decided = true, .members = decided.staged, .as_group = decided.as_group};
  if (decided.asker) settling.askers.push_back(*decided.asker);
  begin_settling(std::move(settling), now);
  last_failure_.clear();
  ++turn_;
  ++epochs_decided_;
  advance_to(pair);
  if (pair.hold) return;
  // Published while the directory was being asked: it comes after what was asked for.
  if (options_.group_commit) return begin_next_candidate(now);
  if (newest_ > decided.newest_at_swap) advance_to({.epoch = pair.epoch, .version = newest_});
}

void Activation::begin_settling(Settling settling, Time now) {
  settling.until = now + lapse_after(options_);
  settling_ = std::move(settling);
}

void Activation::settle(const std::vector<Follower>& followers, Time now) {
  std::uint64_t awaited = 0;
  std::uint64_t silent = 0;
  bool any = false;
  for (const Follower& follower : followers) {
    const bool stands = in_standing(follower, now);
    // A member that has lapsed knows it, and marks its answers stale; any other follower serves on what it served.
    if (settling_->as_group && (!follower.member || !stands)) continue;
    const bool follows = follower.epoch >= current_.epoch;
    any = any || follows;
    (stands ? awaited : silent) += (follows ? 0U : 1U) + std::uint64_t{follower.behind};
  }
  settling_->behind = awaited + silent;
  if (any && !settling_->first_seen) settling_->first_seen = now;
  if (settling_->behind == 0) return end_settling(settling_->first_seen ? now - *settling_->first_seen : Duration(0));
  if (awaited == 0 || now >= settling_->until) return end_settling(Duration(0));
  wake_by(settling_->until);
}

void Activation::end_settling(Duration mixed) {
  const Settling settled = *std::exchange(settling_, std::nullopt);
  if (settled.is_decided) last_mixed_ = mixed;
  for (const Asker& asker : settled.askers) {
    answer(asker, {.members = settled.members, .mixed_ns = mixed.count(), .behind = settled.counted()});
  }
}

void Activation::advance_to(const Current& pair) {
  if (!pair.comes_after(current_.epoch, current_.version)) return;
  current_ = pair;
  ++turn_;
}

void Activation::answer(const std::optional<Asker>& asker, Activated activated) {
  if (!asker) return;
  activated.request = asker->request;
  activated.current = current_;
  answers_.push_back({.peer = asker->peer, .activated = std::move(activated)});
  answered_.push_back(answers_.back());
  if (answered_.size() > kAnswersKept) answered_.pop_front();
}

std::optional<Activation::Swap> Activation::take_swap() { return std::exchange(to_swap_, std::nullopt); }
std::vector<Activation::Answer> Activation::take_answers() { return std::exchange(answers_, {}); }

}  // namespace freshet::protocol
