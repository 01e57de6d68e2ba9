// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream/private_pages.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <functional>
#include <new>

namespace freshet::python {

namespace {

bool is_within(Bytes part, Bytes whole) {
  const std::less_equal<const std::byte*> not_after;
  return not_after(whole.data(), part.data()) && not_after(part.data() + part.size(), whole.data() + whole.size());
}

std::byte* map_privately(const Snapshot::Piece& piece) {
  struct statfs system {};
  if (::fstatfs(piece.descriptor, &system) != 0 || system.f_type == HUGETLBFS_MAGIC) return nullptr;
  void* const mapping =
      ::mmap(nullptr, piece.memory.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, piece.descriptor, 0);
  return mapping == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapping);
}

}  // namespace

PrivatePages::~PrivatePages() {
  for (const Mapping& mapping : mappings_) {
    if (mapping.copy != nullptr) ::munmap(mapping.copy, mapping.original.size());
  }
}

Bytes PrivatePages::of(const Snapshot& snapshot, Bytes bytes) {
  if (bytes.empty()) return bytes;
  const auto in = [&](const Mapping& mapping) -> Bytes {
    if (mapping.copy == nullptr) return copy_of(bytes);
    return {mapping.copy + (bytes.data() - mapping.original.data()), bytes.size()};
  };
  for (const Mapping& mapping : mappings_) {
    if (is_within(bytes, mapping.original)) return in(mapping);
  }
  for (const Snapshot::Piece& piece : snapshot.pieces()) {
    if (!is_within(bytes, piece.memory)) continue;
    mappings_.push_back({.original = piece.memory, .copy = map_privately(piece)});
    return in(mappings_.back());
  }
  return copy_of(bytes);
}

Bytes PrivatePages::copy_of(Bytes bytes) {
  const auto [copy, is_new] = copies_.try_emplace({bytes.data(), bytes.size()});
  if (is_new) {
    try {
      copy->second.assign(bytes.begin(), bytes.end());
    } catch (const std::bad_alloc&) {
      copies_.erase(copy);
      throw;
    }
  }
  return copy->second;
}

}  // namespace freshet::python
