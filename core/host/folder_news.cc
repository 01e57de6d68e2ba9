// SPDX-License-Identifier: Apache-2.0
#include "core/host/folder_news.h"

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/base/format.h"
#include "core/base/log.h"

namespace freshet {
namespace {

/// Said once: whoever asks for news looks at the folder itself now and then where there are none.
void tell_once(const Error& error) {
  static std::atomic_flag told;
  if (told.test_and_set()) return;
  log_line(LogLevel::warning,
           format("{}. Until then folders are looked at now and then, and news come later", error.message()));
}

/// The system's own words speak of open files and of disks.
Result<FolderNews> no_news(const std::string& folder, std::string_view what, std::string_view limit) {
  Error error(Code::out_of_space,
              format("watch {}: this user has no inotify {} left; raise {} or end programs that watch files", folder,
                     what, limit));
  tell_once(error);
  return fail(std::move(error));
}

/// EMFILE is also said where the process itself has no descriptor left.
bool has_descriptor_left() { return static_cast<bool>(FileDescriptor(::open("/", O_PATH | O_CLOEXEC))); }

}  // namespace

Result<FolderNews> FolderNews::open(const std::string& folder, std::uint32_t events) {
  FileDescriptor descriptor(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!descriptor && errno == EMFILE && has_descriptor_left()) {
    return no_news(folder, "instance", "fs.inotify.max_user_instances");
  }
  if (!descriptor) return fail_errno(errno, format("watch {}", folder));
  if (::inotify_add_watch(descriptor.get(), folder.c_str(), events | IN_ONLYDIR) < 0) {
    if (errno == ENOSPC) return no_news(folder, "watch", "fs.inotify.max_user_watches");
    return fail_errno(errno, format("watch {}", folder));
  }
  return FolderNews(std::move(descriptor));
}

Status FolderNews::take(const Each& each) const {
  alignas(inotify_event) std::array<char, std::size_t{64} * 1024> news;
  for (;;) {
    const ssize_t got = ::read(descriptor_.get(), news.data(), news.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return {};
    if (got <= 0) return fail_errno(errno, "read the news of a folder");
    for (std::size_t at = 0; each && at < static_cast<std::size_t>(got);) {
      inotify_event event{};
      std::memcpy(&event, news.data() + at, sizeof event);
      const char* const name = news.data() + at + sizeof event;
      FRESHET_TRY(each(event.mask, std::string_view(name, ::strnlen(name, event.len))));
      at += sizeof event + event.len;
    }
  }
}

}  // namespace freshet
