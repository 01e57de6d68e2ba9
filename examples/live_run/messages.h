// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the load process and a server say to each other, a JSON object each.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "examples/live_run/model/corpus.h"

namespace freshet::live {

inline constexpr std::size_t kWindowBytesMax = 256;

/// Asks for the loss of a piece of text: of every byte after the first `orders`.
struct ScoreRequest {
  std::uint64_t id = 0;
  Text window;
};

/// A row of a table, as the server read it in the forward pass.
struct RowSeen {
  std::uint32_t row = 0;
  std::uint64_t digest = 0;  ///< Low half.
  bool operator==(const RowSeen&) const = default;
};

struct ScoreAnswer {
  std::uint64_t id = 0;
  bool ready = false;  ///< False while the server has no version yet; the rest is then empty.
  double loss = 0;     ///< Mean, in nats per byte.
  std::uint64_t version = 0;
  std::string record;                ///< The journal record that this version carries as a tag (journal.h).
  std::vector<std::uint64_t> dense;  ///< Digests (low halves) of the dense tensors.
  std::vector<RowSeen> rows;
};

std::string encode(const ScoreRequest& request);
std::string encode(const ScoreAnswer& answer);

/// corrupt for anything else.
Result<ScoreRequest> decode_request(std::string_view text);
Result<ScoreAnswer> decode_answer(std::string_view text);

}  // namespace freshet::live
