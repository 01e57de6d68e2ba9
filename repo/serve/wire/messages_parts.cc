// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/wire/messages.h"

// Values of puts by parts.

namespace freshet::rpc {

wire::Token wire_token(const PutToken& token) { return {token.high, token.low}; }

Result<PutToken> read(const wire::Token* token) {
  if (token == nullptr) return fail(Code::corrupt, "a message without its token");
  return PutToken{.high = token->high(), .low = token->low(), .provider = {}};
}

wire::Part wire_part(const TensorPart& part, const Digest& digest) {
  return {part.offset, part.count, part.stride, part.length, wire::Digest(digest.low, digest.high), part.tensor};
}

TensorPart read(const wire::Part& part) {
  return {.tensor = part.tensor(),
          .offset = part.offset(),
          .count = part.count(),
          .stride = part.stride(),
          .length = part.length(),
          .bytes = {},
          .digest = Digest{.low = part.digest().low(), .high = part.digest().high()}};
}

Offset<wire::PartDigests> put(Builder& builder, const std::vector<std::optional<Digest>>& digests) {
  std::vector<wire::Digest> all;
  for (const std::optional<Digest>& digest : digests) {
    all.emplace_back(digest ? digest->low : 0, digest ? digest->high : 0);
  }
  return wire::CreatePartDigests(builder, builder.CreateVectorOfStructs(all));
}

Result<std::vector<std::optional<Digest>>> read(const wire::PartDigests& digests) {
  std::vector<std::optional<Digest>> all;
  for (const wire::Digest& digest : copied(digests.digests())) {
    const Digest value{.low = digest.low(), .high = digest.high()};
    all.push_back(value == Digest{} ? std::nullopt : std::optional(value));
  }
  return all;
}

}  // namespace freshet::rpc
