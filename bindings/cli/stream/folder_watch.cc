// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/stream/folder_watch.h"

#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "bindings/cli/frame/number_order.h"
#include "bindings/cli/training/checkpoint_folder.h"
#include "core/base/format.h"
#include "core/safetensors/model_file.h"

namespace freshet::cli {
namespace {

/// Closing is no sign of wholeness (a writer may open again), and no change of content either.
constexpr std::uint32_t kEvents =
    IN_MOVED_TO | IN_CREATE | IN_MODIFY | IN_MOVED_FROM | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;

constexpr int kScanPauseFactor = 20;

bool is_model_file(const std::string& name) {
  return (name.ends_with(".safetensors") || is_safetensors_index(name)) && !name.starts_with('.');
}

}  // namespace

void FolderWatch::add_to(Stamp& stamp, const Stamp& part) {
  stamp.inode = stamp.inode * 31 + part.inode;
  stamp.bytes += part.bytes;
  stamp.modified_ns = std::max(stamp.modified_ns, part.modified_ns);
}

FolderWatch::Stamp FolderWatch::stamp_at(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return {};
  Stamp stamp{.inode = file.st_ino,
              .bytes = file.st_size,
              .modified_ns = std::int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec};
  if (!is_safetensors_index(path)) return stamp;
  const auto parts = files_of_safetensors_index(path);
  for (std::size_t i = 0; parts && i < parts->size(); ++i) add_to(stamp, stamp_at((*parts)[i]));
  return stamp;
}

Result<FolderWatch> FolderWatch::open(const std::string& folder, Duration settle, Duration look_every) {
  FolderWatch watch(folder, settle, look_every);
  auto news = FolderNews::open(folder, kEvents);
  if (news) watch.news_ = std::move(*news);
  FRESHET_TRY(watch.scan(system_clock().now()));
  return watch;
}

Result<std::vector<std::string>> FolderWatch::wait(Time deadline, int stop) {
  for (;;) {
    const Time now = system_clock().now();
    FRESHET_TRY(read_events(now));
    if (now >= scan_at_) FRESHET_TRY(look_now_and_then(now));
    std::vector<std::string> whole = take_whole(now);
    if (!whole.empty() || now >= deadline) return whole;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::min(deadline, next_look()) - now).count();
    pollfd waiters[] = {{.fd = news_ ? news_->descriptor() : -1, .events = POLLIN, .revents = 0},
                        {.fd = stop, .events = POLLIN, .revents = 0}};
    (void)::poll(waiters, 2, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    if ((waiters[1].revents & POLLIN) != 0) return std::vector<std::string>{};
  }
}

/// A server of files may be away for a while; only a folder that is gone ends the watch.
Status FolderWatch::look_now_and_then(Time now) {
  scan_at_ = now + look_every_;
  const Status scanned = scan(now);
  if (scanned || scanned.error().code() == Code::out_of_space) return scanned;
  if (scanned.error().code() == Code::not_found) {
    return fail(Code::unavailable, format("watch {}: the folder is gone", folder_));
  }
  return {};
}

std::vector<FolderWatch::File> FolderWatch::waiting() const {
  std::vector<std::pair<std::uint64_t, File>> ordered;
  for (const auto& [name, pending] : pending_) {
    ordered.push_back({pending.order, {name, content_stamp_of(name).modified_ns}});
  }
  std::ranges::sort(ordered, {}, [](const auto& entry) { return entry.first; });
  std::vector<File> files;
  for (auto& [order, file] : ordered) files.push_back(std::move(file));
  return files;
}

void FolderWatch::pass_over(const std::string& name) {
  const auto pending = pending_.find(name);
  if (pending == pending_.end()) return;
  taken_[name] = content_stamp_of(name);
  pending_.erase(pending);
}

FolderWatch::File FolderWatch::handed_out(const std::string& path) const {
  const std::string name = name_of(path);
  const auto taken = taken_.find(name);
  return {.name = name, .modified_ns = taken == taken_.end() ? 0 : taken->second.modified_ns};
}

void FolderWatch::look_again(const std::string& path) {
  const std::string name = name_of(path);
  taken_.erase(name);
  (void)await(name, false, system_clock().now());
}

Status FolderWatch::read_events(Time now) {
  if (!news_) return {};
  return news_->take([&](std::uint32_t mask, std::string_view name) { return on_event(mask, std::string(name), now); });
}

Status FolderWatch::on_event(std::uint32_t mask, const std::string& name, Time now) {
  if ((mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT)) != 0) {
    return fail(Code::unavailable, format("watch {}: the folder is gone", folder_));
  }
  if ((mask & IN_Q_OVERFLOW) != 0) return scan(now);
  if ((mask & (IN_MOVED_FROM | IN_DELETE)) != 0) {
    pending_.erase(name);
    taken_.erase(name);
    return {};
  }
  if (!is_watched(name)) return {};
  // An index is whole by itself, but its parts may still be written.
  return await(name, (mask & IN_MOVED_TO) != 0 && !is_safetensors_index(name), now);
}

