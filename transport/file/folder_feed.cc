// SPDX-License-Identifier: Apache-2.0
#include "transport/file/folder_feed.h"

#include <poll.h>

#include <algorithm>
#include <array>

namespace freshet::file {
namespace {

/// Between two looks at a version that is wrong and that nobody changes.
constexpr Duration kPauseMax = std::chrono::minutes(1);

}  // namespace

FolderFeed::FolderFeed(std::string folder, Options options)
    : folder_(std::move(folder)), options_(options), last_(options.after) {}

Result<const FolderWeights*> FolderFeed::next(Time deadline, int stop) {
  for (;;) {
    if (!news_) {  // Before looking, so that nothing appears in between unseen.
      auto news = FolderNews::open(folder_, IN_MOVED_TO | IN_CREATE | IN_CLOSE_WRITE);
      if (news) news_ = std::move(*news);  // Without it, the folder is looked at all the same.
    }
    for (const VersionNumber number : find_candidates()) {
      const Time now = system_clock().now();
      if (is_due(number, now)) {
        const Status status = read(number);
        if (status) {
          take(number);
          return &weights_;
        }
        if (auto error = on_failure(number, status.error(), system_clock().now())) return fail(std::move(*error));
      }
      // In order, one that is still being written holds up those behind it; otherwise the newest that is whole will do.
      if (options_.every && !is_given_up(number, now)) break;
    }
    const Time now = system_clock().now();
    if (now >= deadline || wait(std::min(deadline, now + options_.poll), stop)) return nullptr;
  }
}

/// Above the last one: ascending when each is wanted, otherwise from the newest down.
std::vector<VersionNumber> FolderFeed::find_candidates() const {
  const auto reader = WeightFolderReader::open(folder_);
  if (!reader) return {};
  auto all = reader->versions();
  if (!all) return {};
  all->erase(all->begin(), std::ranges::upper_bound(*all, last_));
  if (options_.every) return *all;
  const auto newest = reader->latest();
  if (!newest) return {};
  all->erase(std::ranges::upper_bound(*all, *newest), all->end());
  std::ranges::reverse(*all);
  return *all;
}

bool FolderFeed::is_due(VersionNumber number, Time now) {
  const auto failing = failing_.find(number);
  if (failing == failing_.end() || now >= failing->second.next) return true;
  const auto reader = WeightFolderReader::open(folder_);
  return reader && reader->look_of(number) != failing->second.look;
}

bool FolderFeed::is_given_up(VersionNumber number, Time now) const {
  const auto failing = failing_.find(number);
  return failing != failing_.end() && now - failing->second.since >= options_.writing_max;
}

void FolderFeed::take(VersionNumber number) {
  last_ = number;
  failing_.erase(failing_.begin(), failing_.upper_bound(number));
}

std::optional<Error> FolderFeed::on_failure(VersionNumber number, const Error& error, Time now) {
  const auto reader = WeightFolderReader::open(folder_);
  std::string look = reader ? reader->look_of(number) : std::string();
  const auto [at, is_new] = failing_.try_emplace(number);
  Failing& failing = at->second;
  if (is_new || failing.look != look) failing = {.look = std::move(look), .since = now, .told = failing.told};
  // One that is not whole is found out from its headers; one that is wrong costs a read of all that it has.
  const bool is_cheap = error.code() == Code::unavailable;
  const Duration failed_for = now - failing.since;
  failing.next = is_cheap ? now : now + std::clamp(failed_for, options_.poll, std::max(options_.poll, kPauseMax));
  if (failing.told || failed_for < options_.writing_max) return std::nullopt;
  failing.told = true;
  return error;
}

Status FolderFeed::read(VersionNumber number) {
  FRESHET_ASSIGN(const WeightFolderReader reader, WeightFolderReader::open(folder_));
  return reader.read(number, weights_);
}

/// True when it is to stop.
bool FolderFeed::wait(Time until, int stop) {
  std::array<pollfd, 2> files{pollfd{.fd = stop, .events = POLLIN, .revents = 0},
                              pollfd{.fd = news_ ? news_->descriptor() : -1, .events = POLLIN, .revents = 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - system_clock().now());
  ::poll(files.data(), files.size(), static_cast<int>(std::max<std::int64_t>(0, left.count())));
  if (files[1].revents != 0) (void)news_->take();
  return files[0].revents != 0;
}

}  // namespace freshet::file
