// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One request at the fetcher: what came of each of its pieces. Everything that the server says is checked here before
/// the sink hears of it. ZeroMQ keeps messages in order, so the chunks of an answer come one after another, and a
/// request has one answer in the making at a time.

#include <cstdint>
#include <string_view>
#include <vector>

#include "transport/channel/channel.h"
#include "transport/channel/zmq/frame.h"

namespace freshet::channel::zmq_channel {

/// One thread at a time; it knows nothing of ZeroMQ.
class Reception {
 public:
  Reception(FetchRequest request, FetchSink& sink);

  const FetchRequest& request() const { return request_; }
  FetchSink& sink() const { return sink_; }
  bool is_complete() const { return pieces_left_ == 0; }
  /// The server said what no server of ours says; the last error tells what.
  bool was_lied_to() const { return lied_to_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Errors are the sink's, or corrupt with was_lied_to().
  Status take_chunk(const Frame& frame, Bytes data);
  Status take_batch(const Frame& frame, Bytes data);

 private:
  tl::unexpected<Error> lie(std::string_view what);
  Status check_answer(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total);
  /// Asks the sink for the piece's memory.
  Result<MutableBytes> begin(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total);
  void finish(std::uint32_t piece);

  const FetchRequest request_;
  FetchSink& sink_;
  std::vector<bool> begun_;  ///< By piece.
  std::size_t pieces_left_;
  std::uint64_t bytes_ = 0;
  bool lied_to_ = false;

  // The answer whose chunks are coming.
  bool coming_ = false;
  std::uint32_t piece_ = 0;
  std::uint32_t encoding_ = 0;
  MutableBytes memory_;
  std::uint64_t there_ = 0;
};

}  // namespace freshet::channel::zmq_channel
