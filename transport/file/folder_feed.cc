#include "transport/file/folder_feed.h"

#include <poll.h>
#include <sys/inotify.h>

#include <algorithm>
#include <array>

namespace freshet::file {

FolderFeed::FolderFeed(std::string folder, Options options)
    : folder_(std::move(folder)), options_(options), last_(options.after) {}

Result<const FolderWeights*> FolderFeed::next(Time deadline, int stop) {
  for (;;) {
    watch();  // Before looking, so that nothing appears in between unseen.
    if (const auto number = find_next()) {
      const Status status = read(*number);
      const Time now = system_clock().now();
      if (status) {
        failing_.reset();
        last_ = *number;
        return &weights_;
      }
      if (!failing_ || failing_->number != *number) failing_ = Failing{.number = *number, .since = now};
      if (now - failing_->since >= options_.writing_max) {
        failing_.reset();
        last_ = *number;
        return fail(status.error());
      }
    }
    const Time now = system_clock().now();
    if (now >= deadline || wait(std::min(deadline, now + options_.poll), stop)) return nullptr;
  }
}

std::optional<VersionNumber> FolderFeed::find_next() const {
  const auto reader = WeightFolderReader::open(folder_);
  if (!reader) return std::nullopt;
  if (!options_.every) {
    const auto newest = reader->latest();
    return newest && *newest > last_ ? std::optional(*newest) : std::nullopt;
  }
  const auto all = reader->versions();
  if (!all) return std::nullopt;
  const auto next = std::upper_bound(all->begin(), all->end(), last_);
  return next == all->end() ? std::nullopt : std::optional(*next);
}

Status FolderFeed::read(VersionNumber number) {
  FRESHET_ASSIGN(const WeightFolderReader reader, WeightFolderReader::open(folder_));
  return reader.read(number, weights_);
}

/// Without it, the folder is looked at all the same.
void FolderFeed::watch() {
  if (inotify_) return;
  FileDescriptor descriptor(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!descriptor) return;
  constexpr std::uint32_t kWhat = IN_MOVED_TO | IN_CREATE | IN_CLOSE_WRITE | IN_ONLYDIR;
  if (::inotify_add_watch(descriptor.get(), folder_.c_str(), kWhat) >= 0) inotify_ = std::move(descriptor);
}

/// True when it is to stop.
bool FolderFeed::wait(Time until, int stop) {
  std::array<pollfd, 2> files{pollfd{.fd = stop, .events = POLLIN, .revents = 0},
                              pollfd{.fd = inotify_.get(), .events = POLLIN, .revents = 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - system_clock().now());
  ::poll(files.data(), files.size(), static_cast<int>(std::max<std::int64_t>(0, left.count())));
  if (inotify_ && files[1].revents != 0) {
    std::array<char, 4096> news;
    while (::read(inotify_.get(), news.data(), news.size()) > 0) continue;
  }
  return files[0].revents != 0;
}

}  // namespace freshet::file
