// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/keeper/lookahead.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace freshet::tier {
namespace {

std::uint64_t hash_of_told(const std::string& path) { return std::hash<std::string>()(path); }

}  // namespace

Result<Lookahead::Stream> Lookahead::begin() {
  if (streams_.size() >= kStreamsMax) return fail(Code::out_of_space, "too many programs tell an order at once");
  streams_[++last_begun_];
  return last_begun_;
}

std::optional<Time> Lookahead::begins_at(Time now) const {
  return has_next() && now < not_before_ ? std::optional(not_before_) : std::nullopt;
}

Status Lookahead::tell(Stream stream, std::string path) {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return {};
  if (waiting_ >= kToldMax || waiting_bytes_ + path.size() > kToldBytesMax)
    return fail(Code::out_of_space, "the orders name too many files that no program has opened yet");
  Order& order = at->second;
  order.places.emplace(hash_of_told(path), order.next_place);
  ++waiting_;
  waiting_bytes_ += path.size();
  order.waiting.push_back({.place = order.next_place++, .path = std::move(path), .tries = 0});
  return {};
}

void Lookahead::drop_first(Order& order) {
  const Waiting& first = order.waiting.front();
  const auto place = order.places.find(hash_of_told(first.path));
  if (place != order.places.end() && place->second == first.place) order.places.erase(place);
  --waiting_;
  waiting_bytes_ -= first.path.size();
  order.waiting.pop_front();
}

void Lookahead::anew(Stream stream) {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return;
  while (!at->second.waiting.empty()) drop_first(at->second);
}

void Lookahead::end_if_done(std::map<Stream, Order>::iterator at) {
  if (at->second.was_left && at->second.waiting.empty()) streams_.erase(at);
}

void Lookahead::leave(Stream stream) {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return;
  at->second.was_left = true;
  end_if_done(at);
}

void Lookahead::end(Stream stream) {
  anew(stream);
  streams_.erase(stream);
}

bool Lookahead::missed(const std::string& path) {
  bool dropped = false;
  const std::uint64_t hash = hash_of_told(path);
  for (auto at = streams_.begin(); at != streams_.end();) {
    const auto order = at++;
    const auto place = order->second.places.find(hash);
    if (place == order->second.places.end()) continue;
    // Of two paths with one hash the wrong one may be taken: some hints are lost.
    dropped = true;
    const std::uint64_t last = place->second;
    order->second.passed = last;
    while (!order->second.waiting.empty() && order->second.waiting.front().place <= last) drop_first(order->second);
    end_if_done(order);
  }
  return dropped;
}

Lookahead::Told Lookahead::next() {
  auto at = streams_.upper_bound(last_served_);
  for (std::size_t tries = 0; tries <= streams_.size(); ++tries, ++at) {
    if (at == streams_.end()) at = streams_.begin();
    if (!at->second.waiting.empty()) break;
  }
  Order& order = at->second;
  const Waiting& first = order.waiting.front();
  Told told{.stream = at->first, .place = first.place, .path = first.path, .tries = first.tries};
  last_served_ = at->first;
  drop_first(order);
  return told;
}

void Lookahead::done(Stream stream) {
  if (const auto at = streams_.find(stream); at != streams_.end()) end_if_done(at);
}

void Lookahead::put_back(Told told) {
  const auto at = streams_.find(told.stream);
  if (at == streams_.end() || told.place <= at->second.passed) return;
  Order& order = at->second;
  order.places[hash_of_told(told.path)] = told.place;
  ++waiting_;
  waiting_bytes_ += told.path.size();
  // Others of the stream may have been taken meanwhile and put back before this one.
  const auto later = std::ranges::find_if(order.waiting, [&](const Waiting& one) { return one.place > told.place; });
  order.waiting.insert(later, {.place = told.place, .path = std::move(told.path), .tries = told.tries});
}

}  // namespace freshet::tier