Status FolderWatch::scan(Time now) {
  std::map<std::string, Stamp> still_there;
  struct Found {
    std::uint64_t step;  ///< 0 of a file.
    std::int64_t modified_ns;
    std::string name;
  };
  std::vector<Found> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_watched(name) || pending_.contains(name)) continue;  // Those are looked at until they are whole.
    const Stamp stamp = content_stamp_of(name);
    const auto taken = taken_.find(name);
    const bool is_known = taken != taken_.end() && taken->second == stamp;
    if (is_known) still_there.insert(*taken);
    // Checkpoints come after the files, which were there before the trainer that writes them.
    const auto step = step_of_checkpoint(name);
    if (!is_known && stamp != Stamp()) found.push_back({step ? *step + 1 : 0, step ? 0 : stamp.modified_ns, name});
  }
  if (error) return fail_errno(error.value(), format("watch {}", folder_));
  taken_ = std::move(still_there);
  // Copied or unpacked files may have one time; then their numbers tell the order.
  std::ranges::sort(found, [](const auto& a, const auto& b) {
    if (a.step != b.step || a.modified_ns != b.modified_ns) {
      return std::pair(a.step, a.modified_ns) < std::pair(b.step, b.modified_ns);
    }
    return comes_before_by_number(a.name, b.name);
  });
  for (const Found& one : found) FRESHET_TRY(await(one.name, false, now));
  // A folder that is slow to read is read more rarely.
  const Time done = system_clock().now();
  scan_at_ = done + std::max(look_every_, kScanPauseFactor * (done - now));
  return {};
}

Status FolderWatch::await(const std::string& name, bool renamed, Time now) {
  if (!pending_.contains(name) && pending_.size() >= kWatchedFilesMax) {
    return fail(Code::out_of_space, format("watch {}: more than {} files at a time", folder_, kWatchedFilesMax));
  }
  Pending& pending = pending_[name];
  if (pending.order == 0 || renamed) pending.order = ++arrivals_;
  pending.stamp = stamp_of(name);
  pending.unchanged_since = now;
  pending.renamed = renamed;
  return {};
}

std::vector<std::string> FolderWatch::take_whole(Time now) {
  std::vector<std::pair<std::uint64_t, std::string>> whole;
  for (auto it = pending_.begin(); it != pending_.end();) {
    auto& [name, pending] = *it;
    const Stamp stamp = stamp_of(name);
    if (stamp != pending.stamp && !pending.renamed) {
      pending.stamp = stamp;  // Written through a mapping, which inotify does not see.
      pending.unchanged_since = now;
    }
    if (!pending.renamed && now - pending.unchanged_since < settle_) {
      ++it;
      continue;
    }
    whole.emplace_back(pending.order, path_of(name));
    taken_[name] = step_of_checkpoint(name) ? content_stamp_of(name) : stamp;
    it = pending_.erase(it);
  }
  std::ranges::sort(whole);
  std::vector<std::string> paths;
  for (auto& [order, path] : whole) paths.push_back(std::move(path));
  return paths;
}

Time FolderWatch::next_look() const {
  Time next = scan_at_;
  for (const auto& [name, pending] : pending_) next = std::min(next, pending.unchanged_since + settle_);
  return next;
}

bool FolderWatch::is_watched(const std::string& name) const {
  std::error_code error;
  return is_model_file(name) || (step_of_checkpoint(name) && std::filesystem::is_directory(path_of(name), error));
}

FolderWatch::Stamp FolderWatch::stamp_of(const std::string& name) const {
  Stamp stamp = stamp_at(path_of(name));
  if (!step_of_checkpoint(name)) return stamp;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_of(name), error), end; !error && entry != end;
       entry.increment(error)) {
    add_to(stamp, stamp_at(entry->path().string()));
  }
  return stamp;
}

FolderWatch::Stamp FolderWatch::content_stamp_of(const std::string& name) const {
  if (!step_of_checkpoint(name)) return stamp_of(name);
  const auto weights = weights_of_checkpoint(path_of(name));
  // Without weights it is the same folder, whatever else comes into it.
  return weights ? stamp_at(*weights) : Stamp{.inode = stamp_at(path_of(name)).inode, .bytes = 0};
}

}  // namespace freshet::cli
