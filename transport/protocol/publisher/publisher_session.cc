// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/publisher_session.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace freshet::protocol {

PublisherSession::PublisherSession(Peer peer, Hello hello, std::uint32_t common, HolderId holder, std::uint64_t token,
                                   std::string_view key)
    : peer_(std::move(peer)),
      hello_(std::move(hello)),
      common_channels_(common),
      holder_(holder),
      token_(token),
      key_(key),
      acknowledged_(hello_.after) {}

void PublisherSession::hear(Time now) {
  last_heard = now;
  silent = false;
}

bool PublisherSession::accept_request(std::uint64_t request) {
  if (request == 0 || request < last_request_) return false;
  last_request_ = request;
  return true;
}

std::uint64_t PublisherSession::grant(VersionNumber number, HeldVersions& versions) {
  FRESHET_CHECK(versions.hold(number, grant_holder()));
  Hold& hold = holds_[number];
  hold.mapped = true;
  return hold.grant = ++last_grant_;
}

std::uint64_t PublisherSession::grant(VersionNumber number, LeaseId lease) {
  Hold& hold = holds_[number];
  hold.lease = lease;
  return hold.grant = ++last_grant_;
}

LeaseId PublisherSession::lease_of(VersionNumber number) const {
  const auto hold = holds_.find(number);
  return hold == holds_.end() ? 0 : hold->second.lease;
}

std::vector<LeaseId> PublisherSession::apply(const Held& held, HeldVersions& versions) {
  const std::set<VersionNumber> kept(held.numbers.begin(), held.numbers.end());
  std::vector<LeaseId> leases;
  for (auto at = holds_.begin(); at != holds_.end();) {
    const auto& [number, hold] = *at;
    if (hold.grant > held.grants_seen || kept.contains(number)) {
      ++at;
      continue;
    }
    if (hold.mapped) versions.release(number, grant_holder());
    if (hold.lease != 0) leases.push_back(hold.lease);
    at = holds_.erase(at);
  }
  return leases;
}

void PublisherSession::release_mapped(HeldVersions& versions) {
  versions.release_all(grant_holder());
  for (auto& [number, hold] : holds_) hold.mapped = false;
  std::erase_if(holds_, [](const auto& hold) { return hold.second.lease == 0; });
}

bool PublisherSession::has_leases() const {
  return std::any_of(holds_.begin(), holds_.end(), [](const auto& hold) { return hold.second.lease != 0; });
}

void PublisherSession::drop_lease(LeaseId lease) {
  for (auto at = holds_.begin(); at != holds_.end();) {
    Hold& hold = at->second;
    if (hold.lease == lease) hold.lease = 0;
    at = hold.lease == 0 && !hold.mapped ? holds_.erase(at) : std::next(at);
  }
}

void PublisherSession::drop_leases() {
  for (auto& [number, hold] : holds_) hold.lease = 0;
  std::erase_if(holds_, [](const auto& hold) { return !hold.second.mapped; });
}

std::vector<VersionNumber> PublisherSession::held() const {
  std::vector<VersionNumber> numbers;
  for (const auto& [number, hold] : holds_) numbers.push_back(number);
  return numbers;
}

void PublisherSession::enqueue(VersionNumber number, HeldVersions& versions, std::size_t queue_max) {
  if (number <= acknowledged_ || !versions.hold(number, queue_holder())) return;
  queue_.insert(number);
  if (queue_.size() <= std::max<std::size_t>(queue_max, 1)) return;
  const auto never_granted = [this](VersionNumber queued) { return !holds(queued); };
  const auto oldest = std::find_if(queue_.begin(), std::prev(queue_.end()), never_granted);
  if (oldest != std::prev(queue_.end())) give_up(*oldest, versions);
}

void PublisherSession::acknowledge(VersionNumber after, HeldVersions& versions) {
  acknowledged_ = std::max(acknowledged_, after);
  while (!queue_.empty() && *queue_.begin() <= after) {
    versions.release(*queue_.begin(), queue_holder());
    queue_.erase(queue_.begin());
  }
}

std::optional<VersionNumber> PublisherSession::first_queued() const {
  return queue_.empty() ? std::nullopt : std::optional(*queue_.begin());
}

std::uint64_t PublisherSession::give_up(VersionNumber number, HeldVersions& versions) {
  FRESHET_CHECK(queue_.erase(number) == 1);
  ++gaps_;
  return versions.release(number, queue_holder());
}

void PublisherSession::end(HeldVersions& versions) {
  versions.release_all(grant_holder());
  versions.release_all(queue_holder());
  holds_.clear();
  queue_.clear();
}

void PublisherSession::leave(HeldVersions& versions) {
  has_left = silent = true;
  waiting.reset();
  postponed.reset();
  drop_leases();
  versions.release_all(queue_holder());
  queue_.clear();
}

void PublisherSession::hear(const Staged& word) {
  if (word_ && word.turn < word_->turn) return;  // It was overtaken.
  const bool is_said_again = word_ && word_->failed && word_->turn == word.turn && word_->number == word.number;
  if (word.failed && !is_said_again) ++failures_;
  if (!word.failed) staged = word.number;
  word_ = word;
}

SubscriberStat PublisherSession::stat(Time now) const {
  return {.label = hello_.label,
          .pid = hello_.pid,
          .every = hello_.mode == Mode::every,
          .silent = silent,
          .serving = serving,
          .held = held(),
          .queued_versions = queue_.size(),
          .gaps = gaps_,
          .channel = std::string(to_string(channel)),
          .channel_why = channel_why,
          .serves = hello_.serves,
          .member = hello_.staged,
          .epoch = epoch,
          .staged = staged,
          .failed = word_ && word_->failed ? word_->failed->message() : std::string(),
          .behind = behind,
          .failures = failures_,
          .staleness = staleness.at(now)};
}

}  // namespace freshet::protocol
