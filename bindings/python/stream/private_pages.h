// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A second mapping of a version's memory, private and writable. Python's arrays lie in it. A read costs what it costs
/// in the first mapping, because both show the same pages of memory. NumPy refuses to write into these arrays, but a
/// library that takes the memory by DLPack or by its address can write. The kernel then copies the page: nobody else
/// sees the write, and the copy goes with the version's last pin.

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/python/stream/page_stock.h"
#include "core/model/tensor.h"
#include "transport/subscriber.h"

namespace freshet::python {

/// One thread at a time.
class PrivatePages {
 public:
  explicit PrivatePages(std::shared_ptr<PageStock> stock) : stock_(std::move(stock)) {}
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
    PageStock::Mapping copy;  ///< Without memory: of this memory bytes are copied.
    Bytes used;               ///< Around all that of() gave.
  };
  Bytes in(Mapping& mapping, Bytes bytes);
  Bytes copy_of(Bytes bytes);

  std::shared_ptr<PageStock> stock_;
  std::vector<Mapping> mappings_;
  std::map<std::pair<const std::byte*, std::size_t>, std::vector<std::byte>> copies_;
};

}  // namespace freshet::python
