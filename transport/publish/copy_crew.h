// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The copier of host memory: threads that share a list of copies with the thread that wants them done. The list is
/// taken from the largest on, so the parts come out even; a helper that the scheduler does not run takes nothing and is
/// not waited for.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "transport/publish/tensor_copier.h"

namespace freshet {

class CopyCrew final : public TensorCopier {
 public:
  explicit CopyCrew(std::size_t helpers);
  ~CopyCrew() override;
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  MemoryKind memory_kind() const override { return MemoryKind::host; }
  /// Copies, and digests in the same pass; everything is done when it returns.
  Status issue(std::vector<TensorCopy> copies, Done done) override;

 private:
  /// Shared with helpers that wake late, when the list is long done.
  struct Batch {
    std::span<const TensorCopy> copies;
    std::span<Digest> digests;         ///< Of the copies.
    std::vector<std::uint32_t> order;  ///< By size, largest first.
    std::atomic<std::size_t> next{0};
    std::atomic<std::size_t> undone{0};
  };
  void share(std::span<const TensorCopy> copies, std::span<Digest> digests);
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
