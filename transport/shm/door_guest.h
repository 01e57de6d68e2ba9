// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The subscriber's side of the door: knocks, receives slabs, and notices when the publisher is gone.

#include <memory>
#include <string>
#include <vector>

#include "core/arena/slab.h"
#include "core/base/fork_guard.h"
#include "core/base/result.h"
#include "transport/shm/door_frame.h"

namespace freshet::shm {

/// Owned by its loop thread. Never blocks, but for mapping what it received.
class DoorGuest {
 public:
  /// Connects and knocks. unavailable when nobody listens; failed_precondition when another user does.
  static Result<std::unique_ptr<DoorGuest>> knock(const std::string& path, const Knock& knock);

  int descriptor() const { return socket_.get(); }

  /// Takes what has come. True when a frame was among it. unavailable when the publisher closed the door or is gone;
  /// corrupt when it sent something else than slabs in order.
  Result<bool> receive();

  bool welcomed() const { return welcomed_; }
  /// From now on it takes slabs of this device's memory. A slab that cannot be mapped is null in device_slabs(), and
  /// the log says why.
  void take_device(std::shared_ptr<gpu::Device> device) { device_ = std::move(device); }
  const std::shared_ptr<gpu::Device>& device() const { return device_; }
  const std::vector<std::shared_ptr<const Slab>>& device_slabs() const { return device_slabs_; }

  /// By index. Mapped until the last holder of each lets go.
  const std::vector<std::shared_ptr<const Slab>>& slabs() const { return slabs_; }

 private:
  explicit DoorGuest(ParentsDescriptor socket) : socket_(std::move(socket)) {}
  Result<bool> receive_frame();
  std::shared_ptr<const Slab> import(FileDescriptor descriptor, std::uint64_t bytes);

  ParentsDescriptor socket_;  ///< Open, it says that this process may still read.
  bool welcomed_ = false;
  std::vector<std::shared_ptr<const Slab>> slabs_;
  std::shared_ptr<gpu::Device> device_;
  std::vector<std::shared_ptr<const Slab>> device_slabs_;
};

}  // namespace freshet::shm
