// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which of several providers keeps what. A placement is a numbered list of providers; adding one makes the next
/// number. A version's home is found by rendezvous hashing of its identity over the providers of the placement that it
/// was stored under: each provider draws a number for the version, the highest wins. So another provider takes over its
/// share of new versions and nothing else moves, and whoever knows the placement's number finds an old version's home
/// without asking.
///
/// Providers are only ever added, so one list, with the number that each came with, says all placements so far. It
/// rests as a shared record at every provider, and changes by compare-and-swap (repo/cluster/placement/membership.h).

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
  std::string id;  ///< 1 to 64 of [A-Za-z0-9._-]; its own for good, wherever it listens.
  std::string address;
  std::uint64_t since = 1;  ///< The placement that it came with.
  bool operator==(const Provider&) const = default;
};

/// Immutable; copies are cheap enough. Any thread.
class Placement {
 public:
  Placement() = default;

  /// Placement 1. invalid_argument for none, too many, equal or malformed ids.
  static Result<Placement> first(std::vector<Provider> providers);
  /// The next number, with one provider more, or with another address of one that is there. already_exists when it
  /// stands there just so.
  Result<Placement> with(Provider provider) const;

  std::uint64_t number() const { return number_; }
  std::span<const Provider> providers() const { return providers_; }  ///< By id.
  /// Index of the provider of that id; size() for none.
  std::size_t index_of(std::string_view id) const;

  /// Where a version that was put under placement `number` (the current one without it) has its record and the tensors
  /// that it wrote. REQUIRES: providers, and 1 <= number <= number().
  std::size_t home(const VersionId& id) const { return home(id, number_); }
  std::size_t home(const VersionId& id, std::uint64_t number) const;
  /// Every provider that was the version's home under some placement, the latest one first.
  std::vector<std::size_t> homes(const VersionId& id) const;
  /// Who gives the model's versions their numbers.
  std::size_t registrar(std::string_view model) const { return registrar(model, number_); }
  std::size_t registrar(std::string_view model, std::uint64_t number) const;

  /// As it is stored and told to clients. decode() answers corrupt for anything that encode() cannot have made.
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
