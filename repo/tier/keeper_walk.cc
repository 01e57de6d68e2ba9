// SPDX-License-Identifier: Apache-2.0
// The keeper's thread that lists folders which are to be copied ahead, and looks whether the sources of copies are
// still there.

#include <filesystem>
#include <utility>

#include "repo/tier/keeper.h"

namespace freshet::tier {
namespace {

constexpr std::size_t kAheadWaitingMax = 1024;

}  // namespace

/// Waits for room in the queue; does nothing once no tier has any, or the keeper ends.
void Keeper::push_ahead(std::string path) {
  {
    const MutexLock lock(mutex_);
    while (ahead_.size() >= kAheadWaitingMax && !stop_.load() && !is_full_) changed_.wait(mutex_);
    if (stop_.load() || is_full_) return;
    ahead_.push_back(std::move(path));
    publish_books();
  }
  changed_.notify_all();
}

void Keeper::walk() {
  namespace files = std::filesystem;
  for (;;) {
    std::string root;
    bool looks = false;
    {
      const MutexLock lock(mutex_);
      while (roots_.empty() && !should_look_ && !stop_.load()) changed_.wait(mutex_);
      if (stop_.load()) return;
      walking_ = true;
      looks = std::exchange(should_look_, false);
      if (!looks) {
        root = std::move(roots_.front());
        roots_.pop_front();
      }
    }
    const auto is_over = [this] {
      const MutexLock lock(mutex_);
      return stop_.load() || is_full_;
    };
    std::error_code error;
    if (looks) {
      look_for_sources();
    } else if (!files::is_directory(root, error)) {
      push_ahead(root);
    } else {
      files::recursive_directory_iterator at(root, files::directory_options::skip_permission_denied, error);
      for (; !error && at != files::recursive_directory_iterator() && !is_over(); at.increment(error)) {
        std::error_code gone;
        if (at->is_regular_file(gone)) push_ahead(at->path().string());
      }
    }
    bool idle = false;
    {
      const MutexLock lock(mutex_);
      walking_ = false;
      idle = is_idle_now();
    }
    if (idle) on_idle_();
  }
}

}  // namespace freshet::tier
