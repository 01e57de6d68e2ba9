// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A folder of versions, published inside this process: the channel `file`, for hosts that have nothing in common but a
/// shared folder. The follower reads and proves each version, puts it into an arena, and serves it from there, so that
/// everything else (snapshots, pins, swaps) is as with any publisher. Versions keep the folder's numbers. Nobody else
/// finds it: its host directory is a private one.

#include <memory>
#include <string>
#include <thread>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/wake.h"
#include "transport/publisher.h"

namespace freshet::file {

/// Any thread.
class FolderFollower {
 public:
  struct Options {
    std::string folder;  ///< Need not be there yet.
    std::string model;
    bool every = false;
    VersionNumber after = 0;
  };
  static Result<std::unique_ptr<FolderFollower>> open(Options options);
  ~FolderFollower();

  /// Of its control socket.
  std::string address() const { return publisher_->address(); }
  /// Of the last version that was passed over; empty when none was.
  std::string last_error() const FRESHET_EXCLUDES(mutex_);

 private:
  FolderFollower(Options options, std::string private_folder, Wake wake)
      : options_(std::move(options)), private_folder_(std::move(private_folder)), stop_(std::move(wake)) {}
  void follow();
  void set_error(std::string error) FRESHET_EXCLUDES(mutex_);

  const Options options_;
  const std::string private_folder_;  ///< A host directory of its own; removed with it.
  const Wake stop_;
  std::unique_ptr<Publisher> publisher_;
  mutable Mutex mutex_;
  std::string last_error_ FRESHET_GUARDED_BY(mutex_);
  std::thread thread_;
};

/// "file:///mnt/share/demo" is a folder's address; nothing for other text.
bool is_folder_address(const std::string& text);
/// invalid_argument unless it is "file://" and an absolute path.
Result<std::string> folder_of_address(const std::string& text);

}  // namespace freshet::file
