// SPDX-License-Identifier: Apache-2.0
#include "tests/repo/log/log_network.h"

#include <memory>
#include <set>

namespace freshet::sim {

using log::Answer;

void LogNetwork::send(log::Call call, std::function<void(const Answer&)> told, Duration slower) {
  const bool creates = std::holds_alternative<log::call::Create>(call.what);
  const bool writes = creates || std::holds_alternative<log::call::Replace>(call.what) ||
                      std::holds_alternative<log::call::Remove>(call.what);
  Answer none;
  none.kind = creates ? Answer::Kind::unsettled : Answer::Kind::failed;
  none.error = Error(Code::timed_out, "no answer");
  const Duration within = std::min<Duration>(call.within, 3 * kSecond);
  const auto shared = std::make_shared<log::Call>(std::move(call));
  const Duration first = slower + (fault(0.05) ? some(400 * kMillisecond, 1400 * kMillisecond)
                                               : some(3 * kMillisecond, 30 * kMillisecond));
  const Duration back =
      fault(0.05) ? some(400 * kMillisecond, 1400 * kMillisecond) : some(3 * kMillisecond, 30 * kMillisecond);
  if (fault(0.02)) {  // Too busy.
    none.kind = creates ? Answer::Kind::refused : Answer::Kind::failed;
    return at(first, [told, none] { told(none); });
  }
  if (fault(0.04)) return at(within, [told, none] { told(none); });  // The request is lost.
  if (fault(0.04)) {                                                 // The answer is lost.
    at(first, [this, shared] { apply(*shared); });
    return at(within, [told, none] { told(none); });
  }
  if (writes && fault(0.03)) {  // The request is late.
    ++late_writes_;
    at(some(within, 60 * kSecond), [this, shared] { apply(*shared); });
    return at(within, [told, none] { told(none); });
  }
  if (writes && fault(0.04)) {  // The same request is done again, later.
    ++late_writes_;
    at(first + some(Duration(0), 40 * kSecond), [this, shared] { apply(*shared); });
  }
  if (creates && fault(0.05)) {  // The client did not hear, and asked again within the call.
    at(first, [this, shared] { apply(*shared); });
  }
  const auto answer = [this, shared, told, none, back, within, begun = now_] {
    Answer answered = apply(*shared);
    const Duration left = begun + within - now_;
    if (back <= left) {
      at(back, [told, answered] { told(answered); });
    } else {
      at(std::max(left, Duration(0)), [told, none] { told(none); });
    }
  };
  at(first, answer);
}

Answer LogNetwork::apply(const log::Call& call) {
  std::set<std::string> unlisted;
  const auto* list = std::get_if<log::call::List>(&call.what);
  if (list != nullptr && fault(0.3)) {
    // A listing that is late does not show what was made in the last seconds.
    for (const auto& [key, when] : made_) {
      if (now_ - when < 2 * kSecond) unlisted.insert(key);
    }
  }
  Answer answer = oracle_.apply(call, store_unix_s(), unlisted);
  if (answer.kind == Answer::Kind::created) made_[std::get<log::call::Create>(call.what).key] = now_;
  return answer;
}

}  // namespace freshet::sim
