// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One request at the fetcher: what came of each of its pieces. Everything that the server says is checked here before
/// the sink hears of it, so that nothing is received into memory that the sink did not name.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/channel/channel.h"
#include "transport/channel/ucx/frame.h"

namespace freshet::channel::ucx {

/// One thread at a time; it knows nothing of UCX.
class Reception {
 public:
  Reception(FetchRequest request, FetchSink& sink);

  const FetchRequest& request() const { return request_; }
  FetchSink& sink() const { return sink_; }
  bool is_complete() const { return pieces_left_ == 0; }
  /// The server said what no server of ours says; the last error tells what.
  bool was_lied_to() const { return lied_to_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Where a chunk of that length goes. An error of the sink's, or corrupt with was_lied_to().
  Result<MutableBytes> place(const wire::Chunk& chunk, std::uint64_t length);
  /// The bytes of a chunk that was placed are there.
  void arrived(const wire::Chunk& chunk);
  Status take_batch(const wire::Batch& batch, Bytes data);

 private:
  struct Open {
    MutableBytes memory;
    std::uint64_t chunk_bytes = 0;
    std::uint32_t encoding = 0;
    std::vector<bool> placed;  ///< By chunk; no two may be received into the same place.
    std::vector<bool> there;
    std::size_t prefix = 0;  ///< Chunks that are there without a gap.
    std::size_t left = 0;
  };

  tl::unexpected<Error> lie(std::string_view what);
  Status check_answer(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total);
  /// Asks the sink for the piece's memory.
  Result<MutableBytes> ask(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total);
  Result<Open*> open(const wire::Chunk& chunk);
  void finish(std::uint32_t piece);

  const FetchRequest request_;
  FetchSink& sink_;
  std::vector<bool> begun_;  ///< By piece.
  std::unordered_map<std::uint32_t, Open> open_;
  std::size_t pieces_left_;
  std::uint64_t bytes_ = 0;
  bool lied_to_ = false;
};

}  // namespace freshet::channel::ucx
