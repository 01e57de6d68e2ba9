// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A version's memory, mapped once more for the arrays that Python has of it: private and writable. Reading such a page
/// costs what it costs in place, since it is the same page of memory. A write, which NumPy refuses but a library may do
/// that takes the memory by DLPack or by its address, gets a copy of the page: nobody else sees it, and it goes with
/// these pages.

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "core/model/tensor.h"
#include "transport/subscriber.h"

namespace freshet::python {

/// One thread at a time.
class PrivatePages {
 public:
  PrivatePages() = default;
  PrivatePages(const PrivatePages&) = delete;
  PrivatePages& operator=(const PrivatePages&) = delete;
  ~PrivatePages();

  /// The same bytes in private pages, which live as long as this does. Where the memory has no such pages, a copy, made
  /// once: a write to huge pages takes one of the reserved pool, which may have none, and the system may be out of
  /// mappings. Throws std::bad_alloc.
  Bytes of(const Snapshot& snapshot, Bytes bytes);

 private:
  struct Mapping {
    Bytes original;
    std::byte* copy = nullptr;  ///< Null: of this memory bytes are copied.
  };
  Bytes copy_of(Bytes bytes);

  std::vector<Mapping> mappings_;
  std::map<std::pair<const std::byte*, std::size_t>, std::vector<std::byte>> copies_;
};

}  // namespace freshet::python
