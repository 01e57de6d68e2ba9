// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The file system under RocksDB. A large read of a table file goes past the kernel's page cache when the kernel does
/// not have the bytes: tensors are read in pieces and in any order, and then the page cache is filled page by page and
/// the disk asked for as many small pieces, which cost it two thirds of its rate where that was measured; and a
/// training run nearby keeps its memory. A second read of the same bytes goes through the page cache, so that a third
/// finds them there. Everything else, and whatever cannot be read so, is RocksDB's own file system's; so is a file
/// whose name leads to another one by now. Private to this room.

#include <memory>

#include <rocksdb/file_system.h>

namespace freshet {

/// Any thread.
std::shared_ptr<rocksdb::FileSystem> make_table_file_system();

}  // namespace freshet
