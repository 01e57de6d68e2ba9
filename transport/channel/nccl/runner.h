// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A process' own part in a round: a thread that joins the communicator, and makes one transfer after another. All of
/// the collective's calls are made here, so nobody else waits for them, nor for an abort.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/gpu/collective.h"

namespace freshet::channel::nccl {

inline constexpr std::uint64_t kTransferBytesMax = gpu::kCollectiveBytesMax;
inline constexpr std::uint64_t kTransfersInFlight = 2;

/// Any thread, unless noted.
class Runner {
 public:
  /// `tell` is called by the thread after each change of what stand() says; it outlives the Runner.
  static Result<std::unique_ptr<Runner>> start(std::shared_ptr<gpu::Collective> collective,
                                               const gpu::CollectiveSeat& seat, std::function<void()> tell);
  /// Aborts, and waits for the thread's end.
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// The memory of a transfer: those in flight have each their own. REQUIRES: it is not in flight when it is written.
  MutableBytes room(std::uint64_t transfer);
  /// The next transfer, of so many bytes of its room. REQUIRES: fewer than kTransfersInFlight are in flight.
  void push(std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);
  /// Aborts as soon as the thread sees it; does not wait.
  void stop() FRESHET_EXCLUDES(mutex_);

  struct Stand {
    bool open = false;       ///< All have joined.
    std::uint64_t done = 0;  ///< Transfers.
    bool over = false;       ///< The thread is at its end: nothing is written to a room any more.
    Status status;           ///< Why, if it was not stopped.
  };
  Stand stand() const FRESHET_EXCLUDES(mutex_);

 private:
  Runner(std::shared_ptr<gpu::Collective> collective, const gpu::CollectiveSeat& seat, std::function<void()> tell)
      : collective_(std::move(collective)), seat_(seat), tell_(std::move(tell)) {}
  void run();
  Status work(gpu::Communicator& communicator);
  Status transfer(gpu::Communicator& communicator, MutableBytes bytes);
  Status wait(gpu::Communicator& communicator) FRESHET_EXCLUDES(mutex_);

  const std::shared_ptr<gpu::Collective> collective_;
  const gpu::CollectiveSeat seat_;
  const std::function<void()> tell_;
  std::array<std::unique_ptr<std::byte[]>, kTransfersInFlight> rooms_;  ///< Of the owner, and of the thread in flight.
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::uint64_t> to_do_ FRESHET_GUARDED_BY(mutex_);
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  Stand stand_ FRESHET_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace freshet::channel::nccl
