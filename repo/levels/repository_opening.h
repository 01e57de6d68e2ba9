// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Opens a repository on a thread of its own, while the opener does something else. One thread at a time; has_failed():
/// any thread.

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <system_error>
#include <utility>

#include "core/base/result.h"
#include "repo/repository.h"

namespace freshet::levels {

class RepositoryOpening {
 public:
  using Opened = Result<std::shared_ptr<Repository>>;

  explicit RepositoryOpening(std::function<Opened()> open) {
    auto note_failure = [this, open = std::move(open)]() -> Opened {
      Opened opened = open();
      has_failed_ = !opened && opened.error().code() != Code::corrupt;
      return opened;
    };
    try {
      opened_ = std::async(std::launch::async, note_failure);
    } catch (const std::system_error&) {  // The system gives no more threads: wait() opens.
      opened_ = std::async(std::launch::deferred, note_failure);
    }
  }
  RepositoryOpening(const RepositoryOpening&) = delete;
  RepositoryOpening& operator=(const RepositoryOpening&) = delete;

  /// Of a damaged one the job can go on without.
  bool has_failed() const { return has_failed_; }
  /// Once. The destructor waits, too.
  Opened wait() { return opened_.get(); }

 private:
  std::atomic<bool> has_failed_ = false;
  std::future<Opened> opened_;  ///< Last: its destructor waits for the thread, which uses the rest.
};

}  // namespace freshet::levels
