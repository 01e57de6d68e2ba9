// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/hub/peer_budgets.h"

#include <algorithm>
#include <chrono>

namespace freshet {
namespace {

/// What is saved up, in seconds; for answers more than the largest message, which is sent from any positive rest.
constexpr double kSavedSeconds = 1.0;
constexpr std::size_t kPeersBeforeALook = 256;
constexpr Duration kIdleBudget = std::chrono::seconds(5);

}  // namespace

void PeerBudgets::refill(Budget& budget, Time now) const {
  const double seconds = std::chrono::duration<double>(std::max(now - budget.refilled, Duration::zero())).count();
  budget.refilled = std::max(budget.refilled, now);
  const auto grow = [&](double& rest, double rate) { rest = std::min(rest + rate * seconds, rate * kSavedSeconds); };
  grow(budget.messages, limits_.messages_per_second);
  grow(budget.bytes, limits_.answer_bytes_per_second);
  budget.dropped = std::max(0.0, budget.dropped - limits_.messages_per_second * seconds);
}

PeerBudgets::Verdict PeerBudgets::on_message(const std::string& peer, int connection, Time now) {
  if (peers_.size() >= look_at_) forget_idle(now);
  const auto [at, is_new] = peers_.try_emplace(peer);
  Budget& budget = at->second;
  if (is_new) {
    budget = {.messages = limits_.messages_per_second * kSavedSeconds,
              .bytes = limits_.answer_bytes_per_second * kSavedSeconds,
              .refilled = now};
  }
  budget.connection = connection;
  refill(budget, now);
  if (budget.messages >= 1) {
    budget.messages -= 1;
    return Verdict::take;
  }
  budget.dropped += 1;
  return budget.dropped > limits_.messages_per_second ? Verdict::put_out : Verdict::drop;
}

bool PeerBudgets::may_answer(const std::string& peer) const {
  const auto at = peers_.find(peer);
  return at == peers_.end() || at->second.bytes > 0;
}

void PeerBudgets::on_answer(const std::string& peer, std::uint64_t bytes) {
  const auto at = peers_.find(peer);
  if (at != peers_.end()) at->second.bytes -= static_cast<double>(bytes);
}

int PeerBudgets::connection_of(const std::string& peer) const {
  const auto at = peers_.find(peer);
  return at == peers_.end() ? -1 : at->second.connection;
}

void PeerBudgets::forget_idle(Time now) {
  std::erase_if(peers_, [now](const auto& entry) { return now - entry.second.refilled > kIdleBudget; });
  look_at_ = std::max(kPeersBeforeALook, 2 * peers_.size());
}

}  // namespace freshet
