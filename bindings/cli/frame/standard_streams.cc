// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace freshet::cli {

Status hold_standard_streams() {
  const auto is_closed = [](int stream) { return ::fcntl(stream, F_GETFD) < 0 && errno == EBADF; };
  while (is_closed(STDIN_FILENO) || is_closed(STDOUT_FILENO) || is_closed(STDERR_FILENO)) {
    // The kernel gives the lowest number that is free. Not close-on-exec: a command that is started needs them too.
    const int descriptor = ::open("/dev/null", O_RDWR);
    if (descriptor < 0) return fail_errno(errno, "open /dev/null");
    if (descriptor > STDERR_FILENO) ::close(descriptor);
  }
  return {};
}

}  // namespace freshet::cli
