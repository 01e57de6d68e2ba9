// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Content digests: XXH3-128, by the processor's widest vector code, with the same value on every machine. They detect
/// faults, not forgery: identities that must resist an adversary use BLAKE2b (core/model/slot_id.h).

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/bytes.h"

namespace freshet {

struct Digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  auto operator<=>(const Digest&) const = default;
};

/// 32 hexadecimal digits, high half first.
std::string to_hex(const Digest& digest);

/// A digest's part (core/FORMAT.md, "Digests").
inline constexpr std::uint64_t kDigestPartBytes = std::uint64_t{64} << 20;

/// The digest of bytes: XXH3-128 of up to kDigestPartBytes; of more, XXH3-128 of the digests of their parts. So a part
/// can be proved alone.
Digest digest_of(Bytes bytes);
/// Of the digests of all parts, at least one: the digest_of() the whole bytes.
Digest digest_of_parts(const std::vector<Digest>& parts);
/// XXH3-128 of the bytes, however many they are. For checksums that another format defines, and for bytes that are not
/// a tensor.
Digest plain_xxh3_of(Bytes bytes);

/// The plain_xxh3_of() of bytes that arrive in pieces. One thread at a time.
class PlainXxh3Stream {
 public:
  PlainXxh3Stream();
  ~PlainXxh3Stream();
  PlainXxh3Stream(PlainXxh3Stream&&) noexcept;
  PlainXxh3Stream& operator=(PlainXxh3Stream&&) noexcept;

  void reset();
  void update(Bytes bytes);
  Digest finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The digest of bytes that arrive in pieces. It equals digest_of() of all bytes together. One thread at a time.
class DigestStream {
 public:
  void reset();
  void update(Bytes bytes);
  Digest finish() const;

 private:
  PlainXxh3Stream part_;
  std::uint64_t part_bytes_ = 0;
  /// The digests of the finished parts. If there are finished parts, `part_` has at least one byte.
  std::vector<Digest> parts_;
};

}  // namespace freshet

template <>
struct std::hash<freshet::Digest> {
  std::size_t operator()(const freshet::Digest& digest) const noexcept { return digest.low; }
};
