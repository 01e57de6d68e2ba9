// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One provider of a repository, as a client sees it: reached when it is first needed, and again after it was lost.
/// Private to this room.
///
/// The next call tries a provider again that could not be reached. Only where finding that out took long, as it does
/// with a host that is silent instead of refusing, calls fail at once for a while, but for one now and then that tries;
/// so a dead host costs its clients a wait now and then, and not one for each call.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/provider_repository.h"
#include "repo/records/placement.h"

namespace freshet {

/// Whether a provider did not answer, rather than answered no.
bool is_away(const Error& error);

}  // namespace freshet

namespace freshet::cluster {

/// Reaches a provider. May take as long as reaching a host does; unavailable when it does not answer.
using Connect = std::function<Result<std::shared_ptr<ProviderRepository>>(const Provider& provider)>;

/// After such a wait, calls fail at once for kFailAtOnce.
inline constexpr Duration kLongWait = std::chrono::milliseconds(1500);
inline constexpr Duration kFailAtOnce = std::chrono::seconds(5);
/// How long whoever can do with another provider leaves one alone that could not be reached: doubled each time.
inline constexpr Duration kAvoidMin = std::chrono::seconds(1);
inline constexpr Duration kAvoidMax = std::chrono::seconds(30);

/// Any thread.
class Member {
 public:
  Member(Provider provider, Connect connect, const Clock& clock = system_clock())
      : provider_(std::move(provider)), connect_(std::move(connect)), clock_(clock) {}

  const Provider& provider() const { return provider_; }
  /// It could not be reached when that was tried last.
  bool is_away() const FRESHET_EXCLUDES(mutex_);
  /// The same, and that is not long ago.
  bool is_to_be_avoided() const FRESHET_EXCLUDES(mutex_);
  /// Connects, unless it was reached before.
  Status reach() const;
  /// "provider ID (ADDRESS)".
  std::string label() const;

  /// Calls `ask(repository)`, which returns a Result or a Status. Its error names the provider; after one that says
  /// that it did not answer, the next ask connects anew.
  template <typename Ask>
  auto ask(const Ask& ask) const -> decltype(ask(std::declval<ProviderRepository&>())) {
    Result<std::shared_ptr<ProviderRepository>> repository = reached();
    if (!repository) return fail(named(std::move(repository).error()));
    auto answer = ask(**repository);
    if (!answer) {
      if (answer.error().code() == Code::unavailable) lost(*repository);
      return fail(named(answer.error()));
    }
    return answer;
  }

 private:
  /// That it could not be reached.
  struct Absence {
    Error why{Code::unavailable, ""};
    std::uint64_t times = 0;  ///< In a row.
    Time avoid_until{};
    std::optional<Time> fail_until;  ///< Calls fail at once.
  };
  Result<std::shared_ptr<ProviderRepository>> reached() const FRESHET_EXCLUDES(mutex_);
  void lost(const std::shared_ptr<ProviderRepository>& repository) const FRESHET_EXCLUDES(mutex_);
  void note_absence(const Error& why, Time begun, Time now) const FRESHET_REQUIRES(mutex_);
  Error named(Error error) const;

  const Provider provider_;
  const Connect connect_;
  const Clock& clock_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<ProviderRepository> repository_ FRESHET_GUARDED_BY(mutex_);
  mutable std::optional<Absence> absence_ FRESHET_GUARDED_BY(mutex_);
};

/// Runs `work(i)` for each i below `count`, at the same time on threads of their own, and returns when all are done.
/// The caller's Interruption ends the waits of all of them.
void at_once(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace freshet::cluster
