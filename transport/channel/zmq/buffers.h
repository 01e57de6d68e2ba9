// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Buffers of messages, used again when ZeroMQ has sent them: fresh memory costs a page fault for each 4 KiB.

#include <cstddef>
#include <memory>
#include <vector>
#include <zmq.hpp>

#include "core/base/mutex.h"
#include "core/model/tensor.h"

namespace freshet::channel::zmq_channel {

/// Any thread. Lives as long as a message of its does.
class Buffers : public std::enable_shared_from_this<Buffers> {
 public:
  explicit Buffers(std::size_t bytes) : bytes_(bytes) {}

  /// Nobody else's, until it is destroyed.
  class Buffer {
   public:
    Buffer(Buffer&&) = default;
    Buffer& operator=(Buffer&&) = delete;
    ~Buffer() {
      if (memory_ != nullptr) owner_->give_back(std::move(memory_));
    }
    MutableBytes room() const { return {memory_.get(), owner_->bytes_}; }

   private:
    friend class Buffers;
    Buffer() = default;
    std::shared_ptr<Buffers> owner_;
    std::unique_ptr<std::byte[]> memory_;
  };
  Buffer take() FRESHET_EXCLUDES(mutex_);
  /// The first `bytes` of it as a message, without a copy.
  static zmq::message_t make_message(Buffer buffer, std::size_t bytes);

 private:
  void give_back(std::unique_ptr<std::byte[]> memory) FRESHET_EXCLUDES(mutex_);

  const std::size_t bytes_;
  Mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> idle_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::channel::zmq_channel
