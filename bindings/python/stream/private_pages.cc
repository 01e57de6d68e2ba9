// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream/private_pages.h"

#include <algorithm>
#include <functional>
#include <new>

namespace freshet::python {

namespace {

bool is_within(Bytes part, Bytes whole) {
  const std::less_equal<const std::byte*> not_after;
  return not_after(whole.data(), part.data()) && not_after(part.data() + part.size(), whole.data() + whole.size());
}

}  // namespace

PrivatePages::~PrivatePages() {
  for (const Mapping& mapping : mappings_) stock_->give_back(mapping.copy, mapping.used);
}

Bytes PrivatePages::of(const Snapshot& snapshot, Bytes bytes) {
  if (bytes.empty()) return bytes;
  for (Mapping& mapping : mappings_) {
    if (is_within(bytes, mapping.original)) return in(mapping, bytes);
  }
  for (const Snapshot::Piece& piece : snapshot.pieces()) {
    if (!is_within(bytes, piece.memory)) continue;
    mappings_.push_back({.original = piece.memory, .copy = stock_->take(piece), .used = {}});
    return in(mappings_.back(), bytes);
  }
  return copy_of(bytes);
}

Bytes PrivatePages::in(Mapping& mapping, Bytes bytes) {
  if (mapping.copy.memory == nullptr) return copy_of(bytes);
  const Bytes copy(mapping.copy.memory + (bytes.data() - mapping.original.data()), bytes.size());
  if (mapping.used.empty()) {
    mapping.used = copy;
  } else {
    const std::byte* const begin = std::min(mapping.used.data(), copy.data());
    const std::byte* const end = std::max(mapping.used.data() + mapping.used.size(), copy.data() + copy.size());
    mapping.used = Bytes(begin, static_cast<std::size_t>(end - begin));
  }
  return copy;
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
