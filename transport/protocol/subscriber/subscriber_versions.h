// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which versions a subscriber gets through its session: it follows the publisher's pair, or takes every version; as a
/// member of the group it stages the candidate beforehand. One Want at a time. One thread at a time.

#include <optional>

#include "transport/protocol/subscriber/followers.h"
#include "transport/protocol/subscriber/news.h"
#include "transport/protocol/subscriber/staging.h"
#include "transport/protocol/subscriber/subscriber_session.h"

namespace freshet::protocol {

class SubscriberVersions {
 public:
  SubscriberVersions(const SubscriberSession::Options& options, Position& position, Sessions& sessions, Wants& wants,
                     SubscriberSession& session, SubscriberActions& out)
      : options_(options), position_(position), sessions_(sessions), wants_(wants), session_(session), out_(out) {}

  /// Before the session takes it: False: the publisher's numbers began anew, and so must the session.
  bool on_welcome(const Welcome& welcome, bool same_publisher, Time now);
  /// Versions can be had from now on.
  void on_open(Time now);
  void on_announcement(const Announcement& announcement, Time now);
  void on_grant(Grant grant, Time now);
  void on_refused(const Refusal& refusal, Time now);
  void on_pong(const Pong& pong, Time now);
  void on_record(const Current& pair, Time now);
  void on_installed(SessionId session, VersionNumber number, const Status& status, Time now);
  void on_refuted(VersionNumber number, Time now);
  void on_taken(VersionNumber number, Time now);
  void abandon_install();
  void on_followers(Time now);

  Status stage(VersionNumber number, Time now);
  void forget(VersionNumber number, Time now);
  Result<VersionNumber> commit_staged(Time now);

  /// Tells the publisher where this subscriber stands.
  void beat(Time now);
  void tick(Time now);
  Time next_tick() const;

  Followers& followers() { return followers_; }
  const News& news() const { return news_; }
  const Staging& staging() const { return staging_; }

 private:
  void on_current(const Current& pair, Time now);
  void on_candidate(VersionNumber candidate, std::uint64_t turn, Time now);
  void on_want_refused(const Wants::Outstanding& refused, const Refusal& refusal, Time now);
  void on_nothing_current(const Refusal& refusal, const Wants::Outstanding& refused, Time now);
  void on_install_failed(const Wants::Installing& failed, const Error& error, Time now);
  void follow(Time now);
  void swap_staged(std::uint64_t epoch);
  void unstage(const std::optional<Staging::Ready>& ready);
  void stop_staging_others();
  void say_staged();
  /// Whether the current version is another one than we have and is to be got now.
  bool wants_current() const;
  bool has_cause_to_ask() const;
  bool is_answer(const Grant& grant) const;
  bool is_overtaken(const Grant& grant) const;
  void consider_want(Time now);
  void consider_waiting(Time now);
  Want next_want() const;

  const SubscriberSession::Options& options_;
  Position& position_;
  Sessions& sessions_;
  Wants& wants_;
  SubscriberSession& session_;
  SubscriberActions& out_;
  News news_;
  Staging staging_;
  Followers followers_;
  std::uint64_t turn_ = 0;  ///< Of the last news of a candidate.
  VersionNumber candidate_ = 0;
  std::uint32_t told_behind_ = 0;  ///< By the last Ping.
};

}  // namespace freshet::protocol
