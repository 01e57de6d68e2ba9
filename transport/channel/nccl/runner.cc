// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/nccl/runner.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/clock.h"
#include "core/base/format.h"

namespace freshet::channel::nccl {
namespace {

constexpr Duration kPollPauseMin = std::chrono::microseconds(20);
constexpr Duration kPollPauseMax = std::chrono::milliseconds(1);

}  // namespace

Result<std::unique_ptr<Runner>> Runner::start(std::shared_ptr<gpu::Collective> collective,
                                              const gpu::CollectiveSeat& seat, std::function<void()> tell) {
  std::unique_ptr<Runner> runner(new Runner(std::move(collective), seat, std::move(tell)));
  // Not value-initialised: a room is written before it is read.
  for (auto& room : runner->rooms_) room.reset(new std::byte[kTransferBytesMax]);
  try {
    runner->thread_ = std::thread([raw = runner.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a round's thread: {}", error.what()));
  }
  return runner;
}

Runner::~Runner() {
  stop();
  if (thread_.joinable()) thread_.join();
}

MutableBytes Runner::room(std::uint64_t transfer) {
  return {rooms_[transfer % kTransfersInFlight].get(), kTransferBytesMax};
}

void Runner::push(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  to_do_.push_back(bytes);
  changed_.notify_all();
}

void Runner::stop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

Runner::Stand Runner::stand() const {
  const MutexLock lock(mutex_);
  return stand_;
}

void Runner::run() {
  auto communicator = collective_->join(seat_);
  Status status = communicator ? work(**communicator) : fail(communicator.error());
  if (communicator) communicator->reset();
  {
    const MutexLock lock(mutex_);
    stand_.over = true;
    if (!stopping_) stand_.status = std::move(status);
  }
  tell_();
}

Status Runner::work(gpu::Communicator& communicator) {
  FRESHET_TRY(wait(communicator));
  {
    const MutexLock lock(mutex_);
    stand_.open = true;
  }
  tell_();
  for (std::uint64_t number = 0;; ++number) {
    std::uint64_t bytes = 0;
    {
      const MutexLock lock(mutex_);
      while (to_do_.empty() && !stopping_) changed_.wait(mutex_);
      if (stopping_) return {};
      bytes = to_do_.front();
      to_do_.pop_front();
    }
    FRESHET_TRY(transfer(communicator, room(number).first(bytes)));
    FRESHET_TRY(wait(communicator));
    {
      const MutexLock lock(mutex_);
      stand_.done = number + 1;
    }
    tell_();
  }
}

/// One member: sent and received, which needs no more than the two.
Status Runner::transfer(gpu::Communicator& communicator, MutableBytes bytes) {
  if (seat_.ranks > 2) return communicator.broadcast(bytes);
  return seat_.rank == 0 ? communicator.send(bytes, 1) : communicator.receive(bytes, 0);
}

Status Runner::wait(gpu::Communicator& communicator) {
  for (Duration pause = kPollPauseMin;; pause = std::min(2 * pause, kPollPauseMax)) {
    FRESHET_ASSIGN(const bool done, communicator.poll());
    if (done) return {};
    const MutexLock lock(mutex_);
    if (stopping_) return fail(Code::cancelled, "the round was ended");
    changed_.wait_until(mutex_, system_clock().now() + pause);
  }
}

}  // namespace freshet::channel::nccl
