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

SendBudget::SendBudget(Limits limits)
    : limits_(limits), all_(std::make_shared<Count>(0)), look_at_(kIdlePeersBeforeALook) {}

SendBudget::Sent SendBudget::send(zmq::socket_t& router, const std::string& peer, std::shared_ptr<const void> owner,
                                  Bytes body, Bytes head) {
  if (peers_.size() >= look_at_) forget_idle();
  std::shared_ptr<Count>& waiting = peers_[peer];
  if (waiting == nullptr) waiting = std::make_shared<Count>(0);
  const auto fits = [&body](const Count& count, std::uint64_t limit) {
    const std::uint64_t before = count.load(std::memory_order_relaxed);
    return before == 0 || (body.size() <= limit && before <= limit - body.size());
  };
  if (!fits(*waiting, limits_.peer_bytes)) return Sent::no_room;
  if (!fits(*all_, limits_.all_bytes)) return Sent::crowded;
  try {
    const auto more = zmq::send_flags::dontwait | zmq::send_flags::sndmore;
    if (!router.send(zmq::buffer(peer), more)) return Sent::no_room;
    if (!head.empty() && !router.send(zmq::buffer(head.data(), head.size()), more)) return Sent::no_peer;
    auto* const lent =
        new Lent{.owner = std::move(owner), .all = all_, .peer = waiting, .bytes = std::uint64_t{body.size()}};
    all_->fetch_add(lent->bytes, std::memory_order_relaxed);
    waiting->fetch_add(lent->bytes, std::memory_order_relaxed);
    // ZeroMQ never writes to what it sends.
    zmq::message_t message(const_cast<std::byte*>(body.data()), body.size(), Lent::give_back, lent);
    return router.send(message, zmq::send_flags::dontwait) ? Sent::yes : Sent::no_peer;
  } catch (const zmq::error_t&) {
    return Sent::no_peer;
  }
}

std::uint64_t SendBudget::waiting(const std::string& peer) const {
  const auto at = peers_.find(peer);
  return at == peers_.end() ? 0 : at->second->load(std::memory_order_relaxed);
}

std::string SendBudget::largest() const {
  const auto at = std::max_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
    return a.second->load(std::memory_order_relaxed) < b.second->load(std::memory_order_relaxed);
  });
  return at == peers_.end() ? std::string() : at->first;
}

void SendBudget::forget_idle() {
  std::erase_if(peers_, [](const auto& entry) { return entry.second->load(std::memory_order_relaxed) == 0; });
  look_at_ = std::max(kIdlePeersBeforeALook, 2 * peers_.size());
}

}  // namespace freshet
