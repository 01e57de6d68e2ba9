// SPDX-License-Identifier: Apache-2.0
#include "core/host/folder_news.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/format.h"

namespace freshet {

Result<FolderNews> FolderNews::open(const std::string& folder, std::uint32_t events) {
  FileDescriptor descriptor(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!descriptor || ::inotify_add_watch(descriptor.get(), folder.c_str(), events | IN_ONLYDIR) < 0) {
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
