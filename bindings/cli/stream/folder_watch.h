// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tells when a file in a folder is whole: it was renamed into place, or it has not changed for a while. Files that
/// are there at the start count too, oldest first. Only `*.safetensors` and the indexes of models in parts
/// (`*.safetensors.index.json`) are looked at, and none that begins with a dot.
///
/// A folder checkpoint-N is handed out as one, in the order of N: whole when nothing in it has changed for a while, and
/// again when its weights change. So is one without weights, and a link to one, once: whoever takes it says so.
///
/// News come from inotify, but they are hints: the kernel may lose some, and it hears nothing of what another host does
/// to a shared file system (NFS, SMB, Lustre), nor of what is written to the target of a link. So the watch also reads
/// the folder again every other second and compares it with the last state.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/host/folder_news.h"

namespace freshet::cli {

inline constexpr std::size_t kWatchedFilesMax = 65536;
inline constexpr Duration kLookAgainEvery = std::chrono::seconds(2);

/// One thread at a time.
class FolderWatch {
 public:
  /// A file counts as whole when it has not changed for `settle`. not_found when there is no such folder.
  static Result<FolderWatch> open(const std::string& folder, Duration settle, Duration look_every = kLookAgainEvery);

  /// Waits until at least one file is whole, `stop` becomes readable, or the deadline; empty in the latter cases. Paths
  /// in the order in which they became whole. unavailable when the folder is gone.
  Result<std::vector<std::string>> wait(Time deadline, int stop);

  struct File {
    std::string name;
    std::int64_t modified_ns = 0;
  };
  /// The files that are there and were not handed out, oldest first.
  std::vector<File> waiting() const;
  /// Not to be handed out as it is now.
  void pass_over(const std::string& name);
  /// Of a file that was handed out: as it was then.
  File handed_out(const std::string& path) const;
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }

  /// Judges a file anew that turned out to be still in the making.
  void look_again(const std::string& path);

 private:
  /// Tells one content of a file from another without reading it. An index's is of its parts too, a folder's of all its
  /// files.
  struct Stamp {
    std::uint64_t inode = 0;
    std::int64_t bytes = -1;
    std::int64_t modified_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  struct Pending {
    std::uint64_t order = 0;
    Stamp stamp;
    Time unchanged_since;
    bool renamed = false;
  };

  FolderWatch(std::string folder, Duration settle, Duration look_every)
      : folder_(std::move(folder)), settle_(settle), look_every_(look_every) {}
  Status read_events(Time now);
  Status look_now_and_then(Time now);
  Status on_event(std::uint32_t mask, const std::string& name, Time now);
  Status scan(Time now);
  Status await(const std::string& name, bool renamed, Time now);
  std::vector<std::string> take_whole(Time now);
  Time next_look() const;
  static Stamp stamp_at(const std::string& path);
  static void add_to(Stamp& stamp, const Stamp& part);
  bool is_watched(const std::string& name) const;
  Stamp stamp_of(const std::string& name) const;
  /// The same, of a folder's weights alone: what comes beside them later makes no new version.
  Stamp content_stamp_of(const std::string& name) const;
  std::string name_of(const std::string& path) const { return path.substr(folder_.size() + 1); }

  std::string folder_;
  Duration settle_;
  Duration look_every_;
  std::optional<FolderNews> news_;  ///< None where the system has no watches left.
  Time scan_at_{};
  std::uint64_t arrivals_ = 0;
  std::map<std::string, Pending> pending_;
  std::map<std::string, Stamp> taken_;  ///< Of the files handed out, as they were then.
};

}  // namespace freshet::cli
