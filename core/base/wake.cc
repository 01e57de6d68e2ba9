// SPDX-License-Identifier: Apache-2.0
#include "core/base/wake.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace freshet {
namespace {

bool wait_for(short event, int descriptor, Time deadline) {
  pollfd file{.fd = descriptor, .events = event, .revents = 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - system_clock().now());
  return ::poll(&file, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000))) > 0;
}

}  // namespace

bool wait_readable(int descriptor, Time deadline) { return wait_for(POLLIN, descriptor, deadline); }
bool wait_writable(int descriptor, Time deadline) { return wait_for(POLLOUT, descriptor, deadline); }

Result<Wake> Wake::open() {
  FileDescriptor descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!descriptor) return fail_errno(errno, "make an eventfd");
  return Wake(std::move(descriptor));
}

void Wake::wake() const {
  const std::uint64_t one = 1;
  // A full counter wakes too; an eventfd knows no other failure.
  [[maybe_unused]] const auto wrote = ::write(descriptor_.get(), &one, sizeof one);
}

void Wake::acknowledge() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(descriptor_.get(), &count, sizeof count);
}

}  // namespace freshet
