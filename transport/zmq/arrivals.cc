// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/arrivals.h"

// Not <netinet/tcp.h>, whose tcp_info ends before the count of bytes.
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <utility>

namespace freshet {
namespace {

constexpr long kLookAgainNs = 10'000'000;
constexpr std::size_t kStirsPerCall = 64;
/// After so many looks at a connection of which nothing was received, it has half a message and no backlog. A message
/// that is not large comes within them.
constexpr int kLooksOfHalf = 25;
/// Less is the beginning of a message as all have.
constexpr std::uint64_t kBeginning = std::uint64_t{64} << 10;
constexpr std::size_t kInfoBytesNeeded =
    offsetof(tcp_info, tcpi_bytes_received) + sizeof(tcp_info::tcpi_bytes_received);

}  // namespace

Arrivals::Arrivals(ArrivalLimits limits)
    : limits_(limits),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = timer_.get()}};
  if (epoll_ && timer_) ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event);
}

/// Told once, until it is watched again: ZeroMQ reads what came, and we only want to know that something did.
void Arrivals::watch(int connection, int operation) const {
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.fd = connection}};
  if (epoll_) ::epoll_ctl(epoll_.get(), operation, connection, &event);
}

void Arrivals::add(int connection) {
  // ZeroMQ may have read all that came before this was known: nothing would tell of that.
  connections_[connection] = Connection{.stirred = true};
  watch(connection, EPOLL_CTL_ADD);
  look_later();
}

void Arrivals::remove(int connection) {
  // ZeroMQ has closed it, which took it out of the set. The descriptor may be anybody's by now: it is not touched.
  connections_.erase(connection);
}

void Arrivals::took(int connection, std::uint64_t bytes) {
  const auto at = connections_.find(connection);
  if (at == connections_.end()) return;
  at->second.taken += bytes;
  at->second.looks = 0;
  taken_ += bytes;
}

std::uint64_t Arrivals::waiting(int connection) const {
  const auto at = connections_.find(connection);
  return at == connections_.end() ? 0 : at->second.waiting();
}

void Arrivals::measure(int descriptor, Connection& connection) {
  // In this order: what comes in between counts as read for a moment, and is measured again. The other way round too
  // little would count as read, and what was taken would be cut below and lost: a friend would be put out in the end.
  int unread = 0;
  if (::ioctl(descriptor, FIONREAD, &unread) != 0) return;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || bytes < kInfoBytesNeeded) return;
  const std::uint64_t received = info.tcpi_bytes_received;
  const auto still_there = static_cast<std::uint64_t>(std::max(unread, 0));
  connection.arrived = received > still_there ? received - still_there : 0;
  // ZeroMQ may read the rest without anything coming, which nobody would tell: to be measured again.
  connection.stirred = still_there > 0;
}

std::uint64_t Arrivals::resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return statm ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

/// ZeroMQ tells nobody how many parts a message has that is not whole yet, and bytes do not tell it either. Memory
/// does.
bool Arrivals::grows_too_much(std::uint64_t waiting, std::uint64_t halves) {
  if (limits_.growth_bytes == 0) return false;
  // What ended gives its memory back, or the next one's would come on top.
  if (waiting <= ArrivalLimits::kAllBytesSmall && std::exchange(to_trim_, false)) ::malloc_trim(0);
  const std::uint64_t resident = resident_bytes();
  if (waiting <= ArrivalLimits::kAllBytesSmall || resident_then_ == 0) {
    resident_then_ = resident;
    taken_then_ = taken_;
    return false;
  }
  const bool too_much = resident > resident_then_ + limits_.growth_bytes + 2 * (waiting + taken_ - taken_then_);
  if (!too_much) return false;
  look_later();
  if (halves <= ArrivalLimits::kAllBytesSmall) return false;
  to_trim_ = true;
  return true;
}

void Arrivals::look_later() {
  if (std::exchange(timer_runs_, true)) return;
  const itimerspec once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = kLookAgainNs}};
  if (timer_) ::timerfd_settime(timer_.get(), 0, &once, nullptr);
}

bool Arrivals::is_due() {
  if (!epoll_ || !timer_) {
    for (auto& [descriptor, connection] : connections_) connection.stirred = true;
    return true;
  }
  bool due = false;
  std::array<epoll_event, kStirsPerCall> events;
  for (int count = -1; count != 0;) {
    count = std::max(0, ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0));
    for (int i = 0; i < count; ++i) {
      const int descriptor = events[static_cast<std::size_t>(i)].data.fd;
      if (descriptor == timer_.get()) {
        std::uint64_t expirations = 0;
        if (::read(timer_.get(), &expirations, sizeof expirations) == sizeof expirations) {
          due = true;
          timer_runs_ = false;
        }
      } else if (const auto at = connections_.find(descriptor); at != connections_.end()) {
        at->second.stirred = true;
        look_later();
      }
    }
  }
  return due;
}

std::vector<Arrivals::Excess> Arrivals::look() {
  std::vector<Excess> excess;
  if (!is_due()) return excess;
  Excess most, most_of_halves;
  std::uint64_t all = 0, halves = 0;
  for (auto& [descriptor, connection] : connections_) {
    if (connection.stirred) {
      connection.stirred = false;
      measure(descriptor, connection);
      watch(descriptor, EPOLL_CTL_MOD);
      if (connection.stirred) look_later();
    }
    const std::uint64_t waiting = connection.waiting();
    all += waiting;
    connection.looks = waiting <= kBeginning ? 0 : std::min(connection.looks + 1, kLooksOfHalf);
    if (connection.looks == kLooksOfHalf) {
      halves += waiting;
      if (waiting > most_of_halves.bytes) most_of_halves = {.connection = descriptor, .bytes = waiting};
    }
    if (waiting > limits_.connection_bytes) {
      excess.push_back({.connection = descriptor, .bytes = waiting});
    } else if (waiting > most.bytes) {
      most = {.connection = descriptor, .bytes = waiting};
    }
  }
  if (excess.empty() && all > limits_.all_bytes) excess.push_back(most);
  if (excess.empty() && grows_too_much(all, halves)) excess.push_back(most_of_halves);
  // What they have sent goes when they are removed; whether that was enough is to be seen.
  if (!excess.empty()) look_later();
  return excess;
}

}  // namespace freshet
