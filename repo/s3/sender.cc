// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/sender.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/interruption.h"

namespace freshet::s3 {
namespace {

constexpr int kSendTriesMax = 6;
constexpr Duration kPauseFirst = std::chrono::milliseconds(100);
constexpr Duration kPauseMax = std::chrono::seconds(2);

/// False: the deadline comes first, or the caller interrupted the call.
bool pause_before(int next_try, Duration wanted, Time deadline) {
  const Duration grown = std::min(kPauseMax, kPauseFirst * (1 << (next_try - 2)));
  // Half of it is drawn, so that many clients do not come back together.
  const auto half = static_cast<std::uint64_t>(grown.count() / 2);
  const Duration drawn(static_cast<Duration::rep>(half + random_u64(system_env()) % (half + 1)));
  const Time until = system_clock().now() + std::max(drawn, wanted);
  if (until >= deadline) return false;
  while (system_clock().now() < until) {
    if (Interruption::is_wanted()) return false;
    std::this_thread::sleep_until(Interruption::next_look(until));
  }
  return true;
}

Error with_tries(Error error, int tries) {
  if (tries == 1) return error;
  return Error(error.code(), format("{}; it was tried {} times", error.message(), tries));
}

}  // namespace

Told send_until_settled(HttpClient& http, const AskedOf& asked, const Sending& sending) {
  Told told;
  bool has_renewed = false;
  const auto ended = [&](Error error) {
    told.error = std::move(error).with_context(format("{}: {}", asked.place, sending.what));
    return std::move(told);
  };
  for (int tries = 1;; ++tries) {
    Result<HttpRequest> request = sending.make();
    if (!request) return ended(std::move(request).error());
    HttpOutcome outcome = http.send(*request);
    const std::string date(outcome.answer.header("date"));
    Verdict verdict = judge(outcome, asked, date.empty() ? std::nullopt : http.unix_s_of(date), sending.wants_tag);
    told.answer = std::move(outcome.answer);
    if (!verdict.error) return told;
    told.may_be_done = told.may_be_done || verdict.may_be_done || outcome.may_have_arrived;
    if (verdict.renew_credentials && !has_renewed && sending.renew && sending.renew()) {
      has_renewed = true;
      continue;
    }
    if (!verdict.ask_again || tries == kSendTriesMax ||
        !pause_before(tries + 1, verdict.pause_min, request->deadline)) {
      return ended(with_tries(std::move(*verdict.error), tries));
    }
  }
}

Creation creation_of(Told told) {
  if (!told.error) return {.outcome = Created::created};
  if (told.error->code() == Code::already_exists) return {.outcome = Created::exists};
  return {.outcome = told.may_be_done ? Created::unsettled : Created::refused, .error = std::move(*told.error)};
}

}  // namespace freshet::s3
