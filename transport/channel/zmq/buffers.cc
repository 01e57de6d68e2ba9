// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/zmq/buffers.h"

#include <utility>

namespace freshet::channel::zmq_channel {
namespace {
/// More than these, and a burst is over: they are freed.
constexpr std::size_t kIdleMax = 64;
}  // namespace

Buffers::Buffer Buffers::take() {
  Buffer buffer;
  buffer.owner_ = shared_from_this();
  {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      buffer.memory_ = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  // Not value-initialised: what is sent of it is written first.
  if (buffer.memory_ == nullptr) buffer.memory_.reset(new std::byte[bytes_]);
  return buffer;
}

zmq::message_t Buffers::make_message(Buffer buffer, std::size_t bytes) {
  std::byte* const data = buffer.memory_.get();
  auto owned = std::make_unique<Buffer>(std::move(buffer));
  const auto give_back = [](void*, void* hint) { delete static_cast<Buffer*>(hint); };
  zmq::message_t message(data, bytes, give_back, owned.get());
  static_cast<void>(owned.release());
  return message;
}

void Buffers::give_back(std::unique_ptr<std::byte[]> memory) {
  const MutexLock lock(mutex_);
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(memory));
}

}  // namespace freshet::channel::zmq_channel
