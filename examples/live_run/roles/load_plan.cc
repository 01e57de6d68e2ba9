// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/roles/load_plan.h"

#include <algorithm>

namespace freshet::live {

LoadPlan::LoadPlan(const Options& options, Time start)
    : options_(options), start_(start), servers_(std::max(options.servers, 1u)) {}

std::optional<LoadPlan::Send> LoadPlan::next_send(Time now) {
  while (!resends_.empty() && resends_.front().first <= now) {
    const std::uint64_t id = resends_.front().second;
    resends_.pop_front();
    const auto it = open_.find(id);
    if (it == open_.end() || it->second.resend_at > now) continue;
    return send_to(id, it->second, choose(now, it->second.last_server), now);
  }
  const Duration into(static_cast<std::int64_t>(static_cast<double>(arrivals_) / options_.rate * 1e9));
  if (!arriving_ || start_ + into > now) return std::nullopt;
  const std::uint64_t id = ++arrivals_;
  by_deadline_.push_back(id);
  Open& open = open_[id];
  open.due = start_ + into;
  open.sent = now;
  return send_to(id, open, choose(now, std::nullopt), now);
}

LoadPlan::Send LoadPlan::send_to(std::uint64_t id, Open& open, std::uint32_t server, Time now) {
  open.last_server = server;
  ++open.sends;
  open.resend_at = now + options_.hedge_after;
  resends_.emplace_back(open.resend_at, id);
  if (!servers_[server].waiting_since) servers_[server].waiting_since = now;
  return {.id = id, .server = server};
}

void LoadPlan::on_unsendable(const Send& send, Time now) {
  servers_[send.server].waiting_since = now - options_.hedge_after;
  on_not_ready(send, now);
}

/// Asks again after a moment: an answer that says "not ready" comes at once, and so would the next.
void LoadPlan::on_not_ready(const Send& from, Time now) {
  const auto it = open_.find(from.id);
  if (it == open_.end()) return;
  const Duration moment = it->second.sends < servers_.size() ? Duration::zero() : options_.hedge_after / 5;
  it->second.resend_at = now + moment;
  it->second.last_server = from.server;
  // The queue is in order of time but for these; they stand at its front or wait behind a few that come sooner.
  const auto before = [](const auto& entry, Time at) { return entry.first < at; };
  const auto place = std::lower_bound(resends_.begin(), resends_.end(), it->second.resend_at, before);
  resends_.insert(place, {it->second.resend_at, from.id});
}

std::optional<Duration> LoadPlan::on_answer(const Send& from, Time now) {
  servers_[from.server].waiting_since.reset();
  const auto it = open_.find(from.id);
  if (it == open_.end()) return std::nullopt;
  const Duration latency = now - it->second.due;
  open_.erase(it);
  return latency;
}

std::uint64_t LoadPlan::expire(Time now) {
  std::uint64_t failed = 0;
  while (!by_deadline_.empty()) {
    const auto it = open_.find(by_deadline_.front());
    if (it != open_.end() && it->second.sent + options_.deadline > now) break;
    if (it != open_.end()) {
      open_.erase(it);
      ++failed;
    }
    by_deadline_.pop_front();
  }
  return failed;
}

bool LoadPlan::suspect(std::uint32_t server, Time now) const {
  const auto& since = servers_[server].waiting_since;
  return since && now - *since >= options_.hedge_after;
}

/// The next server in turn that is not suspect; a suspect one when its probe is due, or when there is nobody else.
std::uint32_t LoadPlan::choose(Time now, std::optional<std::uint32_t> not_this) {
  const auto count = static_cast<std::uint32_t>(servers_.size());
  std::optional<std::uint32_t> fallback;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t server = (turn_ + i) % count;
    if (server == not_this && count > 1) continue;
    const bool probe = suspect(server, now) && !not_this && servers_[server].next_probe <= now;
    if (probe) servers_[server].next_probe = now + options_.probe_every;
    if (probe || !suspect(server, now)) {
      turn_ = server + 1;
      return server;
    }
    if (!fallback) fallback = server;
  }
  turn_ = *fallback + 1;
  return *fallback;
}

Time LoadPlan::next_event(Time now) const {
  Time next = now + std::chrono::milliseconds(20);
  if (arriving_) {
    const Duration into(static_cast<std::int64_t>(static_cast<double>(arrivals_) / options_.rate * 1e9));
    next = std::min(next, start_ + into);
  }
  if (!resends_.empty()) next = std::min(next, resends_.front().first);
  return std::max(next, now);
}

}  // namespace freshet::live
