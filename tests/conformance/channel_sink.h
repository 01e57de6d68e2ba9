// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where the channels' tests receive: memory with guards around it, and a check of every promise that a sink is given.

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "tests/support/seeded_bytes.h"
#include "transport/channel/channel.h"

namespace freshet::channel {

/// One thread: the one that calls progress(). Takes several requests at once.
class CollectingSink final : public FetchSink {
 public:
  using Key = std::pair<std::uint64_t, std::size_t>;  ///< Request and piece.
  struct Arrival {
    Encoding encoding = Encoding::dense;
    std::uint64_t bytes = 0;
    std::uint64_t there = 0;
    bool done = false;
    std::vector<std::byte> memory;  ///< With kGuard bytes on both sides.

    std::vector<std::byte> content() const { return {memory.begin() + kGuard, memory.end() - kGuard}; }
  };

  /// The sink's answer to that piece is an error.
  void refuse(std::size_t piece) { refused_ = piece; }
  /// The sink's answer to that piece is one byte too few.
  void place_wrongly(std::size_t piece) { misplaced_ = piece; }

  const Arrival* find(std::uint64_t request, std::size_t piece) const {
    const auto at = arrivals_.find({request, piece});
    return at == arrivals_.end() ? nullptr : &at->second;
  }
  /// Nothing while it is under way.
  const Status* ended(std::uint64_t request) const {
    const auto at = ended_.find(request);
    return at == ended_.end() ? nullptr : &at->second;
  }
  std::size_t ended_count() const { return ended_.size(); }
  bool begun(std::uint64_t request) const {
    return std::any_of(arrivals_.begin(), arrivals_.end(),
                       [&](const auto& arrival) { return arrival.first.first == request && arrival.second.there > 0; });
  }
  std::size_t places() const { return arrivals_.size(); }

  /// Fills all memory of a request that has ended, so that a late write can be seen.
  void spoil(std::uint64_t request) {
    for (auto& [key, arrival] : arrivals_) {
      if (key.first == request) std::memset(arrival.memory.data(), static_cast<int>(kGuardByte), arrival.memory.size());
    }
  }
  bool is_spoilt(std::uint64_t request) const {
    return std::all_of(arrivals_.begin(), arrivals_.end(), [&](const auto& entry) {
      const auto& memory = entry.second.memory;
      return entry.first.first != request || test::all_bytes_are(memory, kGuardByte);
    });
  }

  /// Promises that were broken, one line each.
  std::string faults() const {
    std::string all = faults_;
    for (const auto& [key, arrival] : arrivals_) {
      const auto is_guard = [](std::byte b) { return b == kGuardByte; };
      if (!std::all_of(arrival.memory.begin(), arrival.memory.begin() + kGuard, is_guard) ||
          !std::all_of(arrival.memory.end() - kGuard, arrival.memory.end(), is_guard)) {
        all += format("request {} piece {}: written outside its place\n", key.first, key.second);
      }
    }
    return all;
  }

  Result<Place> place(std::uint64_t request, std::size_t piece, Encoding encoding, std::uint64_t bytes) override {
    check_running(request, "place");
    if (refused_ == piece) return fail(Code::out_of_space, "the test has no room for this piece");
    const auto [at, fresh] = arrivals_.try_emplace({request, piece});
    if (!fresh) fault(request, piece, "placed twice");
    Arrival& arrival = at->second;
    arrival.encoding = encoding;
    arrival.bytes = bytes;
    arrival.memory.assign(bytes + 2 * kGuard, kGuardByte);
    MutableBytes room = MutableBytes(arrival.memory).subspan(kGuard, bytes);
    if (misplaced_ == piece) room = room.first(room.size() - 1);
    return room;
  }
  void on_bytes(std::uint64_t request, std::size_t piece, std::uint64_t bytes) override {
    check_running(request, "on_bytes");
    Arrival* arrival = placed(request, piece, "on_bytes");
    if (arrival == nullptr) return;
    if (bytes < arrival->there || bytes > arrival->bytes) fault(request, piece, "on_bytes goes astray");
    if (arrival->done) fault(request, piece, "on_bytes after on_piece_done");
    arrival->there = bytes;
  }
  void on_piece_done(std::uint64_t request, std::size_t piece) override {
    check_running(request, "on_piece_done");
    Arrival* arrival = placed(request, piece, "on_piece_done");
    if (arrival == nullptr) return;
    if (arrival->done) fault(request, piece, "done twice");
    if (arrival->there != arrival->bytes) fault(request, piece, "done before on_bytes told of all its bytes");
    arrival->done = true;
  }
  void on_request_done(std::uint64_t request, Status status) override {
    check_running(request, "on_request_done");
    ended_.emplace(request, std::move(status));
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  static constexpr std::byte kGuardByte{0xa5};

  void fault(std::uint64_t request, std::size_t piece, std::string_view what) {
    faults_ += format("request {} piece {}: {}\n", request, piece, what);
  }
  void check_running(std::uint64_t request, std::string_view call) {
    if (ended_.contains(request)) faults_ += format("request {}: {} after its end\n", request, call);
  }
  Arrival* placed(std::uint64_t request, std::size_t piece, std::string_view call) {
    const auto at = arrivals_.find({request, piece});
    if (at != arrivals_.end()) return &at->second;
    fault(request, piece, format("{} without a place", call));
    return nullptr;
  }

  std::optional<std::size_t> refused_;
  std::optional<std::size_t> misplaced_;
  std::map<Key, Arrival> arrivals_;
  std::map<std::uint64_t, Status> ended_;
  std::string faults_;
};

}  // namespace freshet::channel
