// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/protocol.h"

#include <utility>

namespace freshet::cluster {

bool Reply::unknown() const {
  if (!error) return false;
  switch (error->code()) {
    case Code::unavailable:
    case Code::timed_out:
    case Code::io_error:
    case Code::cancelled: return true;
    default: return false;
  }
}

Call PutMachine::call(Call::Kind kind, ProviderIndex provider) const {
  return {.kind = kind, .provider = provider, .version = plan_.version, .attempt = plan_.attempt};
}

std::vector<Call> PutMachine::issue(std::vector<Call> calls) {
  outstanding_ += calls.size();
  return calls;
}

std::vector<Call> PutMachine::start() {
  std::vector<Call> calls;
  if (plan_.registrar) calls.push_back(call(Call::Kind::number, *plan_.registrar));
  for (const Plan::Inherited& inherited : plan_.inherited) {
    calls.push_back(call(Call::Kind::refer, inherited.provider));
    calls.back().segments = inherited.segments;
  }
  if (!calls.empty()) return issue(std::move(calls));
  stage_ = Stage::committing;
  return issue({call(Call::Kind::commit, plan_.home)});
}

// Also where a refer failed: it may have been done without an answer.
std::vector<Call> PutMachine::undo() {
  stage_ = plan_.inherited.empty() ? Stage::finished : Stage::undoing;
  std::vector<Call> calls;
  for (const Plan::Inherited& inherited : plan_.inherited) {
    calls.push_back(call(Call::Kind::drop, inherited.provider));
  }
  return issue(std::move(calls));
}

std::vector<Call> PutMachine::on_reply(const Call& answered, const Reply& reply) {
  --outstanding_;
  switch (stage_) {
    case Stage::preparing:
      if (reply.error && !error_) error_ = reply.error;
      if (outstanding_ != 0) return {};
      if (error_) return undo();
      stage_ = Stage::committing;
      return issue({call(Call::Kind::commit, plan_.home)});
    case Stage::committing:
      if (!reply.error) {
        stage_ = Stage::finished;
        return {};
      }
      error_ = reply.error;
      // Asked twice over a bad connection, a home may answer that the version is there: perhaps this attempt's.
      if (!reply.unknown() && error_->code() != Code::already_exists) return undo();
      stage_ = Stage::settling;
      return issue({call(Call::Kind::settle, plan_.home)});
    case Stage::settling:
      if (reply.error) {
        // Whether it exists, nobody can say now. Its references must stay as long as it may.
        error_ = reply.error;
        undecided_ = true;
        stage_ = Stage::finished;
        return {};
      }
      if (!reply.there) return undo();
      error_.reset();
      stage_ = Stage::finished;
      return {};
    case Stage::undoing:
      // What a drop did not reach is found by settling.
      if (outstanding_ == 0) stage_ = Stage::finished;
      return {};
    case Stage::finished: break;
  }
  (void)answered;
  return {};
}

std::vector<Call> RetireMachine::ask_home(Call::Kind kind) {
  outstanding_ = 1;
  return {{.kind = kind, .provider = home_, .version = version_, .attempt = attempt_}};
}

std::vector<Call> RetireMachine::on_reply(const Call& answered, const Reply& reply) {
  --outstanding_;
  // A provider that kept a reference needs it not; settling drops it.
  if (answered.kind == Call::Kind::drop) return {};
  // One that is retired already may have been by this very withdrawal, asked twice over a bad connection.
  const bool was_retired =
      is_withdrawal_ && answered.kind == Call::Kind::retire && reply.error && reply.error->code() == Code::not_found;
  if (reply.error && !was_retired) {
    error_ = reply.error;
    return {};
  }
  if (answered.kind == Call::Kind::settle && reply.there) return ask_home(Call::Kind::retire);
  std::vector<Call> calls;
  for (const ProviderIndex provider : inherited_from_) {
    calls.push_back({.kind = Call::Kind::drop, .provider = provider, .version = version_, .attempt = attempt_});
  }
  outstanding_ = calls.size();
  return calls;
}

void SettleMachine::keep(const Error& reason) {
  ++kept_;
  if (!reason_) reason_ = reason;
}

std::vector<Call> SettleMachine::next() {
  std::vector<Call> calls;
  for (; at_ < referrers_.size() && outstanding_ < kSettleCallsMax; ++at_) {
    const Referrer& referrer = referrers_[at_];
    if (!referrer.home) {
      keep(Error(Code::not_found, "the home of version " + to_string(referrer.version) + " is not a known provider"));
      continue;
    }
    calls.push_back({.kind = Call::Kind::settle,
                     .provider = *referrer.home,
                     .version = referrer.version,
                     .attempt = referrer.attempt});
    ++outstanding_;
  }
  return calls;
}

std::vector<Call> SettleMachine::on_reply(const Call& call, const Reply& reply) {
  --outstanding_;
  if (reply.error) {
    keep(*reply.error);
  } else if (call.kind == Call::Kind::drop) {
    ++dropped_;
  } else if (!reply.there) {
    ++outstanding_;
    return {{.kind = Call::Kind::drop, .provider = provider_, .version = call.version, .attempt = call.attempt}};
  }
  return next();
}

}  // namespace freshet::cluster
