// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Brings what this rank stores of a version to the repository, where each rank can open it.

#include <cstdint>
#include <optional>
#include <span>
#include <thread>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/restart/question.h"
#include "repo/part_puts.h"

namespace freshet::levels {

/// Any thread; bring() one at a time.
class Bringer {
 public:
  explicit Bringer(const Job& job) : job_(job), pace_(job.options.limit_bytes_per_second) {}
  Bringer(const Bringer&) = delete;
  Bringer& operator=(const Bringer&) = delete;

  /// At ranks other than 0: a thread that carries out what rank 0 asks for.
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void end() FRESHET_EXCLUDES(mutex_);
  /// REQUIRES: end() was called.
  void join();
  bool has_ended() const FRESHET_EXCLUDES(mutex_);

  /// Rank 0 asks this rank for its part; of two requests, the newer one counts.
  void take_request(const Question& request) FRESHET_EXCLUDES(mutex_);
  /// On the calling thread: brings what this rank stores of these tensors (indices of the table, ascending), each chunk
  /// proved. Opens the repository, the first time. corrupt: a shard here is damaged. cancelled after end(). Errors as
  /// PartPuts::put_parts().
  Status bring(const Version& version, std::uint64_t step, const PutToken& token,
               std::span<const std::uint32_t> tensors);

  /// The version that is on its way to the repository; tests end a process in the middle of it.
  void set_sending(VersionNumber number, std::uint64_t step) FRESHET_EXCLUDES(mutex_);
  /// Its step, if `key` is a shard of that version.
  std::optional<std::uint64_t> step_of_sending(const ShardKey& key) const FRESHET_EXCLUDES(mutex_);

 private:
  Result<Repository*> repository();
  void run() FRESHET_EXCLUDES(mutex_);

  const Job& job_;
  Pace pace_;
  std::shared_ptr<Repository> repository_;  ///< bring()'s.
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<Question> request_ FRESHET_GUARDED_BY(mutex_);
  VersionNumber sending_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::uint64_t sending_step_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool ended_ FRESHET_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace freshet::levels
