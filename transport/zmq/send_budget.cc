// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/send_budget.h"

#include <algorithm>
#include <utility>

namespace freshet {
namespace {
constexpr std::size_t kIdlePeersBeforeALook = 64;
}  // namespace

/// What ZeroMQ has of ours while a message waits; it goes on ZeroMQ's thread, possibly after the budget.
struct SendBudget::Lent {
  std::shared_ptr<const void> owner;
  std::shared_ptr<Count> all;
  std::shared_ptr<Count> peer;
  std::uint64_t bytes = 0;

  static void give_back(void*, void* hint) {
    const std::unique_ptr<Lent> lent(static_cast<Lent*>(hint));
    lent->peer->fetch_sub(lent->bytes, std::memory_order_relaxed);
    lent->all->fetch_sub(lent->bytes, std::memory_order_relaxed);
  }
};

SendBudget::SendBudget(Limits limits) : limits_(limits), look_at_(kIdlePeersBeforeALook) {}

bool SendBudget::Queue::has_room(std::uint64_t bytes, std::uint64_t limit) const {
  const std::uint64_t before = waiting->load(std::memory_order_relaxed);
  return before == 0 || before + bytes - std::min(before + bytes, std::max(largest, bytes)) <= limit;
}

void SendBudget::Queue::add(std::uint64_t bytes) {
  const bool was_empty = waiting->fetch_add(bytes, std::memory_order_relaxed) == 0;
  largest = was_empty ? bytes : std::max(largest, bytes);
}

SendBudget::Sent SendBudget::send(zmq::socket_t& router, const std::string& peer, std::shared_ptr<const void> owner,
                                  Bytes body, Bytes head) {
  if (peers_.size() >= look_at_) forget_idle();
  Queue& queue = peers_[peer];
  if (!queue.has_room(body.size(), limits_.peer_bytes)) return Sent::no_room;
  if (!all_.has_room(body.size(), limits_.all_bytes)) return Sent::crowded;
  try {
    const auto more = zmq::send_flags::dontwait | zmq::send_flags::sndmore;
    if (!router.send(zmq::buffer(peer), more)) return Sent::no_room;
    if (!head.empty() && !router.send(zmq::buffer(head.data(), head.size()), more)) return Sent::no_peer;
    auto* const lent =
        new Lent{.owner = std::move(owner), .all = all_.waiting, .peer = queue.waiting, .bytes = body.size()};
    all_.add(lent->bytes);
    queue.add(lent->bytes);
    // ZeroMQ never writes to what it sends.
    zmq::message_t message(const_cast<std::byte*>(body.data()), body.size(), Lent::give_back, lent);
    return router.send(message, zmq::send_flags::dontwait) ? Sent::yes : Sent::no_peer;
  } catch (const zmq::error_t&) {
    return Sent::no_peer;
  }
}

std::uint64_t SendBudget::waiting(const std::string& peer) const {
  const auto at = peers_.find(peer);
  return at == peers_.end() ? 0 : at->second.waiting->load(std::memory_order_relaxed);
}

std::string SendBudget::largest() const {
  const auto at = std::max_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
    return a.second.waiting->load(std::memory_order_relaxed) < b.second.waiting->load(std::memory_order_relaxed);
  });
  return at == peers_.end() ? std::string() : at->first;
}

void SendBudget::forget_idle() {
  std::erase_if(peers_, [](const auto& entry) { return entry.second.waiting->load(std::memory_order_relaxed) == 0; });
  look_at_ = std::max(kIdlePeersBeforeALook, 2 * peers_.size());
}

}  // namespace freshet
