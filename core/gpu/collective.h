// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The second seam between Freshet and GPUs: bytes that go from one process to several at once. Two implementations:
/// NCCL's library (open_nccl(), below), and a host collective for tests (core/gpu/host_collective.h).
///
/// User: the channel `nccl` (transport/channel/nccl). Rank 0 makes an id and gives it to the other ranks in its own
/// way; then each rank joins with it:
///
///     FRESHET_ASSIGN(const gpu::CollectiveId id, collective->make_id());
///     FRESHET_ASSIGN(const auto communicator, collective->join({.id = id, .ranks = 3, .rank = 0}));
///     while (!*communicator->poll()) …                         // Until all ranks have joined.
///     FRESHET_TRY(communicator->broadcast(bytes));
///     while (!*communicator->poll()) …                         // `bytes` stay until then.
///
/// No call waits, but abort() and destructors may for about a second. A peer that dies or stands still is not told of:
/// poll() then says false for ever. So a caller has a deadline, and ends with abort().

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/bytes.h"
#include "core/base/result.h"

namespace freshet::gpu {

inline constexpr int kRanksMax = 64;                                           ///< Of a communicator, its rank 0 too.
inline constexpr std::uint64_t kCollectiveBytesMax = std::uint64_t{16} << 20;  ///< Of one call.

/// Not a secret that protects anything: NCCL's sockets know no keys.
struct CollectiveId {
  std::array<std::byte, 128> bytes{};
};

struct CollectiveSeat {
  CollectiveId id;
  int ranks = 0;
  int rank = 0;
};

/// One thread at a time. A call begins when poll() has said true of the one before; joining is the first.
class Communicator {
 public:
  /// As abort().
  virtual ~Communicator() = default;
  /// From rank 0's bytes to those of all others, which are as many.
  virtual Status broadcast(MutableBytes bytes) = 0;
  virtual Status send(Bytes bytes, int rank) = 0;
  virtual Status receive(MutableBytes bytes, int rank) = 0;
  /// Whether what was begun last is done. An error: nothing works any more but abort().
  virtual Result<bool> poll() = 0;
  /// Ends it, also in the middle of a call; no bytes are touched afterwards. The other ranks are not told.
  virtual void abort() = 0;
};

/// Any thread. It outlives its communicators.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual Result<CollectiveId> make_id() = 0;
  /// REQUIRES: 2 to kRanksMax ranks, 0 <= rank < ranks.
  virtual Result<std::unique_ptr<Communicator>> join(const CollectiveSeat& seat) = 0;
};

/// Whether `library` can be used, and which ("NCCL 2.30.7"). unavailable, and why: it is not there, is older than 2.23,
/// or lacks a function. Any thread.
Result<std::string> nccl_version(const std::string& library = "libnccl.so.2");

/// NCCL on the first device that this process sees (CUDA_VISIBLE_DEVICES), with few thread blocks and streams of its
/// own. unavailable without the library, a driver or a device.
Result<std::shared_ptr<Collective>> open_nccl();

}  // namespace freshet::gpu
