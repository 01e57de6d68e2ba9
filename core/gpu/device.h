// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One seam between Freshet and GPUs. All code that touches device memory calls a Device; a Device calls the driver, or
/// in tests the host device (core/gpu/host_device.h), through core/gpu/engine.h. No CUDA header, library or runtime is
/// needed to build or to start a program: the driver's library is opened by the first call that wants it.
///
/// Users: the arena and the publisher (copies from a trainer's device), the subscriber (copies to a server's), and
/// `freshet doctor`.
///
///     FRESHET_ASSIGN(const auto platform, gpu::open_driver_platform());
///     FRESHET_ASSIGN(const auto device, platform->open(uuid));
///     FRESHET_ASSIGN(gpu::Stream stream, device->create_stream());
///     FRESHET_ASSIGN(gpu::Event captured, device->create_event());
///     device->copy(stream.handle(), to, from, bytes);      // Queued. `to` and `from` must stay.
///     device->record(captured, stream.handle());
///     device->make_wait(theirs, captured.handle());        // The framework's next write comes after our copy.
///     device->wait(captured, std::chrono::seconds(10));    // The host waits, if it must.
///
/// Order. Work of one stream runs in the order of the calls. Work of two streams has no order but by an event that one
/// records and the other waits for. Queued work runs at any time after the call, at the latest when somebody waits for
/// it. The host must touch no byte of it before is_done() or wait() said that an event after it is done.
///
/// Context. A Device lives in the device's primary context, which PyTorch and JAX use too. So their streams, events and
/// addresses are valid here. Our streams are non-blocking: the default stream neither waits for them nor they for it.
///
/// Threads. Any thread may call a Device, and each call leaves the thread's current context as it was. One thread at a
/// time may use one Event. A forked child cannot use its parent's Device: calls are failed_precondition, destructors do
/// nothing.
///
/// Errors name the call, the device, and the driver's name and text of the error. unavailable: no driver, no device, a
/// driver that is too old. out_of_space: the device's memory is used up; earlier memory is untouched. unsupported: this
/// build or device cannot do it. A stuck error (an address that was not there, a failed kernel) belongs to the context:
/// the device is lost for this process, the framework's share too. The log says it once, and each later call is
/// failed_precondition with the first cause.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/gpu/engine.h"

namespace freshet::gpu {

class Device;

/// A slab of device memory: allocated by its owner, or imported from another process. Movable. Its end waits up to half
/// a minute for the work that our streams had queued, then gives the memory back. If that was too short, the memory
/// stays until the process ends, and the log says so. An Interruption does not shorten the wait. REQUIRES at its end:
/// no foreign stream has work with it.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory();

  std::byte* address() const { return block_.address; }  ///< Of the device; the processor must not touch it.
  std::uint64_t bytes() const { return block_.bytes; }   ///< The size asked for, rounded up to a granule.
  bool writable() const { return writable_; }            ///< False: imported.

 private:
  friend class Device;
  void swap(Memory& other) noexcept;
  std::shared_ptr<Device> device_;
  Block block_;
  bool writable_ = false;
};

/// Host memory that the driver knows, so that copies run at the bus' speed and behind the caller. Movable.
class Registration {
 public:
  Registration() = default;
  Registration(Registration&& other) noexcept { swap(other); }
  Registration& operator=(Registration&& other) noexcept {
    swap(other);
    return *this;
  }
  /// As end(), with half a minute, whatever an Interruption wants. If that was too short, the memory stays registered,
  /// and the log says so. Its owner stays with it, here and where the driver of a lost device does not unregister it.
  ~Registration();

  /// Waits for the work that our streams had queued at the call, then unregisters. timed_out: it stays registered, and
  /// end() may be called again; so with cancelled, by an Interruption. REQUIRES: no foreign stream has work with the
  /// memory.
  Status end(Duration at_most);

 private:
  friend class Device;
  void swap(Registration& other) noexcept;
  std::shared_ptr<Device> device_;
  const std::byte* address_ = nullptr;
  std::shared_ptr<const void> owner_;
};

