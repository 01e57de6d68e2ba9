// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Content digests: XXH3-128, by the processor's widest vector code, with the same value on every machine. They detect
/// faults, not forgery: identities that must resist an adversary use BLAKE2b (core/model/graph.h, slot ids).

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/model/tensor.h"

namespace freshet {

struct Digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  auto operator<=>(const Digest&) const = default;
};

/// 32 hexadecimal digits, high half first.
std::string to_hex(const Digest& digest);

Digest digest_of(Bytes bytes);

/// The digest of bytes that arrive in pieces. It equals digest_of() of all bytes together. One thread at a time.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  DigestStream(DigestStream&&) noexcept;
  DigestStream& operator=(DigestStream&&) noexcept;

  void reset();
  void update(Bytes bytes);
  Digest finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace freshet

template <>
struct std::hash<freshet::Digest> {
  std::size_t operator()(const freshet::Digest& digest) const noexcept { return digest.low; }
};
