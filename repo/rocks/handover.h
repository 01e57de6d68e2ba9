// SPDX-License-Identifier: Apache-2.0
#pragma once

/// For ThreadSanitizer alone, nothing in other builds. Blocks are got from the heap, written, read and given back by
/// threads of ours, and go from one to another through RocksDB's cache, whose locks it does not see. So who had one
/// says so before RocksDB has it back, and who gets one before it touches it. Private to this room.

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace freshet {

#ifdef __SANITIZE_THREAD__
inline char rocks_handover_place = 0;
inline void came_from_rocksdb() { __tsan_acquire(&rocks_handover_place); }
inline void goes_to_rocksdb() { __tsan_release(&rocks_handover_place); }
#else
inline void came_from_rocksdb() {}
inline void goes_to_rocksdb() {}
#endif

}  // namespace freshet
