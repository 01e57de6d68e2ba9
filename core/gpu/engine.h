// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What carries out a Device's calls (core/gpu/device.h): the driver (driver_device.cc), or the host device
/// (host_device.h). An engine does one thing a call and keeps no books: Device has checked lengths, ranges, rights and
/// the process before it asks. So both engines refuse the same calls with the same words, and the processor's tests of
/// these checks hold for the driver too.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/gpu/kernels/kernels.h"
#include "core/gpu/uuid.h"
#include "core/model/memory_kind.h"

namespace freshet::gpu {

/// Immutable.
struct DeviceInfo {
  Uuid uuid;
  std::string name;         ///< "NVIDIA H100 80GB HBM3".
  std::uint64_t bytes = 0;  ///< Of memory.
  int compute_major = 0;    ///< Compute capability.
  int compute_minor = 0;
  std::uint64_t granularity = 0;     ///< Slabs have a multiple of it, in bytes; 0 before the device is opened.
  bool exports_slabs = false;        ///< As descriptors.
  bool registers_read_only = false;  ///< Host memory that the process cannot write.
  bool kernels_reach_host = false;   ///< Registered host memory, by the address that the host has for it.
};

/// Bytes of a device's memory.
struct Room {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
};

/// The facts of an address.
struct PointerInfo {
  MemoryKind kind = MemoryKind::host;
  std::optional<Uuid> device;  ///< The device that owns device or managed memory.
};

enum class HostAccess : std::uint8_t {
  read_write,
  read_only,  ///< The device only reads: for a mapping that the process cannot write either.
};

/// A stream, of ours or of a framework (a CUstream is a cudaStream_t). Null, 1 and 2 are the driver's default streams,
/// as in PyTorch and DLPack.
struct StreamHandle {
  void* native = nullptr;
  bool operator==(const StreamHandle&) const = default;
  static StreamHandle of(std::uintptr_t number) { return {reinterpret_cast<void*>(number)}; }
};

/// An event, of ours or of a framework.
struct EventHandle {
  void* native = nullptr;
  bool operator==(const EventHandle&) const = default;
};

/// Device memory as an engine gives it out.
struct Block {
  std::byte* address = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t native = 0;  ///< The engine's own name of the allocation.
};

/// Any thread. An error's message has the driver's name and text for it ("CUDA_ERROR_INVALID_VALUE: invalid argument").
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const DeviceInfo& info() const = 0;
  /// True: an earlier call found an error that the device's context keeps; no call works again.
  virtual bool is_stuck() const = 0;
  virtual Result<Room> room() = 0;
  virtual Result<PointerInfo> describe(const void* address) = 0;

  /// REQUIRES: `bytes` is a multiple of the granularity, for the first two.
  virtual Result<Block> create_block(std::uint64_t bytes) = 0;
  virtual Result<Block> import_block(FileDescriptor descriptor, std::uint64_t bytes) = 0;  ///< Read-only.
  virtual Result<FileDescriptor> export_block(const Block& block) = 0;
  virtual Status destroy_block(const Block& block) = 0;  ///< REQUIRES: no queued work has it.

  virtual Status register_host(const void* address, std::uint64_t bytes, HostAccess access) = 0;
  virtual Status unregister_host(const void* address) = 0;  ///< REQUIRES: no queued work has it.

  virtual Result<StreamHandle> create_stream() = 0;  ///< Non-blocking.
  virtual Status destroy_stream(StreamHandle stream) = 0;
  virtual Result<EventHandle> create_event() = 0;
  virtual Status destroy_event(EventHandle event) = 0;

  /// Whether what the stream gets becomes part of a CUDA graph, and runs with each of its replays.
  virtual Result<bool> is_capturing(StreamHandle stream) = 0;
  virtual Status record(EventHandle event, StreamHandle stream) = 0;
  virtual Result<bool> is_done(EventHandle event) = 0;  ///< True also for an event that was never recorded.
  virtual Status make_wait(StreamHandle stream, EventHandle event) = 0;
  virtual Status copy(StreamHandle stream, std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  virtual Status launch(StreamHandle stream, const Launch& launch, std::span<const std::byte> arguments) = 0;
  virtual Status unload() = 0;  ///< The kernels' code. REQUIRES: no queued work has it.
};

}  // namespace freshet::gpu
