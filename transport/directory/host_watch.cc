// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/host_watch.h"

#include <sys/inotify.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/format.h"
#include "transport/directory/host_files.h"

namespace freshet {

Result<HostWatch> HostWatch::open(const std::string& folder) {
  FileDescriptor descriptor(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!descriptor || ::inotify_add_watch(descriptor.get(), folder.c_str(), IN_MOVED_TO | IN_ONLYDIR) < 0) {
    return fail(Code::unsupported, format("watch {}: {}", folder, std::strerror(errno)));
  }
  return HostWatch(std::move(descriptor));
}

bool HostWatch::take(const std::string& model) {
  const std::string entry = model + std::string(host_files::kEntrySuffix);
  const std::string current = model + std::string(host_files::kCurrentSuffix);
  bool concerned = false;
  alignas(inotify_event) std::array<char, 4096> bytes;
  for (;;) {
    const ssize_t got = ::read(descriptor_.get(), bytes.data(), bytes.size());
    if (got <= 0) return concerned;
    for (std::size_t at = 0; at + sizeof(inotify_event) <= static_cast<std::size_t>(got);) {
      const auto* event = reinterpret_cast<const inotify_event*>(bytes.data() + at);
      // After an overflow anything may have happened.
      const std::string_view name = event->len > 0 ? event->name : "";
      if ((event->mask & IN_Q_OVERFLOW) != 0 || name == entry || name == current ||
          host_files::is_server_file(name, model)) {
        concerned = true;
      }
      at += sizeof(inotify_event) + event->len;
    }
  }
}

}  // namespace freshet
