// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The placement tells which of several providers keeps a version. It is a numbered list of providers; a new provider
/// makes the next number. Rendezvous hashing finds a version's home among the providers of the placement that the
/// version was stored under: each provider draws a number for the version's identity, and the highest wins. So a new
/// provider takes its share of new versions, and no version moves. The placement's number is enough to find an old
/// version's home.
///
/// Providers are never removed. So one list, with the number under which each provider came, has all placements so far.
/// Every provider keeps it as a shared record, changed by compare-and-swap (repo/cluster/placement/membership.h).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/model/ids.h"

namespace freshet {

inline constexpr std::size_t kProvidersMax = 256;
inline constexpr std::size_t kProviderIdBytesMax = 64;
inline constexpr std::size_t kProviderAddressBytesMax = 1024;

struct Provider {
  std::string id;  ///< 1 to 64 of [A-Za-z0-9._-]; it stays the same at another address.
  std::string address;
  std::uint64_t since = 1;  ///< The number of the placement that added it.
  bool operator==(const Provider&) const = default;
};

/// Immutable; copies are cheap enough. Any thread.
class Placement {
 public:
  Placement() = default;

  /// Placement 1. invalid_argument: no provider, too many, or equal or malformed ids.
  static Result<Placement> first(std::vector<Provider> providers);
  /// The next placement, with one more provider, or with a new address of a known one. already_exists: the provider is
  /// there with this address.
  Result<Placement> with(Provider provider) const;

  std::uint64_t number() const { return number_; }
  std::span<const Provider> providers() const { return providers_; }  ///< By id.
  /// The index of the provider with this id; size() if there is none.
  std::size_t index_of(std::string_view id) const;

  /// The home of a version that was put under placement `number` (default: the current one): the provider with its
  /// record and the tensors that it wrote. REQUIRES: providers, and 1 <= number <= number().
  std::size_t home(const VersionId& id) const { return home(id, number_); }
  std::size_t home(const VersionId& id, std::uint64_t number) const;
  /// Every provider that was the version's home under some placement, the latest one first.
  std::vector<std::size_t> homes(const VersionId& id) const;
  /// The provider that gives the model's versions their numbers.
  std::size_t registrar(std::string_view model) const { return registrar(model, number_); }
  std::size_t registrar(std::string_view model, std::uint64_t number) const;

  /// The stored form, which clients get too. decode() answers corrupt for bytes that encode() cannot have made.
  std::string encode() const;
  static Result<Placement> decode(std::string_view bytes);

  bool operator==(const Placement&) const = default;

 private:
  std::size_t winner(std::string_view what, std::uint64_t number) const;
  std::vector<std::size_t> winners(std::string_view what) const;

  std::uint64_t number_ = 0;
  std::vector<Provider> providers_;
};

}  // namespace freshet