/// A stream of ours. Movable. Its end waits up to half a minute for its work, whatever an Interruption wants. If that
/// was too short, the stream goes on until the process ends, the log says so, and the ends of memory still wait for it.
class Stream {
 public:
  Stream() = default;
  Stream(Stream&& other) noexcept { swap(other); }
  Stream& operator=(Stream&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Stream();
  StreamHandle handle() const { return handle_; }  ///< For the calls below, and for a framework.

 private:
  friend class Device;
  void swap(Stream& other) noexcept;
  std::shared_ptr<Device> device_;
  StreamHandle handle_;
};

/// A place in a stream's work, set by Device::record(). Movable. It may end while streams wait for it.
class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept { swap(other); }
  Event& operator=(Event&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Event();
  EventHandle handle() const { return handle_; }

 private:
  friend class Device;
  void swap(Event& other) noexcept;
  std::shared_ptr<Device> device_;
  EventHandle handle_;
};

/// One device, in this process. Any thread. Its memory, streams, events and registrations keep it.
class Device : public std::enable_shared_from_this<Device> {
 public:
  /// For platforms.
  static std::shared_ptr<Device> make(std::unique_ptr<Engine> engine);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }

  /// The device's memory in bytes, and how much of it no process uses now.
  Result<Room> room();

  /// The facts of an address. An address that the driver does not know is host memory.
  Result<PointerInfo> describe(const void* address);

  /// `bytes` or a little more of device memory. Its contents are unspecified. invalid_argument for no bytes.
  Result<Memory> allocate(std::uint64_t bytes);

  /// A descriptor of the slab, for another process of the same user. The slab's bytes live until the last process that
  /// maps the slab unmaps it or ends; the process that made it may end before. Such memory has no seals: a hostile
  /// receiver can write it.
  /// failed_precondition for imported memory, unsupported where the device exports none.
  Result<FileDescriptor> export_slab(const Memory& memory);

  /// Maps a received slab of this device read-only; `bytes` is the size that its owner's Memory has. Takes the
  /// descriptor in every case. corrupt when it is no slab of device memory, or has fewer bytes. unsupported for a slab
  /// of another device.
  Result<Memory> import_slab(FileDescriptor descriptor, std::uint64_t bytes);

  /// `owner` keeps the memory mapped: a driver copies to the pages that it registered, also where other memory has
  /// their address by now. REQUIRES: `address` and `bytes` are whole pages; without an owner they stay mapped until the
  /// registration has ended. already_exists when a byte of them is registered already, by anybody in this process.
  Result<Registration> register_host(const void* address, std::uint64_t bytes, HostAccess access,
                                     std::shared_ptr<const void> owner = nullptr);

  Result<Stream> create_stream();
  Result<Event> create_event();

  /// Queues a copy; the addresses say whether it goes to the device, from it, or within it. Zero bytes are done at
  /// once. Between the device and plain host memory (not registered) the driver may copy before it returns, slowly.
  /// invalid_argument when the ranges overlap, run past our memory's end, or `to` is read-only. unsupported when one of
  /// them is another device's memory: that goes through host memory.
  Status copy(StreamHandle stream, void* to, const void* from, std::uint64_t bytes);

  /// No call works again: the driver's context keeps an error, or this process was forked.
  bool is_lost() const { return mark_.is_inherited() || engine_->is_stuck(); }

  /// The event now means all that `stream` has queued so far; what it meant before is forgotten. failed_precondition
  /// where `stream` is captured into a CUDA graph.
  Status record(const Event& event, StreamHandle stream);

  /// Whether all that the event means has run. True for an event that was never recorded.
  Result<bool> is_done(const Event& event);

  /// Waits in the calling thread, at most that long: timed_out. cancelled by an Interruption
  /// (core/base/interruption.h).
  Status wait(const Event& event, Duration at_most);

  /// What `stream` gets from now on runs after all that the event means now. The host does not wait. Either may be a
  /// framework's, and the event may be another device's. failed_precondition where `stream` is captured into a CUDA
  /// graph.
  Status make_wait(StreamHandle stream, EventHandle event);

