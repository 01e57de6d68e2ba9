// SPDX-License-Identifier: Apache-2.0
#include "tests/support/net/lab/delay_link.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "core/base/format.h"

namespace freshet::lab {
namespace {

constexpr std::size_t kPacketBytesMax = (std::size_t{64} << 10) + 64;
constexpr std::size_t kPacketsPerRound = 64;

Result<FileDescriptor> open_tun(const std::string& name, bool big_packets) {
  FileDescriptor tun(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!tun) return fail_errno(errno, "open /dev/net/tun");
  ifreq request{};
  if (name.size() >= sizeof(request.ifr_name)) return fail(Code::invalid_argument, name + ": the name is too long");
  std::memcpy(request.ifr_name, name.data(), name.size());
  request.ifr_flags = static_cast<short>(IFF_TUN | IFF_NO_PI | (big_packets ? IFF_VNET_HDR : 0));
  if (::ioctl(tun.get(), TUNSETIFF, &request) != 0) return fail_errno(errno, "make a TUN device");
  if (big_packets && ::ioctl(tun.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) {
    return fail_errno(errno, "take whole segments from a TUN device");
  }
  return tun;
}

/// Device, address and queue length in one host.
Result<FileDescriptor> open_end(const NetworkNamespace& host, const DelayLinkOptions& options,
                                const std::string& address) {
  FileDescriptor end;
  FRESHET_TRY(host.run([&]() -> Status {
    FRESHET_ASSIGN(end, open_tun(options.device, options.big_packets));
    return {};
  }));
  FRESHET_TRY(host.command({"ip", "address", "add", address + "/24", "dev", options.device}));
  // What the DelayLine should drop, the device must not drop before it.
  FRESHET_TRY(host.command({"ip", "link", "set", options.device, "txqueuelen", "20000", "up"}));
  return end;
}

using Packet = std::vector<std::byte>;

/// Hands over what has arrived by now.
void deliver(std::multimap<Time, Packet>& on_the_way, Time now, int to) {
  while (!on_the_way.empty() && on_the_way.begin()->first <= now) {
    const Packet& packet = on_the_way.begin()->second;
    while (::write(to, packet.data(), packet.size()) < 0 && errno == EINTR) {
    }  // One that the device refuses is lost, like any other.
    on_the_way.erase(on_the_way.begin());
  }
}

}  // namespace

Result<std::unique_ptr<DelayLink>> DelayLink::open(const NetworkNamespace& first, const NetworkNamespace& second,
                                                   DelayLinkOptions options) {
  const auto needs_frames = [](const LineShape& shape) { return shape.lost > 0 || shape.reordered > 0; };
  if (needs_frames(options.there) || needs_frames(options.back)) options.big_packets = false;
  std::unique_ptr<DelayLink> link(new DelayLink(options.there, options.back));
  FRESHET_ASSIGN(link->first_, open_end(first, options, options.first_address));
  FRESHET_ASSIGN(link->second_, open_end(second, options, options.second_address));
  link->stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  if (!link->stop_) return fail_errno(errno, "eventfd");
  DelayLink* const self = link.get();
  link->there_.thread = std::thread([self] { self->carry(self->first_.get(), self->second_.get(), self->there_); });
  link->back_.thread = std::thread([self] { self->carry(self->second_.get(), self->first_.get(), self->back_); });
  return link;
}

DelayLink::~DelayLink() {
  if (stop_) ::eventfd_write(stop_.get(), 1);
  for (Direction* direction : {&there_, &back_}) {
    if (direction->thread.joinable()) direction->thread.join();
  }
}

void DelayLink::carry(int from, int to, Direction& direction) {
  std::multimap<Time, Packet> on_the_way;  // Equal times keep the order of insertion.
  std::vector<std::byte> buffer(kPacketBytesMax);
  for (;;) {
    std::array<pollfd, 2> polled = {pollfd{.fd = from, .events = POLLIN, .revents = 0},
                                    pollfd{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    timespec wait{};
    if (!on_the_way.empty()) {
      const Duration left = std::max(on_the_way.begin()->first - system_clock().now(), Duration::zero());
      wait = {.tv_sec = left.count() / 1'000'000'000, .tv_nsec = left.count() % 1'000'000'000};
    }
    ::ppoll(polled.data(), polled.size(), on_the_way.empty() ? nullptr : &wait, nullptr);
    if (polled[1].revents != 0) return;
    const Time now = system_clock().now();
    for (std::size_t i = 0; i < kPacketsPerRound; ++i) {
      const ssize_t bytes = ::read(from, buffer.data(), buffer.size());
      if (bytes <= 0) break;
      if (const auto arrival = direction.line.arrival(now, static_cast<std::uint64_t>(bytes))) {
        on_the_way.emplace(*arrival, Packet(buffer.begin(), buffer.begin() + bytes));
      }
    }
    deliver(on_the_way, system_clock().now(), to);
    MutexLock lock(direction.mutex);
    direction.counts = direction.line.counts();
  }
}

DelayLine::Counts DelayLink::there() const {
  MutexLock lock(there_.mutex);
  return there_.counts;
}

DelayLine::Counts DelayLink::back() const {
  MutexLock lock(back_.mutex);
  return back_.counts;
}

}  // namespace freshet::lab
