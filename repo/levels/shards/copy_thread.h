// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A thread that copies pieces into a share beside the loop. (DeepFreeze, section IV-A e: a layer's shard is extracted
/// while the layers below it compute.) The loop adds a piece and computes on. Before the loop writes the piece's source
/// again, it finishes the piece: it copies the chunks that the thread has not begun, and waits for one chunk at most.
///
/// The queue has each piece of a version once at most. Small pieces never enter it: their copy takes less time than to
/// wake a thread.

#include <cstdint>
#include <functional>
#include <list>
#include <thread>

#include "core/base/mutex.h"
#include "repo/levels/shards/share.h"

namespace freshet::levels {

/// add(), finish() and finish_all(): one thread at a time.
class CopyThread {
 public:
  /// Where a copy by the calling thread is quicker than to hand it over.
  static constexpr std::uint64_t kSmallBytesMax = std::uint64_t{128} << 10;

  /// `at_chunk` is for tests: called before each chunk, on the thread that copies it.
  explicit CopyThread(const ShareCut& cut, std::function<void()> at_chunk = {});
  /// Copies that have not begun come to nothing. No source is read afterwards.
  ~CopyThread();
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  /// `share`, and the memory of `from`, stay as they are until the piece is finished. A small piece is copied at once;
  /// so is each piece where the system gives no thread. REQUIRES: `from` is as long as the piece, which is not in the
  /// queue.
  void add(Share& share, std::size_t piece, Bytes from) FRESHET_EXCLUDES(mutex_);
  /// Returns when the piece is not in the queue: its bytes and digests are in the share.
  void finish(std::size_t piece) FRESHET_EXCLUDES(mutex_);
  void finish_all() FRESHET_EXCLUDES(mutex_);

 private:
  struct Copy {
    Share* share;
    std::size_t piece;
    Bytes from;
    std::uint64_t chunks;
    std::uint64_t next = 0;  ///< The first chunk that no thread has taken.
    std::uint64_t done = 0;
  };
  using Copies = std::list<Copy>;  ///< Their addresses stay.

  bool has_chunk(const Copy& copy) const { return copy.next < copy.chunks; }
  /// Lets go of the mutex while it copies. The copy leaves the queue with its last chunk.
  void copy_chunk(Copies::iterator copy) FRESHET_REQUIRES(mutex_);
  void run();

  const ShareCut& cut_;
  const std::function<void()> at_chunk_;

  Mutex mutex_;
  CondVar changed_;
  Copies copies_ FRESHET_GUARDED_BY(mutex_);  ///< The oldest first.
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< Last: it uses the rest.
};

}  // namespace freshet::levels