  /// Queues one kernel. `arguments` are the kernel's one struct, by value; what its pointers name must stay until an
  /// event after it is done. 10⁵ rows are one launch over a table, not 10⁵ launches. invalid_argument when the threads
  /// are no whole warps, or too many, when the blocks are more than kBlocksMax, when shared memory is wanted, or when
  /// the arguments have another size than this kernel's. unsupported when this build has no kernels, or when the device
  /// is older than compute capability 8.0.
  Status launch(StreamHandle stream, const Launch& launch, std::span<const std::byte> arguments);

  template <typename Arguments>
  Status launch(StreamHandle stream, const Launch& how, const Arguments& arguments) {
    static_assert(std::is_trivially_copyable_v<Arguments>);
    return launch(stream, how, std::as_bytes(std::span(&arguments, 1)));
  }

  /// Waits for all that our streams have queued, at most that long.
  Status drain(Duration at_most);

  /// Gives the kernels' code back, after drain(). The next launch loads it again. REQUIRES: no thread launches a kernel
  /// between the call and its return, and no foreign stream has a kernel of ours queued.
  Status unload(Duration at_most);

 private:
  friend class Memory;
  friend class Registration;
  friend class Stream;
  friend class Event;

  /// A range of ours in one address space: slabs, and registered host memory.
  struct Range {
    std::uint64_t bytes = 0;
    bool writable = false;
    bool registered = false;
  };

  /// Whether an Interruption ends a wait. A destructor's wait ends late: its caller cannot hear that work still runs.
  enum class Ends : std::uint8_t { early, late };

  explicit Device(std::unique_ptr<Engine> engine);

  Status check_usable();
  Error noted(std::string_view what, Error error);
  template <typename What, typename Call>
  auto attempt(What what, Call call) -> decltype(call());
  Status check_not_captured(StreamHandle stream);
  Status check_copy(std::uintptr_t to, std::uintptr_t from, std::uint64_t bytes);
  Status check_range(std::string_view role, std::uintptr_t begin, std::uint64_t bytes, bool written)
      FRESHET_REQUIRES(mutex_);
  bool overlaps(std::uintptr_t begin, std::uint64_t bytes) FRESHET_REQUIRES(mutex_);
  Status check_device_of(std::string_view role, const void* address);
  Result<Memory> keep(Block block, bool writable);
  Status wait_for(EventHandle event, Duration at_most, Ends ends);
  Status drain(std::optional<StreamHandle> only, Duration at_most, Ends ends);

  void release(const Block& block);
  Status release(const std::byte* registered, Duration at_most, Ends ends);
  void release(StreamHandle stream);
  void release(EventHandle event);

  std::unique_ptr<Engine> engine_;  ///< Constant after construction.
  const DeviceInfo info_;
  const ForkMark mark_;

  Mutex mutex_;
  std::map<std::uintptr_t, Range> ranges_ FRESHET_GUARDED_BY(mutex_);
  std::string stuck_ FRESHET_GUARDED_BY(mutex_);  ///< The first cause.

  /// Held while an event is recorded in each of them, so that none ends meanwhile. Before mutex_.
  Mutex streams_mutex_;
  std::vector<StreamHandle> streams_ FRESHET_GUARDED_BY(streams_mutex_);
};

/// The devices of a driver. Any thread.
class Platform {
 public:
  virtual ~Platform() = default;
  /// "driver 580.159, CUDA 13.0".
  virtual std::string description() const = 0;
  /// In the driver's order; at least one.
  virtual Result<std::vector<DeviceInfo>> devices() = 0;
  /// not_found when no device has this UUID; the message names those that are there.
  virtual Result<std::shared_ptr<Device>> open(const Uuid& uuid) = 0;
};

/// For platforms: "GPU-… is no device of this machine; there are …".
tl::unexpected<Error> fail_unknown_device(const Uuid& uuid, std::span<const DeviceInfo> devices);

/// The NVIDIA driver of this machine. unavailable, and why: no libcuda.so.1, no device, a driver older than 580.
Result<std::unique_ptr<Platform>> open_driver_platform();

}  // namespace freshet::gpu
