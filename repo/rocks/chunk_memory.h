// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The memory into which RocksDB reads chunks of payloads. Fresh memory of a megabyte costs more than the reading: the
/// kernel clears it page by page, and malloc gives so much back to it at once. So the pieces are kept and used again;
/// being warm in the cache, they are cheap to copy from as well.

#include <cstddef>
#include <memory>

#include <rocksdb/memory_allocator.h>

namespace freshet {

/// As many pieces as were ever in use at once are kept, up to kPiecesKept; everything else is malloc's. Any thread.
std::shared_ptr<rocksdb::MemoryAllocator> make_chunk_memory();

inline constexpr std::size_t kPiecesKept = 8;

}  // namespace freshet
