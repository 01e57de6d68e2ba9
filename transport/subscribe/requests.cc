// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "transport/subscribe/requests.h"

namespace freshet::detail {
namespace {

constexpr Duration kLoopPatience = std::chrono::seconds(10);

/// Runs `action` on the loop's thread and waits for what it returns.
template <typename T>
Result<T> on_loop(Standing& standing, std::function<Result<T>()> action) {
  struct Answer {
    Mutex mutex;
    CondVar given;
    std::optional<Result<T>> value FRESHET_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  const bool posted = standing.post([answer, action = std::move(action)] {
    Result<T> value = action();
    MutexLock lock(answer->mutex);
    answer->value = std::move(value);
    answer->given.notify_all();
  });
  if (!posted) return fail(Code::out_of_space, "too many requests wait for the subscriber");
  const Time deadline = deadline_in(kLoopPatience);
  MutexLock lock(answer->mutex);
  while (!answer->value) {
    if (!answer->given.wait_until(answer->mutex, deadline)) break;
  }
  if (!answer->value) return fail(Code::timed_out, "the subscriber is busy");
  return *answer->value;
}

std::string state_of(const Standing::News& news) {
  if (news.serving == 0) return "nothing is served yet";
  return format("@{} is served", news.serving);
}

}  // namespace

Status stage(SubscriberLoop& loop, VersionNumber version, Duration at_most) {
  const Time deadline = deadline_in(at_most);
  Standing& standing = loop.standing();
  FRESHET_TRY(on_loop<void>(standing, [&loop, version] { return loop.stage(version); }));
  for (auto news = standing.news();; news = standing.wait_for_other(news, deadline)) {
    if (news.staged == version) return {};
    if (news.staging != version) return fail(Code::cancelled, format("@{} was staged instead", news.staging));
    if (news.staging_failed) return fail(Error(*news.staging_failed).with_context(format("stage @{}", version)));
    if (system_clock().now() < deadline) continue;
    const std::string why = loop.shelf().status().last_error;
    return fail(Code::timed_out, format("@{} is not staged yet{}{}", version, why.empty() ? "" : ": ", why));
  }
}

Result<VersionNumber> commit_staged(SubscriberLoop& loop) {
  return on_loop<VersionNumber>(loop.standing(), [&loop] { return loop.commit_staged(); });
}

Status wait_until_new_enough(SubscriberLoop& loop, const SnapshotRequest& request, Time asked, Time deadline) {
  Standing& standing = loop.standing();
  std::optional<VersionNumber> probed_at;
  for (auto news = standing.news();; news = standing.wait_for_other(news, deadline)) {
    const bool has_come = news.serving != 0 && news.serving >= request.min_version;
    const bool is_fresh =
        !request.max_staleness || (news.confirmed_at && *news.confirmed_at >= asked - *request.max_staleness);
    if (has_come && is_fresh) return {};
    if (news.current.hold && news.current.version < request.min_version && !has_come) {
      return fail(Code::failed_precondition,
                  format("@{} is held: @{} is not served until a release", news.current.version, request.min_version));
    }
    if (has_come && probed_at != news.serving) {
      probed_at = news.serving;
      static_cast<void>(standing.post([&loop] { loop.probe(); }));
    }
    if (system_clock().now() < deadline) continue;
    if (!has_come) return fail(Code::timed_out, format("@{} did not come; {}", request.min_version, state_of(news)));
    return fail(Code::timed_out,
                format("{}, and no publisher confirmed in time that it is still current", state_of(news)));
  }
}

}  // namespace freshet::detail
