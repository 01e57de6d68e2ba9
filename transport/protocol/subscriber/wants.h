// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A subscriber's Want: the one that has no answer yet, or that waits at the publisher for the next version, or the
/// Install that the last one led to. All Wants are of one session and channel: whoever gives those up forgets them. One
/// thread at a time.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "transport/protocol/subscriber/actions.h"

namespace freshet::protocol {

class Wants {
 public:
  struct Outstanding {
    Want want;
    Time retry_at;
    Duration pause{};
    Current known;                 ///< What was known to be current when it was first sent.
    std::uint64_t news_heard = 0;  ///< By then.
  };
  struct Installing {
    SessionId session = 0;
    VersionNumber number = 0;
    std::uint64_t gap_before = 0;
    std::uint64_t epoch = 0;
    bool stage = false;
    ChannelKind channel = ChannelKind::shm;
    bool fetched() const { return channel != ChannelKind::shm; }
  };

  Wants(Duration retry_after, SubscriberActions& out) : retry_after_(retry_after), out_(out) {}

  bool is_idle() const { return !want_ && !installing_; }
  const std::optional<Outstanding>& want() const { return want_; }
  bool is_waiting() const { return waiting_.has_value(); }
  const std::optional<Installing>& installing() const { return installing_; }

  /// `want` says of which session, by which channel, after what and, to be staged, which; the rest is filled in here.
  void ask(Want want, const Current& known, std::uint64_t news_heard, Time now);
  /// Asks for what is not there yet, so that it comes without having to be announced and asked for. Nothing where the
  /// publisher keeps no Wants, or refused one since the last version came.
  void wait(Want want, const Current& known, Time now);
  /// The news overtook the grant of the one that waits, which takes another way; or the grant does not come.
  void expect_grant(const Current& known, std::uint64_t news_heard, Time now);
  void repeat(Time now);
  /// That request is answered: if it is the one that waits, it does not any more. True if so.
  bool on_answered(std::uint64_t request);
  std::optional<Outstanding> take_want() { return std::exchange(want_, std::nullopt); }
  void forget_waiting() { waiting_.reset(); }
  void forget() { want_.reset(), waiting_.reset(); }
  void begin_session() { forget(), last_request_ = 0; }
  /// Whether the publisher keeps Wants that wait.
  void set_kept(bool kept) { may_wait_ = keeps_wants_ = kept; }
  void on_waiting_refused() { may_wait_ = false; }

  void begin_install(const Installing& installing) { installing_ = installing; }
  std::optional<Installing> take_installing() { return std::exchange(installing_, std::nullopt); }
  void on_installed(const Installing& done);
  /// Nothing is asked for before a pause that grows is over.
  void on_install_failed(Time now);
  /// Bytes that came over a wire and are not what the manifest says: the wire, or a relay, may be at fault. Whether
  /// they are to be fetched once more.
  bool may_fetch_again(VersionNumber number);

  Time not_before() const { return not_before_; }
  void pause_until(Time at) { not_before_ = at; }
  /// The shell can decode manifests of that architecture; the last few are named in every Want.
  void on_architecture_known(const Digest& digest);

 private:
  Want filled(Want want);

  const Duration retry_after_;
  SubscriberActions& out_;
  std::uint64_t last_request_ = 0;
  std::optional<Outstanding> want_;
  /// The Want that the publisher keeps until there is something. Never beside want_ or installing_; always of what we
  /// have.
  std::optional<Outstanding> waiting_;
  bool keeps_wants_ = false;  ///< The publisher said so.
  bool may_wait_ = false;     ///< And did not refuse one since the last version came.
  std::optional<Installing> installing_;
  VersionNumber unproved_ = 0;  ///< Fetched once, and not what its manifest says.
  Time not_before_{};
  Duration install_pause_{};
  std::vector<Digest> architectures_;  ///< The latest last.
};

}  // namespace freshet::protocol
