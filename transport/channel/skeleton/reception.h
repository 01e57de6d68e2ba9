// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One request at the fetcher: what came of each of its pieces. Everything that the server says is checked here before
/// the sink hears of it, so that nothing is received into memory that the sink did not name.

#include <cstdint>
#include <string_view>
#include <vector>

#include "transport/channel/channel.h"

namespace freshet::channel {

inline constexpr std::size_t kBatchAnswersMax = 4096;
inline constexpr std::size_t kErrorTextBytesMax = 1024;

/// What a message says of the bytes behind it: those of a piece's answer from `offset`.
struct Chunk {
  std::uint32_t piece = 0;
  std::uint32_t encoding = 0;
  std::uint64_t total = 0;  ///< Of the whole answer.
  std::uint64_t offset = 0;
  /// Where chunks come in any order: the size of each chunk of this answer but the last. Offsets are multiples of it.
  std::uint64_t chunk_bytes = 0;
};

/// One thread at a time; it knows nothing of libraries.
class Reception {
 public:
  /// How the servers of a channel cut answers into chunks.
  struct Rules {
    std::string_view channel;
    ChannelTraits traits;
    std::uint64_t chunk_bytes_min = 1;
    std::uint64_t chunk_bytes_max = 0;
    /// The library keeps messages in order: chunks of any size come one after another, and a request has one answer in
    /// the making at a time. Otherwise each chunk says `chunk_bytes`, and comes once.
    bool in_order = false;
  };
  Reception(const Rules& rules, FetchRequest request, FetchSink& sink);

  const FetchRequest& request() const { return request_; }
  FetchSink& sink() const { return sink_; }
  bool is_complete() const { return pieces_left_ == 0; }
  /// The server said what no server of ours says; the last error tells what.
  bool was_lied_to() const { return lied_to_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Where a chunk of that length goes. An error of the sink's, or corrupt with was_lied_to().
  Result<MutableBytes> place(const Chunk& chunk, std::uint64_t length);
  /// The bytes of a chunk that was placed are there. In order: before the next is placed.
  void arrived(const Chunk& chunk, std::uint64_t length);
  /// Small answers, `answers` of them: each a wire::Answer and its bytes (channel/fetch.fbs).
  Status take_batch(std::size_t answers, Bytes data);

 private:
  struct Open {
    std::uint32_t piece = 0;
    std::uint32_t encoding = 0;
    MutableBytes memory;
    std::uint64_t chunk_bytes = 0;
    std::uint64_t prefix = 0;  ///< Bytes that are there without a gap.
    // By chunk, unless they come in order.
    std::vector<bool> placed;  ///< No two may be received into the same place.
    std::vector<bool> there;
  };

  tl::unexpected<Error> lie(std::string_view what);
  Open* find(std::uint32_t piece);
  /// Checks an answer, and asks the sink for its memory.
  Result<MutableBytes> begin(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total);
  Result<Open*> open(const Chunk& chunk);
  Result<MutableBytes> place_next(const Chunk& chunk, std::uint64_t length);
  Result<MutableBytes> place_anywhere(const Chunk& chunk, std::uint64_t length);
  void finish(std::uint32_t piece);

  const Rules rules_;
  const FetchRequest request_;
  FetchSink& sink_;
  std::vector<bool> begun_;  ///< By piece.
  std::vector<Open> open_;   ///< A few; its room is used again.
  std::size_t pieces_left_;
  std::uint64_t bytes_ = 0;
  bool lied_to_ = false;
};

}  // namespace freshet::channel
