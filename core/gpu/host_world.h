// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The common parts of the devices of one HostPlatform: addresses, streams, events, and the thread that runs their
/// work.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/gpu/engine.h"
#include "core/gpu/host_device.h"

namespace freshet::gpu::host_detail {

/// A place in a stream's work. One record of an event makes one; those who wait for it keep it.
struct Marker {
  bool done = false;  ///< Guarded by the world's mutex.
};

/// An address range that the world knows: a device's block, or registered host memory. Its number tells it from a later
/// one at the same address; 0 is memory that the world does not know.
struct Known {
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;
  std::size_t device = 0;
  bool writable = true;
  bool is_block = false;
};

struct CopyWork {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t to_number = 0;
  std::uint64_t from_number = 0;
};

struct KernelWork {
  Launch launch;
  std::vector<std::byte> arguments;
};

/// One of them is set.
struct Work {
  std::optional<CopyWork> copy;
  std::optional<KernelWork> kernel;
  std::shared_ptr<Marker> record;
  std::shared_ptr<Marker> wait;
};

struct HostStream {
  std::size_t device = 0;
  std::deque<Work> work;
  bool is_closed = false;  ///< It ends with its last work.
  bool is_captured = false;
};

struct HostEvent {
  std::size_t device = 0;
  std::shared_ptr<Marker> latest;  ///< Null: never recorded.
};

struct Counts {
  std::uint64_t turns = 0;
  std::uint64_t bytes_to_host = 0;
  std::uint64_t bytes_to_device = 0;
};

/// Any thread.
class World {
 public:
  explicit World(const HostOptions& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const HostOptions& options() const { return options_; }
  Counts counts();

  void hold(bool is_held);
  void strike(std::size_t device);
  void capture(StreamHandle stream, bool is_captured);
  /// The error, if there is one.
  std::string why_stuck(std::size_t device);

  /// Counts `bytes` against the device's memory: out_of_space when it is used up.
  Status take_room(std::size_t device, std::uint64_t bytes);
  void give_room(std::size_t device, std::uint64_t bytes);
  std::uint64_t used(std::size_t device);

  /// already_exists when a part is known.
  Status add(const void* address, const Known& known);
  /// not_found when it does not begin a range of that sort.
  Result<Known> remove(const void* address, bool is_block);
  std::optional<Known> find(const void* address);

  StreamHandle add_stream(std::size_t device);
  Status remove_stream(StreamHandle stream);  ///< Its work still runs.
  EventHandle add_event(std::size_t device);
  Status remove_event(EventHandle event);

  // `device` names the caller's context: the default streams of two devices have equal handles.
  Result<bool> is_capturing(std::size_t device, StreamHandle stream);
  Status record(std::size_t device, EventHandle event, StreamHandle stream);
  Status make_wait(std::size_t device, StreamHandle stream, EventHandle event);
  Status copy(std::size_t device, StreamHandle stream, std::byte* to, const std::byte* from, std::uint64_t bytes);
  Status launch(std::size_t device, StreamHandle stream, KernelWork kernel);
  /// Grants turns, then looks.
  Result<bool> is_done(EventHandle event);

 private:
  Result<HostStream*> own_stream_at(StreamHandle handle) FRESHET_REQUIRES(mutex_);
  void end_closed_streams() FRESHET_REQUIRES(mutex_);
  Result<HostStream*> stream_at(std::size_t device, StreamHandle handle) FRESHET_REQUIRES(mutex_);
  Result<HostEvent*> event_at(EventHandle handle) FRESHET_REQUIRES(mutex_);
  Result<std::uint64_t> number_of(const void* address, std::uint64_t bytes, bool written) FRESHET_REQUIRES(mutex_);
  const std::pair<const std::uintptr_t, Known>* known_at(const void* address) FRESHET_REQUIRES(mutex_);
  bool is_block(const void* address) FRESHET_REQUIRES(mutex_);
  bool reaches_all(const KernelWork& kernel) FRESHET_REQUIRES(mutex_);
  bool is_alive(std::uint64_t number, const void* address) FRESHET_REQUIRES(mutex_);
  std::uint64_t draw(std::uint64_t below) FRESHET_REQUIRES(mutex_);

  void run();
  void take_turn(HostStream& stream) FRESHET_REQUIRES(mutex_);
  bool may_go_on(const HostStream& stream) FRESHET_REQUIRES(mutex_);
  HostStream* choose() FRESHET_REQUIRES(mutex_);
  void take_turn_of_copy(HostStream& stream) FRESHET_REQUIRES(mutex_);
  void take_turn_of_kernel(HostStream& stream) FRESHET_REQUIRES(mutex_);

  const HostOptions options_;
  const ForkMark mark_;

  Mutex mutex_;
  CondVar changed_;
  std::mt19937_64 random_ FRESHET_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, Known> known_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t last_number_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> used_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::string> stuck_ FRESHET_GUARDED_BY(mutex_);
  std::vector<bool> struck_ FRESHET_GUARDED_BY(mutex_);
  /// In the order of their making, so that a seed means the same in each run. First two default streams a device.
  std::vector<std::unique_ptr<HostStream>> streams_ FRESHET_GUARDED_BY(mutex_);
  std::map<void*, std::unique_ptr<HostEvent>> events_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t granted_ FRESHET_GUARDED_BY(mutex_) = 0;  ///< Turns that the thread still has.
  Counts counts_ FRESHET_GUARDED_BY(mutex_);
  bool is_busy_ FRESHET_GUARDED_BY(mutex_) = false;  ///< The thread touches memory, without the lock.
  bool is_held_ FRESHET_GUARDED_BY(mutex_) = false;
  bool ends_ FRESHET_GUARDED_BY(mutex_) = false;

  std::thread thread_;  ///< The last: it uses all the others.
};

}  // namespace freshet::gpu::host_detail
