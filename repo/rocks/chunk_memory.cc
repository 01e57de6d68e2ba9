// SPDX-License-Identifier: Apache-2.0
#include "repo/rocks/chunk_memory.h"

#include <cstdlib>
#include <new>
#include <vector>

#include "core/base/mutex.h"
#include "repo/rocks/handover.h"
#include "repo/rocks/store.h"

namespace freshet {
namespace {

/// A chunk's block: the value, its key and lengths, and the block's end.
constexpr std::size_t kChunkPieceBytes = kChunkBytes + 4096;
constexpr std::size_t kChunkPieceBytesMin = kChunkPieceBytes / 4;

class ChunkMemory final : public rocksdb::MemoryAllocator {
 public:
  ~ChunkMemory() override {
    for (void* piece : kept_) std::free(static_cast<std::max_align_t*>(piece) - 1);
  }

  const char* Name() const override { return "freshet.ChunkMemory"; }

  void* Allocate(std::size_t bytes) override {
    const bool piece = bytes >= kChunkPieceBytesMin && bytes <= kChunkPieceBytes;
    if (piece) {
      const MutexLock lock(mutex_);
      if (!kept_.empty()) {
        void* memory = kept_.back();
        kept_.pop_back();
        return memory;
      }
    }
    // A word before it says which kind it is.
    auto* memory =
        static_cast<std::max_align_t*>(std::malloc(sizeof(std::max_align_t) + (piece ? kChunkPieceBytes : bytes)));
    if (memory == nullptr) throw std::bad_alloc();
    *reinterpret_cast<bool*>(memory) = piece;
    goes_to_rocksdb();  // What it reads into it itself is seen by nobody; that it was got from the heap is.
    return memory + 1;
  }

  void Deallocate(void* memory) override {
    if (memory == nullptr) return;
    came_from_rocksdb();
    auto* begin = static_cast<std::max_align_t*>(memory) - 1;
    if (*reinterpret_cast<bool*>(begin)) {
      const MutexLock lock(mutex_);
      if (kept_.size() < kPiecesKept) {
        kept_.push_back(memory);
        return;
      }
    }
    std::free(begin);
  }

 private:
  Mutex mutex_;
  std::vector<void*> kept_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<rocksdb::MemoryAllocator> make_chunk_memory() { return std::make_shared<ChunkMemory>(); }

}  // namespace freshet
