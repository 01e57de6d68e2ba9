// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Threads that share a list of copies with the thread that wants them done. The list is taken from the largest on, so
/// the parts come out even; a helper that the scheduler does not run takes nothing and is not waited for.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/base/digest.h"
#include "core/base/mutex.h"
#include "core/model/tensor.h"

namespace freshet {

/// One tensor's copy.
struct CopyTask {
  MutableBytes to;
  Bytes from;     ///< As long as `to`.
  Digest digest;  ///< Set by run().
};

/// One thread at a time calls run().
class CopyCrew {
 public:
  explicit CopyCrew(std::size_t helpers);
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  /// Copies and digests all; returns when everything is done and visible to the caller.
  void run(std::span<CopyTask> tasks);

 private:
  /// Shared with helpers that wake late, when the list is long done.
  struct Batch {
    std::span<CopyTask> tasks;
    std::vector<std::uint32_t> order;  ///< By size, largest first.
    std::atomic<std::size_t> next{0};
    std::atomic<std::size_t> undone{0};
  };
  static void work_on(Batch& batch);
  void help();

  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Batch> batch_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t batches_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;
};

}  // namespace freshet
