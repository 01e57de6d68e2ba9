// SPDX-License-Identifier: Apache-2.0
#include "repo/records/placement.h"

#include <algorithm>

#include "core/base/digest.h"
#include "core/base/format.h"
#include "repo/records/placement_generated.h"
#include "repo/records/records_flat.h"

namespace freshet {
namespace {

constexpr std::uint64_t kPlacementNumberMax = std::uint64_t{1} << 32;

Status check_provider(const Provider& provider) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  const std::string& id = provider.id;
  if (id.empty() || id.size() > kProviderIdBytesMax || !std::all_of(id.begin(), id.end(), allowed)) {
    return fail(Code::invalid_argument, format("a provider's id is 1 to {} of [A-Za-z0-9._-]", kProviderIdBytesMax));
  }
  if (provider.address.size() > kProviderAddressBytesMax) {
    return fail(Code::invalid_argument,
                format("provider {}'s address is longer than {} bytes", id, kProviderAddressBytesMax));
  }
  return {};
}

// Sorted, unique, each with a number that the placement has reached, and number 1 not empty.
Status check_providers(std::span<const Provider> providers, std::uint64_t number) {
  if (providers.empty() || providers.size() > kProvidersMax) {
    return fail(Code::invalid_argument, format("a placement has 1 to {} providers", kProvidersMax));
  }
  bool first = false;
  for (std::size_t i = 0; i < providers.size(); ++i) {
    FRESHET_TRY(check_provider(providers[i]));
    if (i != 0 && providers[i - 1].id >= providers[i].id) {
      return fail(Code::invalid_argument, format("two providers are called {}", providers[i].id));
    }
    if (providers[i].since < 1 || providers[i].since > number) {
      return fail(Code::invalid_argument, format("provider {} belongs to another placement", providers[i].id));
    }
    first = first || providers[i].since == 1;
  }
  if (!first) return fail(Code::invalid_argument, "no provider is of the first placement");
  return {};
}

void append_word(std::string& text, std::uint64_t number) {
  for (int shift = 56; shift >= 0; shift -= 8) text.push_back(static_cast<char>((number >> shift) & 0xff));
}

// "v" and "m" keep a version's draw apart from a model's.
std::string drawn_for(const VersionId& id) {
  std::string text = "v";
  for (const std::uint64_t part : {id.run.high, id.run.low, id.incarnation, id.sequence}) append_word(text, part);
  return text;
}

}  // namespace

Result<Placement> Placement::first(std::vector<Provider> providers) {
  Placement placement;
  placement.number_ = 1;
  for (Provider& provider : providers) provider.since = 1;
  std::sort(providers.begin(), providers.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  FRESHET_TRY(check_providers(providers, 1));
  placement.providers_ = std::move(providers);
  return placement;
}

Result<Placement> Placement::with(Provider provider) const {
  Placement next = *this;
  ++next.number_;
  if (next.number_ > kPlacementNumberMax) return fail(Code::out_of_space, "too many placements");
  const std::size_t at = index_of(provider.id);
  if (at != providers_.size()) {
    if (providers_[at].address == provider.address) {
      return fail(Code::already_exists, format("provider {} is in the placement already", provider.id));
    }
    next.providers_[at].address = std::move(provider.address);
  } else {
    provider.since = next.number_;
    const auto after = std::upper_bound(next.providers_.begin(), next.providers_.end(), provider,
                                        [](const auto& a, const auto& b) { return a.id < b.id; });
    next.providers_.insert(after, std::move(provider));
  }
  FRESHET_TRY(check_providers(next.providers_, next.number_));
  return next;
}

std::size_t Placement::index_of(std::string_view id) const {
  const auto found = std::find_if(providers_.begin(), providers_.end(), [&](const auto& p) { return p.id == id; });
  return static_cast<std::size_t>(found - providers_.begin());
}

std::size_t Placement::winner(std::string_view what, std::uint64_t number) const {
  std::size_t best = providers_.size();
  Digest highest;
  std::string ticket;
  for (std::size_t i = 0; i < providers_.size(); ++i) {
    if (providers_[i].since > number) continue;
    ticket.assign(providers_[i].id).push_back('\0');
    ticket += what;
    const Digest drawn = digest_of(bytes_of(ticket.data(), ticket.size()));
    // Equal draws go to the smaller id, which comes first.
    if (best == providers_.size() || highest < drawn) {
      best = i;
      highest = drawn;
    }
  }
  return best;
}

std::size_t Placement::home(const VersionId& id, std::uint64_t number) const { return winner(drawn_for(id), number); }

std::size_t Placement::registrar(std::string_view model, std::uint64_t number) const {
  return winner(std::string("m").append(model), number);
}

std::vector<std::size_t> Placement::winners(std::string_view what) const {
  std::vector<std::uint64_t> changes;
  for (const Provider& provider : providers_) changes.push_back(provider.since);
  std::sort(changes.rbegin(), changes.rend());
  changes.erase(std::unique(changes.begin(), changes.end()), changes.end());
  std::vector<std::size_t> found;
  for (const std::uint64_t number : changes) {
    const std::size_t at = winner(what, number);
    if (std::find(found.begin(), found.end(), at) == found.end()) found.push_back(at);
  }
  return found;
}

std::vector<std::size_t> Placement::homes(const VersionId& id) const { return winners(drawn_for(id)); }

std::string Placement::encode() const {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<stored::PlacedProvider>> providers;
  for (const Provider& provider : providers_) {
    providers.push_back(
        stored::CreatePlacedProviderDirect(builder, provider.id.c_str(), provider.address.c_str(), provider.since));
  }
  return finish(builder, stored::CreatePlacementDirect(builder, number_, &providers));
}

Result<Placement> Placement::decode(std::string_view bytes) {
  const std::vector<std::uint64_t> buffer = aligned_copy(bytes);
  const auto* stored = verified<stored::Placement>(buffer, bytes.size());
  if (stored == nullptr) return fail(Code::corrupt, "the placement is damaged");
  Placement placement;
  placement.number_ = stored->number();
  if (placement.number_ < 1 || placement.number_ > kPlacementNumberMax || stored->providers()->size() > kProvidersMax) {
    return fail(Code::corrupt, "the placement is damaged");
  }
  for (const stored::PlacedProvider* provider : *stored->providers()) {
    placement.providers_.push_back({.id = provider->id()->str(),
                                    .address = provider->address() ? provider->address()->str() : "",
                                    .since = provider->since()});
  }
  if (const Status status = check_providers(placement.providers_, placement.number_); !status) {
    return fail(Code::corrupt, "the placement is damaged: " + status.error().message());
  }
  return placement;
}

}  // namespace freshet
