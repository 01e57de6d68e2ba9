// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The host device: a GPU for tests, made of plain memory and a thread. It keeps the contract of Device
/// (core/gpu/device.h) and takes every liberty that the contract leaves: work runs as late as it can, in an order that
/// a seed chooses. So a wait that is missing shows as a wrong byte, on a machine without a GPU, and again with the same
/// seed.
///
///   Memory    memfds, sealed against shrinking. An exported descriptor is the memfd; an importer maps it read-only,
///   and
///             the bytes live as long as any mapping. New memory has the byte 0xa5 at its begin, not zeros.
///   Streams   queues. One thread runs the work of all streams, so one seed decides the whole order. It takes turns: at
///             each turn the seed chooses among the streams that may go on. A copy may take several turns, so that
///             other work sees it half done.
///   Time      stands still until the host asks. Each is_done() lets the seed grant some turns, often none; so wait(),
///   and
///             whatever waits, goes on, and a host that does not wait finds nothing done.
///   Kernels   run_on_host() (core/gpu/kernels/kernels.h), in a turn of their own.
///   Faults    a copy from or to memory that is gone, or a kernel that fails, makes the device stuck, as a real one
///   gets.
///
/// It lies in core, not among the tests: there the address sanitizer would not look into it, tests of all rooms open
/// it, and so does a program that a test starts. No option and no variable of a user's opens it.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/gpu/device.h"

namespace freshet::gpu {

namespace host_detail {
class World;
}

struct HostOptions {
  std::uint64_t seed = 1;
  std::size_t devices = 1;
  std::uint64_t bytes = std::uint64_t{1} << 30;  ///< Of each device's memory.
  bool registers = true;                         ///< Host memory; false: it refuses, as a driver may.
  int compute_major = 8;                         ///< Below kComputeMajorMin: Device launches no kernel.
  bool registers_read_only = true;               ///< Host memory that the process cannot write.
  bool kernels_reach_host = true;                ///< False: a copy kernel that gets a host address makes it stuck.
};

/// The UUID of the host device with that ordinal: the same in every process.
Uuid host_device_uuid(std::size_t ordinal);

/// Any thread. Devices of one platform share addresses, streams and events, as those of a driver do: what a test plays
/// the framework with is another Device of the same UUID. The platform may end before its devices.
class HostPlatform final : public Platform {
 public:
  explicit HostPlatform(const HostOptions& options);
  ~HostPlatform() override;

  std::string description() const override;
  Result<std::vector<DeviceInfo>> devices() override;
  Result<std::shared_ptr<Device>> open(const Uuid& uuid) override;

  /// While the devices are held, no work runs: a host that waits then would wait for ever. So a test knows what runs
  /// after a call, and that the call did not wait.
  void hold(bool is_held);

  /// The next work of the device fails as a kernel with a wild address does: the device is stuck from then on.
  void strike(std::size_t ordinal);

  /// Whether the stream says that it is captured into a graph. There is no graph: its work runs as ever.
  void capture(StreamHandle stream, bool is_captured);

  /// Turns that were taken so far, by all streams: what a test compares to see that a seed decides the order.
  std::uint64_t turns() const;

  /// Bytes that the devices' copies, not their kernels, moved from their memory to the host's.
  std::uint64_t bytes_to_host() const;
  /// The other way.
  std::uint64_t bytes_to_device() const;

 private:
  const std::shared_ptr<host_detail::World> world_;
};

}  // namespace freshet::gpu
