#include "transport/protocol/publisher_session.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace freshet::protocol {

PublisherSession::PublisherSession(Peer peer, Hello hello, std::uint64_t serial, std::uint64_t token)
    : peer_(std::move(peer)), hello_(std::move(hello)), serial_(serial), token_(token) {}

bool PublisherSession::accept_request(std::uint64_t request) {
  if (request == 0 || request < last_request_) return false;
  last_request_ = request;
  return true;
}

std::uint64_t PublisherSession::grant(VersionNumber number, HeldVersions& versions) {
  FRESHET_CHECK(versions.hold(number, grant_holder()));
  holds_[number] = ++last_grant_;
  return last_grant_;
}

void PublisherSession::apply(const Held& held, HeldVersions& versions) {
  const std::set<VersionNumber> kept(held.numbers.begin(), held.numbers.end());
  for (auto hold = holds_.begin(); hold != holds_.end();) {
    if (hold->second > held.grants_seen || kept.contains(hold->first)) {
      ++hold;
      continue;
    }
    versions.release(hold->first, grant_holder());
    hold = holds_.erase(hold);
  }
}

std::vector<VersionNumber> PublisherSession::held() const {
  std::vector<VersionNumber> numbers;
  for (const auto& [number, grant] : holds_) numbers.push_back(number);
  return numbers;
}

void PublisherSession::enqueue(VersionNumber number, HeldVersions& versions, std::size_t queue_max) {
  if (!versions.hold(number, queue_holder())) return;
  queue_.insert(number);
  if (queue_.size() <= std::max<std::size_t>(queue_max, 1)) return;
  const auto never_granted = [this](VersionNumber queued) { return !holds(queued); };
  const auto oldest = std::find_if(queue_.begin(), std::prev(queue_.end()), never_granted);
  if (oldest != std::prev(queue_.end())) give_up(*oldest, versions);
}

void PublisherSession::acknowledge(VersionNumber after, HeldVersions& versions) {
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

}  // namespace freshet::protocol
