// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/keeper/requests.h"

#include <utility>

#include "repo/tier/keeper/lookahead.h"

namespace freshet::tier {
namespace {

constexpr std::size_t kRootsMax = 100'000;
constexpr std::size_t kLaterMax = 100'000;
constexpr std::size_t kAheadWaitingMax = 1024;
constexpr int kDeferralsMax = 3;  ///< Of a file that changes each time it is looked at.

}  // namespace

Requests::Asked Requests::ask(std::string path) {
  if (wanted_.contains(path)) return Asked::known;
  // As much as may be told ahead: an epoch of a million files may begin faster than it is copied.
  if (asked_.size() >= Lookahead::kToldMax || asked_bytes_ + path.size() > Lookahead::kToldBytesMax) {
    return Asked::lost;
  }
  asked_bytes_ += path.size();
  asked_.push_back(&*wanted_.insert(std::move(path)).first);
  return Asked::taken;
}

Status Requests::add_root(std::string path) {
  if (roots_.size() >= kRootsMax) return fail(Code::out_of_space, "too many paths wait to be copied: settle first");
  roots_.push_back(std::move(path));
  return {};
}

std::optional<std::string> Requests::next_root() {
  if (roots_.empty()) return std::nullopt;
  std::string root = std::move(roots_.front());
  roots_.pop_front();
  return root;
}

bool Requests::has_room_ahead() const { return ahead_.size() < kAheadWaitingMax; }

bool Requests::defer(const std::string& path, Time time) {
  const auto known = deferred_.find(path);
  if (known != deferred_.end() && known->second.waits) return true;
  const int times = known == deferred_.end() ? 0 : known->second.times;
  if (times == kDeferralsMax || (known == deferred_.end() && deferred_.size() >= kLaterMax)) {
    deferred_.erase(path);
    return false;
  }
  deferred_[path] = {.times = times + 1, .waits = true};
  later_.emplace(time, path);
  return true;
}

std::optional<std::string> Requests::next_due(Time now) {
  if (later_.empty() || later_.begin()->first > now) return std::nullopt;
  std::string path = std::move(later_.begin()->second);
  later_.erase(later_.begin());
  deferred_[path].waits = false;
  return path;
}

std::optional<Time> Requests::next_due_at() const {
  return later_.empty() ? std::nullopt : std::optional(later_.begin()->first);
}

Requests::Request Requests::next() {
  Request request;
  if (!asked_.empty()) {
    request = {.path = *asked_.front(), .was_asked = true};
    asked_bytes_ -= request.path.size();
    asked_.pop_front();
  } else {
    request.path = std::move(ahead_.front());
    ahead_.pop_front();
  }
  return request;
}

}  // namespace freshet::tier
