// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A subscriber's session with its publisher: how it comes about (greeting, then knocking at a door or opening a data
/// channel), which channel it uses, how it is claimed after a break, and when it is given up for a new one. The session
/// only reads and forgets the Wants and the versions. One thread at a time.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "transport/protocol/subscriber/heartbeats.h"
#include "transport/protocol/subscriber/position.h"
#include "transport/protocol/subscriber/session_channel.h"
#include "transport/protocol/subscriber/sessions.h"
#include "transport/protocol/subscriber/wants.h"

namespace freshet::protocol {

class SubscriberSession {
 public:
  struct Options {
    std::string model;
    Mode mode = Mode::latest;
    std::string label;
    std::int32_t pid = 0;
    std::string host;
    VersionNumber after = 0;
    std::uint64_t after_incarnation = 0;     ///< That numbered it; 0: not known.
    std::uint64_t session_seed = 0;          ///< Sessions are derived from it; random in a shell.
    std::size_t installs_in_flight_max = 1;  ///< For `every`: delivered but not yet taken by the application, at most.
    Duration retry_after = std::chrono::milliseconds(200);
    Duration heartbeat = std::chrono::milliseconds(250);
    Duration silent_after = std::chrono::milliseconds(1000);
    ChannelSelector::Options channels;  ///< What this process can use.
    std::string serves;                 ///< Its own control address, if it serves the model again.
    bool staged = false;                ///< A `latest` subscriber that is a member of the group.
  };
  SubscriberSession(const Options& options, const Position& position, Sessions& sessions, Wants& wants,
                    SubscriberActions& out);

  /// Begins one, also in the place of another, with a Hello at once.
  void start(Time now);
  void stop();
  /// False when it answers nothing that was asked, or has been dealt with.
  bool takes(const Welcome& welcome, Time now);
  /// Chooses among what it offers.
  void attach(const Welcome& welcome, Time now);
  /// The publisher is asked to know the session again, for a while.
  void claim(Time now);
  void on_unknown(SessionId session, Time now);
  void on_refused(const Refusal& refusal, Time now);

  /// A publisher was reached anew: what was said before may be lost.
  void on_reached(Time now);

  /// These return true when the session's versions can be read from now on.
  bool on_door_open(SessionId session, Time now);
  bool on_channel_open(SessionId session, Time now);
  void on_door_closed(SessionId session, Time now);
  void on_channel_closed(SessionId session, const Error& why, Time now);
  void on_channel_progress(SessionId session, Time now);
  /// The next best takes over. What was asked for through the one that failed is asked for anew: the publisher's queue
  /// keeps it until it is acknowledged.
  void channel_failed(const std::string& why, Time now);
  /// Between two versions, so that none waits for it.
  void consider_better_channel(Time now);

  /// False when there is nothing more to be done now.
  bool tick(Time now);
  Time next_tick() const;
  Heartbeats& beats() { return beats_; }
  /// Said again within the session: what it says of what was seen has changed.
  void repeat_hello();
  void heard(Time now);
  /// Whether the shell knows another place where the model may be had, and turns to it when nobody answers.
  void set_elsewhere(bool elsewhere) { elsewhere_ = elsewhere; }

  bool is_following() const { return phase_ == Phase::following; }
  bool is_attached() const { return phase_ == Phase::knocking || phase_ == Phase::following; }
  /// Versions can be had by its channel.
  bool is_open() const { return is_following() && channel_.is_open(); }
  bool is_claiming() const { return claim_until_.has_value(); }
  bool connected() const { return connected_; }  ///< A publisher answered within `silent_after`.
  /// When the publisher last gave a sign of life; nothing before the first. With News::newest() it bounds how stale the
  /// served version may be.
  std::optional<Time> last_heard() const { return last_heard_; }
  std::uint64_t incarnation() const { return incarnation_; }
  /// What a publisher last said no with.
  const std::string& last_refusal() const { return last_refusal_; }
  void set_last_refusal(std::string why) { last_refusal_ = std::move(why); }
  SessionChannel& channel() { return channel_; }

 private:
  enum class Phase : std::uint8_t { idle, greeting, knocking, following, stopped };

  void say_hello(Time now);
  Hello hello_for(SessionId session, std::uint64_t door_token) const;
  void give_up(Time now);
  void greet_anew(Time now);
  void choose_channel(Time now);
  void open_channel(Time now);
  void close_channel();
  /// Whether something is to be done about a publisher that is silent.
  bool minds_silence() const;

  const Options& options_;
  const Position& position_;
  Sessions& sessions_;
  Wants& wants_;
  SubscriberActions& out_;
  SessionChannel channel_;  ///< From the Welcome on.
  Phase phase_ = Phase::idle;
  std::uint64_t incarnation_ = 0;
  std::uint64_t door_token_ = 0;
  std::optional<Time> claim_until_;  ///< The publisher is being asked to know the session again.
  Time hello_at_{};
  Heartbeats beats_;
  std::optional<Time> last_heard_;
  std::string last_refusal_;
  std::string told_device_;  ///< By the last Hello.
  bool connected_ = false;
  bool elsewhere_ = false;
};

}  // namespace freshet::protocol
