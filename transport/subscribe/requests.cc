// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "transport/subscribe/requests.h"

namespace freshet::detail {
namespace {

constexpr Duration kLoopPatience = std::chrono::seconds(10);

/// Runs `action` on the loop's thread and waits for what it returns.
template <typename T>
Result<T> on_loop(LoopReport& report, std::function<Result<T>()> action, const std::stop_token& stop) {
  if (stop.stop_requested()) return fail(Code::cancelled, "the request was stopped by its caller");
  struct Answer {
    Mutex mutex;
    CondVar given;
    std::optional<Result<T>> value FRESHET_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  const bool posted = report.post([answer, action = std::move(action)] {
    Result<T> value = action();
    MutexLock lock(answer->mutex);
    answer->value = std::move(value);
    answer->given.notify_all();
  });
  if (!posted) return fail(Code::out_of_space, "too many requests wait for the subscriber");
  const Time deadline = deadline_in(kLoopPatience);
  const StopWakes wakes(stop, answer->mutex, answer->given);
  MutexLock lock(answer->mutex);
  while (!answer->value) {
    if (stop.stop_requested()) return fail(Code::cancelled, "the request was stopped by its caller");
    if (!answer->given.wait_until(answer->mutex, deadline)) break;
  }
  if (!answer->value) return fail(Code::timed_out, "the subscriber is busy");
  return *answer->value;
}

std::string state_of(const LoopReport::News& news) {
  if (news.serving == 0) return "nothing is served yet";
  return format("@{} is served", news.serving);
}

Status stopped(VersionNumber version) {
  return fail(Code::cancelled, format("the wait for @{} was stopped by its caller", version));
}

/// Until that version is staged (or, `or_served`, served); says why not otherwise.
Status wait_until_there(SubscriberLoop& loop, VersionNumber version, bool or_served, Time deadline,
                        const std::stop_token& stop) {
  LoopReport& report = loop.report();
  for (auto news = report.news();; news = report.wait_for_other(news, deadline, stop)) {
    if (news.staged == version || (or_served && news.serving == version)) return {};
    if (stop.stop_requested()) return stopped(version);
    if (news.staging != version) return fail(Code::cancelled, format("@{} was staged instead", news.staging));
    if (news.staging_failed) return fail(Error(*news.staging_failed).with_context(format("stage @{}", version)));
    if (system_clock().now() < deadline) continue;
    const std::string why = loop.shelf().status(system_clock().now()).last_error;
    return fail(Code::timed_out, format("@{} is not here yet{}{}", version, why.empty() ? "" : ": ", why));
  }
}

}  // namespace

Status stage(SubscriberLoop& loop, VersionNumber version, Duration at_most, const std::stop_token& stop) {
  const Time deadline = deadline_in(at_most);
  FRESHET_TRY(on_loop<void>(
      loop.report(), [&loop, version] { return loop.stage(version); }, stop));
  return wait_until_there(loop, version, /*or_served=*/false, deadline, stop);
}

Result<PinTable::Pin> bring(SubscriberLoop& loop, VersionNumber version, Time deadline, const std::stop_token& stop) {
  for (;;) {
    FRESHET_ASSIGN(const PinTable::Pin served, loop.shelf().pin_of(version));
    if (served.slot != nullptr) return served;
    Status there = on_loop<void>(
        loop.report(), [&loop, version] { return loop.bring(version); }, stop);
    if (there) {
      there = wait_until_there(loop, version, /*or_served=*/true, deadline, stop);
    } else if (there.error().code() == Code::failed_precondition && loop.report().news().serving == version) {
      there = Status();  // Refused, since it has just come to be served: it is pinned now, or in the next round.
    }
    Result<PinTable::Pin> pin = there ? loop.shelf().pin_of(version) : fail(there.error());
    // Also after a failure: the loop may bring it yet, though its caller has given up.
    static_cast<void>(loop.report().post([&loop, version] { loop.forget(version); }));
    if (!pin || pin->slot != nullptr) return pin;
    // It was served, and another one is by now.
    if (system_clock().now() >= deadline) return fail(Code::timed_out, format("@{} is not here yet", version));
  }
}

Result<VersionNumber> commit_staged(SubscriberLoop& loop, const std::stop_token& stop) {
  return on_loop<VersionNumber>(
      loop.report(), [&loop] { return loop.commit_staged(); }, stop);
}

Status wait_until_new_enough(SubscriberLoop& loop, const SnapshotRequest& request, Time asked, Time deadline,
                             const std::stop_token& stop) {
  LoopReport& report = loop.report();
  std::optional<VersionNumber> probed_at;
  for (auto news = report.news();; news = report.wait_for_other(news, deadline, stop)) {
    // What was withdrawn just now is served no more, though the news does not say so yet.
    const bool has_come = news.serving != 0 && news.serving >= request.min_version && loop.shelf().serves();
    const bool is_fresh =
        !request.max_staleness || (news.confirmed_at && *news.confirmed_at >= asked - *request.max_staleness);
    if (has_come && is_fresh) return {};
    if (stop.stop_requested()) return stopped(request.min_version);
    if (news.current.hold && news.current.version < request.min_version && !has_come) {
      return fail(Code::failed_precondition,
                  format("@{} is held: @{} is not served until a release", news.current.version, request.min_version));
    }
    if (has_come && probed_at != news.serving) {
      probed_at = news.serving;
      static_cast<void>(report.post([&loop] { loop.probe(); }));
    }
    if (system_clock().now() < deadline) continue;
    if (!has_come) {
      const std::string what =
          request.min_version == 0 ? "no version came" : format("@{} did not come", request.min_version);
      const std::string why = loop.shelf().status(system_clock().now()).last_error;
      return fail(Code::timed_out, format("{}; {}{}{}", what, state_of(news), why.empty() ? "" : ": ", why));
    }
    return fail(Code::timed_out,
                format("{}, and no publisher confirmed in time that it is still current", state_of(news)));
  }
}

}  // namespace freshet::detail
