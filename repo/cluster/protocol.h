// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The questions of a put, a retirement and the settling of references to providers, in their order: state machines
/// without I/O. Each hands out calls; whoever drives it carries them out, in any order, and tells each one's outcome.
/// Calls may be lost, done without an answer, or late; whoever drives a machine may die at any point.
///
/// One rule holds at every moment, whatever dies: **a segment that a live version names is stored, and known to be
/// named where it is stored.** A put first makes its references durable with the providers of what it inherits, each
/// under (version, attempt), and only then makes the version exist at its home. A death between the two leaves
/// references of an attempt that never came to its end. settle() finds these: it asks the home to say, for good,
/// whether the attempt made the version; what it did not make it never will (Repository::settle_put), and so its
/// references may go. The same rule lets a retired version's references go that its retirement could not reach.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/model/ids.h"
#include "repo/retirement.h"

namespace freshet::cluster {

/// Index of a provider in its Placement.
using ProviderIndex = std::size_t;

struct Call {
  enum class Kind : std::uint8_t {
    number,  ///< Have the model's registrar give the version its number.
    refer,   ///< Make it durable that (version, attempt) names `segments` there.
    commit,  ///< Make the version exist at its home. Only after all refer and number calls were answered.
    settle,  ///< Repository::settle_put.
    retire,  ///< Make the version a tombstone at its home.
    drop,    ///< Forget what (version, attempt) names there. No error when it names nothing.
  };
  Kind kind = Kind::number;
  ProviderIndex provider = 0;
  VersionId version;
  std::uint64_t attempt = 0;
  std::vector<SegmentName> segments;  ///< Of refer.
  bool operator==(const Call&) const = default;
};

/// The outcome of a call. Without an error it was done; `there` is settle's answer.
struct Reply {
  std::optional<Error> error;
  bool there = false;
  /// True when a call that failed may have been done all the same: its provider did not answer, or its caller was
  /// stopped and waited no longer.
  bool unknown() const;
};

/// Storing a version whose segments partly rest with other providers.
class PutMachine {
 public:
  struct Plan {
    VersionId version;
    std::uint64_t attempt = 0;
    ProviderIndex home = 0;
    std::optional<ProviderIndex> registrar;  ///< Nothing when the version has its number.
    struct Inherited {
      ProviderIndex provider = 0;
      std::vector<SegmentName> segments;
    };
    std::vector<Inherited> inherited;  ///< Each provider once, never the home.
  };
  explicit PutMachine(Plan plan) : plan_(std::move(plan)) {}

  /// The first calls.
  std::vector<Call> start();
  /// The calls that follow from an answer. Each call is answered once.
  std::vector<Call> on_reply(const Call& call, const Reply& reply);

  /// True when nothing is outstanding any more.
  bool done() const { return outstanding_ == 0 && stage_ == Stage::finished; }
  /// REQUIRES: done(). Without an error the version exists.
  const std::optional<Error>& error() const { return error_; }
  /// REQUIRES: done(). Whether the version exists nobody could say: its home did not answer any more.
  bool is_undecided() const { return undecided_; }

 private:
  enum class Stage : std::uint8_t { preparing, committing, settling, undoing, finished };
  Call call(Call::Kind kind, ProviderIndex provider) const;
  std::vector<Call> issue(std::vector<Call> calls);
  std::vector<Call> undo();

  const Plan plan_;
  Stage stage_ = Stage::preparing;
  std::size_t outstanding_ = 0;
  bool undecided_ = false;
  std::optional<Error> error_;
};

/// Taking a version's references back, after its home made it a tombstone.
///
/// A withdrawal makes sure that a put which ended undecided leaves nothing, once its home answers again: its caller was
/// told of another version in its place. It first asks whether the version was made. Without an error the version is
/// then not there and never will be.
class RetireMachine {
 public:
  RetireMachine(VersionId version, std::uint64_t attempt, ProviderIndex home, std::vector<ProviderIndex> inherited_from,
                bool is_withdrawal = false)
      : version_(version),
        attempt_(attempt),
        home_(home),
        inherited_from_(std::move(inherited_from)),
        is_withdrawal_(is_withdrawal) {}

  std::vector<Call> start() { return ask_home(is_withdrawal_ ? Call::Kind::settle : Call::Kind::retire); }
  std::vector<Call> on_reply(const Call& answered, const Reply& reply);
  bool done() const { return outstanding_ == 0; }
  const std::optional<Error>& error() const { return error_; }

 private:
  std::vector<Call> ask_home(Call::Kind kind);

  const VersionId version_;
  const std::uint64_t attempt_;
  const ProviderIndex home_;
  const std::vector<ProviderIndex> inherited_from_;
  const bool is_withdrawal_;
  std::size_t outstanding_ = 0;
  std::optional<Error> error_;
};

/// Asking the homes of those who name segments at one provider whether they are there, and forgetting those who are
/// not.
class SettleMachine {
 public:
  struct Referrer {
    VersionId version;
    std::uint64_t attempt = 0;
    std::optional<ProviderIndex> home;  ///< Nothing when its home is a provider that is not known here.
  };
  SettleMachine(ProviderIndex provider, std::vector<Referrer> referrers)
      : provider_(provider), referrers_(std::move(referrers)) {}

  std::vector<Call> start() { return next(); }
  std::vector<Call> on_reply(const Call& call, const Reply& reply);
  bool done() const { return outstanding_ == 0; }
  std::uint64_t dropped() const { return dropped_; }
  /// References that stay because nobody could say whether they are needed, and why.
  std::uint64_t kept() const { return kept_; }
  const std::optional<Error>& reason() const { return reason_; }

 private:
  std::vector<Call> next();
  void keep(const Error& reason);

  const ProviderIndex provider_;
  const std::vector<Referrer> referrers_;
  std::size_t at_ = 0;
  std::size_t outstanding_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t kept_ = 0;
  std::optional<Error> reason_;
};

inline constexpr std::size_t kSettleCallsMax = 16;  ///< On their way at a time.

}  // namespace freshet::cluster
