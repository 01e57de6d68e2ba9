// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Private mappings of shared memory that no version uses any more, kept for the next version in the same memory. A new
/// mapping has no pages yet, so the first reader of a new version would fault in all pages of the model, those of
/// unchanged tensors too. A mapping from the stock has these pages.
///
/// A mapping is taken clean: the pages that somebody wrote are dropped, and the next reader finds the shared ones.
/// /proc/self/pagemap says which pages were written. Where it cannot be read, nothing is kept.

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/model/tensor.h"
#include "transport/subscriber.h"

namespace freshet::python {

/// Any thread.
class PageStock {
 public:
  using File = std::pair<dev_t, ino_t>;  ///< An inode is no other file's while a mapping of its file lives.

  /// A private, writable mapping of all of a descriptor's bytes. Plain data: PrivatePages owns it, or the stock.
  struct Mapping {
    File file;
    std::byte* memory = nullptr;  ///< Null: the memory cannot be mapped so.
    std::size_t bytes = 0;
  };

  /// For one memory: one mapping of the version that is let go, and one of the version that requests still hold.
  static constexpr std::ptrdiff_t kIdleMaxPerMemory = 2;
  /// A look at the pages of a larger memory takes longer than many a reader needs for the few pages that it reads.
  static constexpr std::size_t kBytesMax = std::size_t{1} << 30;

  PageStock() = default;
  PageStock(const PageStock&) = delete;
  PageStock& operator=(const PageStock&) = delete;
  ~PageStock();

  Mapping take(const Snapshot::Piece& piece) FRESHET_EXCLUDES(mutex_);
  /// `used`: the part in which somebody may have written. In a forked child the mapping just ends.
  void give_back(const Mapping& mapping, Bytes used) FRESHET_EXCLUDES(mutex_);
  /// From now on only mappings of these pieces stay: others would keep a dead publisher's memory.
  void keep_only(const std::vector<Snapshot::Piece>& pieces) FRESHET_EXCLUDES(mutex_);

 private:
  std::optional<Mapping> take_idle(const File& wanted) FRESHET_EXCLUDES(mutex_);

  Mutex mutex_;
  std::vector<Mapping> idle_ FRESHET_GUARDED_BY(mutex_);
  std::vector<File> wanted_ FRESHET_GUARDED_BY(mutex_);
  ForkMark mark_;
};

}  // namespace freshet::python
