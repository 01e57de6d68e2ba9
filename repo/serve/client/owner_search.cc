// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/owner_search.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::rpc {

bool is_absence(const Error& error) { return error.code() == Code::unavailable || error.code() == Code::timed_out; }

OwnerSearch::OwnerSearch(Options options, const Known& known, Time now)
    : options_(std::move(options)),
      last_owner_(known.owner),
      doubted_(known.doubted),
      moves_(known.moves),
      deadline_(now + options_.connect),
      source_due_(now) {
  begin_round();
}

void OwnerSearch::begin_round() {
  servers_.clear();
  if (last_owner_) servers_.push_back(*last_owner_);
  servers_.push_back({.address = options_.first, .public_key = {}});
  if (moves_) {
    for (const std::string& other : options_.others) servers_.push_back({.address = other, .public_key = {}});
  }
  asked_.clear();
  at_ = 0;
  asks_doubted_ = false;
  asked_source_ = !options_.has_source;
}

std::optional<ServedOwner> OwnerSearch::next_server() {
  while (at_ < servers_.size() && asked_.size() < kAskedMax) {
    const ServedOwner& server = servers_[at_++];
    if (server.address == doubted_ && !asks_doubted_) continue;
    if (asked_.insert(server.address).second) return server;
  }
  return std::nullopt;
}

OwnerSearch::Step OwnerSearch::next(Time now) {
  if (failed_) return *failed_;
  std::optional<ServedOwner> server = next_server();
  if (!server && !asked_source_ && now >= source_due_) {
    asked_source_ = true;
    source_due_ = now + options_.source_pause;
    return AskSource{.deadline = now + options_.source};
  }
  if (!server && !std::exchange(asks_doubted_, true)) {
    at_ = 0;
    server = next_server();
  }
  if (server) {
    asking_ = server->address;
    return AskServer{*server, moves_ ? std::min(deadline_, now + options_.one_of_several) : deadline_};
  }
  if (!gives_up_) gives_up_ = now + options_.takeover;
  if (now + options_.pause >= *gives_up_)
    return last_.value_or(Error(Code::unavailable, "no owner of the repository can be reached"));
  deadline_ = *gives_up_;
  begin_round();
  return Wait{.until = now + options_.pause};
}

void OwnerSearch::on_standby(const ServedOwner& told) {
  moves_ = true;
  if (!told.address.empty()) servers_.push_back(told);
  if (!last_) last_ = Error(Code::unavailable, format("{} stands by, and no owner can be reached", asking_));
}

void OwnerSearch::on_error(Error error, bool moves) {
  moves_ = moves_ || moves;
  (moves_ && is_absence(error) ? last_ : failed_) = std::move(error);
}

void OwnerSearch::on_source(const ServedOwner& told) {
  if (!told.address.empty()) servers_.push_back(told);
}

}  // namespace freshet::rpc
