#pragma once

/// Following one provider's feed (repo/feed.h): a state machine without I/O. It says what to ask and when; whoever
/// drives it carries that out and hands over the page, or that none came. Pages may be lost, and may come late; the
/// provider may end and begin another life at any moment.
///
/// What holds: **once reached(position) is true, all that the provider acknowledged up to that position is in the
/// sink, and nothing of a life before is.** A page is taken only as the answer to the one question that is on its way,
/// so nothing late is; one of another life begins anew, with an emptied sink.

#include <cstdint>
#include <optional>

#include "core/clock.h"
#include "core/result.h"
#include "repo/feed.h"

namespace freshet::cluster {

/// Where the changes go. Called on the machine's thread.
class FeedSink {
 public:
  virtual ~FeedSink() = default;
  virtual void apply(const FeedChange& change) = 0;
  /// Forgets all that was applied.
  virtual void drop() = 0;
};

struct FollowTimes {
  /// Between questions: after news, and twice as long after each that brought none, up to `idle_max`, since everybody
  /// asks everybody. Who needs what is newest hurries.
  Duration idle = std::chrono::milliseconds(50);
  Duration idle_max = std::chrono::milliseconds(400);
  Duration retry = std::chrono::milliseconds(200);  ///< After one that failed.
  /// What was heard is this long good for an answer that is to be of the present.
  Duration fresh = std::chrono::seconds(1);
};

/// One thread at a time.
class FollowMachine {
 public:
  FollowMachine(FollowTimes times, FeedSink& sink) : times_(times), sink_(sink) {}

  struct Ask {
    std::uint64_t number = 0;
    FeedPosition after;
  };
  /// What to ask now; nothing while a question is on its way, or none is due.
  std::optional<Ask> ask(Time now);
  /// When to come again, while no question is on its way.
  Time due() const { return due_; }
  /// Somebody needs what is newest: the next question is due at once.
  void hurry() { hurry_ = true; }

  void on_page(std::uint64_t number, const FeedPage& page, Time now);
  void on_failure(std::uint64_t number, const Error& why, Time now);

  struct Followed {
    FeedPosition position;        ///< All up to here is in the sink.
    std::uint64_t commit = 0;     ///< And all of the provider's commits up to this one.
    bool complete = false;        ///< The end was reached once in this life.
    Time heard{};                 ///< When the question went out whose answer was the last.
    std::optional<Error> failed;  ///< Of the last question.
    bool reached(const FeedPosition& need) const {
      return complete && need.life == position.life && need.change <= position.change;
    }
  };
  const Followed& followed() const { return followed_; }
  /// True when answers may be given of it.
  static bool is_followed(const Followed& followed, const FollowTimes& times, Time now) {
    return followed.complete && !followed.failed && now - followed.heard <= times.fresh;
  }

 private:
  const FollowTimes times_;
  FeedSink& sink_;
  Followed followed_;
  std::uint64_t numbers_ = 0;
  std::optional<Ask> asked_;
  Time asked_at_{};
  Time due_{};
  Duration pause_{};
  bool hurry_ = false;
};

}  // namespace freshet::cluster
