// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/wire/values.h"

#include <array>
#include <bit>
#include <utility>

namespace freshet {
namespace {

/// Takes a value that was decoded, or the reason why it was not.
template <typename T>
Status take_decoded(T& value, Result<T> decoded) {
  if (!decoded) return fail(std::move(decoded).error());
  value = std::move(*decoded);
  return {};
}

}  // namespace

void fields(const PinTerms& terms, rpc::Writer& writer) {
  writer(terms.stays ? std::optional<PinLease>() : terms.lease);
}

void fields(PinTerms& terms, rpc::Reader& reader) {
  reader(terms.lease);
  terms.stays = !terms.lease;
}

void fields(const std::shared_ptr<const Architecture>& architecture, rpc::Writer& writer) {
  writer(architecture->encoded());
}

void fields(std::shared_ptr<const Architecture>& architecture, rpc::Reader& reader) {
  Bytes encoded;
  reader(encoded);
  reader.check([&] { return take_decoded(architecture, decode_architecture(encoded)); });
}

Result<Manifest> encodable(Manifest manifest) {
  if (manifest.name.number == 0) manifest.name.number = 1;
  FRESHET_TRY(check(manifest));
  return manifest;
}

void fields(const Manifest& manifest, rpc::Writer& writer) {
  const std::vector<std::byte> encoded = encode(manifest);
  writer(manifest.architecture, Bytes(encoded));
}

void fields(Manifest& manifest, rpc::Reader& reader) {
  std::shared_ptr<const Architecture> architecture;
  Bytes encoded;
  reader(architecture, encoded);
  reader.check([&] { return take_decoded(manifest, decode_manifest(encoded, std::move(architecture))); });
}

Status check_placed(const std::optional<Placed>& placed, const Manifest& manifest) {
  return placed ? check(*placed, manifest.owners.size()) : Status();
}

void fields(const SlotId& slot, rpc::Writer& writer) {
  const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(slot.bytes);
  writer(words[0], words[1]);
}

void fields(SlotId& slot, rpc::Reader& reader) {
  std::array<std::uint64_t, 2> words{};
  reader(words[0], words[1]);
  slot.bytes = std::bit_cast<decltype(slot.bytes)>(words);
}

void fields(const std::shared_ptr<const MatchGraph>& graph, rpc::Writer& writer) {
  const MatchGraph::Parts& parts = graph->parts();
  writer(parts.vertices, parts.input_starts, parts.inputs);
}

void fields(std::shared_ptr<const MatchGraph>& graph, rpc::Reader& reader) {
  MatchGraph::Parts parts;
  reader(parts.vertices, parts.input_starts, parts.inputs);
  reader.check([&] { return take_decoded(graph, MatchGraph::build(std::move(parts))); });
}

}  // namespace freshet
