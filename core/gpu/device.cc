// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/log.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kDeviceBytesMax = std::uint64_t{1} << 46;
constexpr Duration kEndAtMost = std::chrono::seconds(30);
constexpr std::uint32_t kWarpThreads = 32;
constexpr int kEagerLooks = 256;  // A driver answers in a microsecond; most copies end meanwhile.

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

/// Of memory that a driver keeps registered.
void keep_for_ever(std::shared_ptr<const void> owner) {
  static Mutex& mutex = *new Mutex;
  static auto& kept = *new std::vector<std::shared_ptr<const void>>;
  MutexLock lock(mutex);
  kept.push_back(std::move(owner));
}

void warn_of_leak(std::string_view what, const Uuid& uuid, const Error& error) {
  log_line(LogLevel::warning,
           format("{} on device {} stays until the process ends: {}", what, uuid.text(), error.message()));
}

}  // namespace

std::shared_ptr<Device> Device::make(std::unique_ptr<Engine> engine) {
  return std::shared_ptr<Device>(new Device(std::move(engine)));
}

Device::Device(std::unique_ptr<Engine> engine) : engine_(std::move(engine)), info_(engine_->info()) {}

Device::~Device() {
  // The driver's threads, and the host device's, are the parent's.
  if (mark_.is_inherited()) (void)engine_.release();  // NOLINT(bugprone-unused-return-value)
}

Status Device::check_usable() {
  FRESHET_TRY(check_not_inherited(mark_, "a GPU's device"));
  if (!engine_->is_stuck()) return {};
  MutexLock lock(mutex_);
  return fail(Code::failed_precondition,
              format("device {} is lost to this process since: {}; end the process and start it anew",
                     info_.uuid.text(), stuck_.empty() ? "an error that its context keeps" : stuck_));
}

Error Device::noted(std::string_view what, Error error) {
  const std::string message = format("{} on device {}: {}", what, info_.uuid.text(), error.message());
  if (!engine_->is_stuck()) return {error.code(), message};
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    is_first = stuck_.empty();
    if (is_first) stuck_ = message;
  }
  if (is_first)
    log_line(LogLevel::warning, format("{}; the device is lost to this process, end it and start it anew", message));
  return {Code::failed_precondition, message + "; the device is lost to this process, end it and start it anew"};
}

/// Calls the engine; `what` makes the words for an error.
template <typename What, typename Call>
auto Device::attempt(What what, Call call) -> decltype(call()) {
  if (auto status = check_usable(); !status) return fail(std::move(status.error()).with_context(what()));
  auto result = call();
  if (!result) return fail(noted(what(), std::move(result.error())));
  return result;
}

Result<Room> Device::room() {
  return attempt([] { return std::string("ask for free memory"); }, [&] { return engine_->room(); });
}

Result<PointerInfo> Device::describe(const void* address) {
  return attempt([&] { return format("describe address {}", address); }, [&] { return engine_->describe(address); });
}

Result<Memory> Device::keep(Block block, bool writable) {
  Memory memory;
  memory.device_ = shared_from_this();
  memory.block_ = block;
  memory.writable_ = writable;
  MutexLock lock(mutex_);
  ranges_[number_of(block.address)] = {.bytes = block.bytes, .writable = writable, .registered = false};
  return memory;
}

Result<Memory> Device::allocate(std::uint64_t bytes) {
  if (bytes == 0 || bytes > kDeviceBytesMax) return refuse(format("allocate {} bytes of device memory", bytes));
  const std::uint64_t whole = (bytes + info_.granularity - 1) / info_.granularity * info_.granularity;
  FRESHET_ASSIGN(const Block block, attempt([&] { return format("allocate {} bytes", whole); },
                                            [&] { return engine_->create_block(whole); }));
  return keep(block, true);
}

Result<FileDescriptor> Device::export_slab(const Memory& memory) {
  if (memory.device_.get() != this) return refuse("export a slab: the memory belongs to another device object");
  if (!memory.writable_) return fail(Code::failed_precondition, "export a slab: it was imported; its owner exports it");
  if (!info_.exports_slabs) {
    return fail(Code::unsupported,
                format("export a slab: device {} gives no descriptors of its memory", info_.uuid.text()));
  }
  return attempt([&] { return format("export a slab of {} bytes", memory.bytes()); },
                 [&] { return engine_->export_block(memory.block_); });
}

Result<Memory> Device::import_slab(FileDescriptor descriptor, std::uint64_t bytes) {
  const auto what = [&] { return format("import a slab of {} bytes", bytes); };
  if (!descriptor) return fail(Code::corrupt, what() + ": no descriptor came with it");
  if (bytes == 0 || bytes > kDeviceBytesMax || bytes % info_.granularity != 0) {
    return fail(Code::corrupt, format("{}: a slab has a multiple of {} bytes", what(), info_.granularity));
  }
  FRESHET_ASSIGN(const Block block, attempt(what, [&] { return engine_->import_block(std::move(descriptor), bytes); }));
  return keep(block, false);
}

bool Device::overlaps(std::uintptr_t begin, std::uint64_t bytes) {
  const auto after = ranges_.lower_bound(begin);
  if (after != ranges_.end() && after->first < begin + bytes) return true;
  if (after == ranges_.begin()) return false;
  const auto before = std::prev(after);
  return begin - before->first < before->second.bytes;
}

Result<Registration> Device::register_host(const void* address, std::uint64_t bytes, HostAccess access,
                                           std::shared_ptr<const void> owner) {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto what = [&] { return format("register {} bytes of host memory at {}", bytes, address); };
  const std::uintptr_t begin = number_of(address);
  if (begin == 0 || bytes == 0 || bytes > kDeviceBytesMax || begin % page != 0 || bytes % page != 0 ||
      begin > std::numeric_limits<std::uintptr_t>::max() - bytes) {
    return refuse(format("{}: only whole pages of {} bytes can be registered", what(), page));
  }
  if (access == HostAccess::read_only && !info_.registers_read_only) {
    return fail(Code::unsupported, format("{}: device {} takes no read-only memory", what(), info_.uuid.text()));
  }
  {
    MutexLock lock(mutex_);
    if (overlaps(begin, bytes)) return fail(Code::already_exists, what() + ": a part of it is registered already");
  }
  FRESHET_TRY(attempt(what, [&] { return engine_->register_host(address, bytes, access); }));
  Registration registration;
  registration.device_ = shared_from_this();
  registration.address_ = static_cast<const std::byte*>(address);
  registration.owner_ = std::move(owner);
  MutexLock lock(mutex_);
  ranges_[begin] = {.bytes = bytes, .writable = access == HostAccess::read_write, .registered = true};
  return registration;
}

Result<Stream> Device::create_stream() {
  FRESHET_ASSIGN(const StreamHandle handle,
                 attempt([] { return std::string("create a stream"); }, [&] { return engine_->create_stream(); }));
  Stream stream;
  stream.device_ = shared_from_this();
  stream.handle_ = handle;
  // Before anybody can queue work, so that drain() sees all of it.
  MutexLock lock(streams_mutex_);
  streams_.push_back(handle);
  return stream;
}

Result<Event> Device::create_event() {
  FRESHET_ASSIGN(const EventHandle handle,
                 attempt([] { return std::string("create an event"); }, [&] { return engine_->create_event(); }));
  Event event;
  event.device_ = shared_from_this();
  event.handle_ = handle;
  return event;
}

Status Device::check_range(std::string_view role, std::uintptr_t begin, std::uint64_t bytes, bool written) {
  const auto after = ranges_.upper_bound(begin);
  if (after != ranges_.end() && after->first - begin < bytes) {
    return refuse(format("the {} begins before memory of ours and runs into it", role));
  }
  if (after == ranges_.begin()) return {};
  const auto& [start, range] = *std::prev(after);
  const std::uint64_t into = begin - start;
  if (into >= range.bytes) return {};
  if (bytes > range.bytes - into) {
    return refuse(format("the {} runs {} bytes past its memory's end", role, bytes - (range.bytes - into)));
  }
  if (written && !range.writable) {
    return refuse(
        format("the {} is read-only {}", role, range.registered ? "host memory" : "memory of another process"));
  }
  return {};
}

Status Device::check_copy(std::uintptr_t to, std::uintptr_t from, std::uint64_t bytes) {
  constexpr auto kLast = std::numeric_limits<std::uintptr_t>::max();
  if (to == 0 || from == 0) return refuse("no address");
  if (to > kLast - bytes || from > kLast - bytes) return refuse("a range past the end of all addresses");
  if (to < from + bytes && from < to + bytes) return refuse("the destination overlaps the source");
  MutexLock lock(mutex_);
  FRESHET_TRY(check_range("destination", to, bytes, true));
  return check_range("source", from, bytes, false);
}

/// A slab is mapped for its own device alone: another device's copy would read or write no memory.
Status Device::check_device_of(std::string_view role, const void* address) {
  {
    MutexLock lock(mutex_);
    if (overlaps(number_of(address), 1)) return {};
  }
  FRESHET_ASSIGN(const PointerInfo info, describe(address));
  if (info.kind != MemoryKind::device || !info.device || *info.device == info_.uuid) return {};
  return fail(Code::unsupported, format("the {} is memory of device {}, and the copy is device {}'s; copy through host "
                                        "memory",
                                        role, info.device->text(), info_.uuid.text()));
}

Status Device::copy(StreamHandle stream, void* to, const void* from, std::uint64_t bytes) {
  const auto what = [&] { return format("copy {} bytes from {} to {}", bytes, from, to); };
  if (bytes == 0) return check_usable();
  auto status = check_copy(number_of(to), number_of(from), bytes);
  if (status) status = check_device_of("destination", to);
  if (status) status = check_device_of("source", from);
  if (!status) return fail(std::move(status.error()).with_context(what()));
  return attempt(what, [&] {
    return engine_->copy(stream, static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
  });
}

/// What such a stream gets runs with each replay of the graph, and never before. An event of it cannot be waited for.
Status Device::check_not_captured(StreamHandle stream) {
  FRESHET_ASSIGN(const bool is_captured, engine_->is_capturing(stream));
  if (!is_captured) return {};
  return fail(Code::failed_precondition, "the stream is being captured into a CUDA graph; call after the capture");
}

Status Device::record(const Event& event, StreamHandle stream) {
  return attempt([] { return std::string("record an event"); },
                 [&]() -> Status {
                   FRESHET_TRY(check_not_captured(stream));
                   return engine_->record(event.handle_, stream);
                 });
}

Result<bool> Device::is_done(const Event& event) {
  return attempt([] { return std::string("query an event"); }, [&] { return engine_->is_done(event.handle_); });
}

Status Device::wait_for(EventHandle event, Duration at_most, Ends ends) {
  const auto what = [] { return std::string("wait for an event"); };
  const Time deadline = deadline_in(at_most);
  Time look = Time::min();
  Duration pause = std::chrono::microseconds(20);
  for (int looks = 0;; ++looks) {
    FRESHET_ASSIGN(const bool is_done, attempt(what, [&] { return engine_->is_done(event); }));
    if (is_done) return {};
    const Time now = system_clock().now();
    if (now >= deadline) {
      return fail(Code::timed_out,
                  format("wait for an event on device {}: its work still runs after {} ms", info_.uuid.text(),
                         std::chrono::duration_cast<std::chrono::milliseconds>(at_most).count()));
    }
    if (ends == Ends::early && now >= look) {
      FRESHET_TRY(Interruption::check());
      look = Interruption::next_look(deadline);
    }
    if (looks < kEagerLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Duration>(pause, deadline - now));
      pause = std::min<Duration>(pause * 2, std::chrono::microseconds(500));
    }
  }
}

Status Device::wait(const Event& event, Duration at_most) { return wait_for(event.handle_, at_most, Ends::early); }

Status Device::make_wait(StreamHandle stream, EventHandle event) {
  return attempt([] { return std::string("make a stream wait for an event"); },
                 [&]() -> Status {
                   FRESHET_TRY(check_not_captured(stream));
                   return engine_->make_wait(stream, event);
                 });
}

Status Device::launch(StreamHandle stream, const Launch& launch, std::span<const std::byte> arguments) {
  const auto what = [&] {
    return format("launch kernel {} with {} blocks of {} threads", symbol_of(launch.kernel), launch.blocks,
                  launch.threads);
  };
  if (launch.blocks == 0 || launch.blocks > kBlocksMax || launch.threads == 0 || launch.threads % kWarpThreads != 0 ||
      launch.threads > threads_max_of(launch.kernel) || launch.shared_bytes != 0) {
    return refuse(
        format("{}, and {} bytes of shared memory: a launch has 1 to {} blocks of {} to {} threads in whole "
               "warps, and no shared memory of its own",
               what(), launch.shared_bytes, kBlocksMax, kWarpThreads, threads_max_of(launch.kernel)));
  }
  // A driver cannot know, and would read past their end.
  if (arguments.size() != argument_bytes_of(launch.kernel)) {
    return refuse(
        format("{}: {} bytes of arguments, of {}", what(), arguments.size(), argument_bytes_of(launch.kernel)));
  }
  if (info_.compute_major < kComputeMajorMin) {
    return fail(Code::unsupported,
                format("{} on device {}: it has compute capability {}.{}, and Freshet has kernels "
                       "for {}.0 and later",
                       what(), info_.uuid.text(), info_.compute_major, info_.compute_minor, kComputeMajorMin));
  }
  return attempt(what, [&] { return engine_->launch(stream, launch, arguments); });
}

Status Device::drain(Duration at_most) { return drain(std::nullopt, at_most, Ends::early); }

Status Device::drain(std::optional<StreamHandle> only, Duration at_most, Ends ends) {
  const auto what = [] { return std::string("wait for all work"); };
  const Time deadline = deadline_in(at_most);
  if (auto status = check_usable(); !status) return fail(std::move(status.error()).with_context(what()));
  std::vector<EventHandle> events;
  Status status;
  {
    MutexLock lock(streams_mutex_);
    for (const StreamHandle stream : streams_) {
      if (only && !(*only == stream)) continue;
      const auto event = engine_->create_event();
      if (event) events.push_back(*event);
      status = event ? engine_->record(*event, stream) : fail(event.error());
      if (!status) break;
    }
  }
  if (!status) status = fail(noted(what(), std::move(status.error())));
  for (const EventHandle event : events) {
    if (status) status = wait_for(event, std::max(Duration::zero(), deadline - system_clock().now()), ends);
  }
  for (const EventHandle event : events) release(event);
  return status;
}

Status Device::unload(Duration at_most) {
  FRESHET_TRY(drain(at_most));
  return attempt([] { return std::string("unload the kernels"); }, [&] { return engine_->unload(); });
}

void Device::release(const Block& block) {
  if (mark_.is_inherited()) return;
  // A stuck device runs nothing any more, so there is nothing to wait for.
  if (auto status = drain(std::nullopt, kEndAtMost, Ends::late); !status && !engine_->is_stuck()) {
    return warn_of_leak(format("memory of {} bytes", block.bytes), info_.uuid, status.error());
  }
  {
    MutexLock lock(mutex_);
    ranges_.erase(number_of(block.address));
  }
  if (auto status = engine_->destroy_block(block); !status && !engine_->is_stuck()) {
    warn_of_leak(format("memory of {} bytes", block.bytes), info_.uuid, status.error());
  }
}

Status Device::release(const std::byte* registered, Duration at_most, Ends ends) {
  FRESHET_TRY(check_not_inherited(mark_, "a GPU's device"));
  if (auto status = drain(std::nullopt, at_most, ends); !status && !engine_->is_stuck()) return status;
  Range range;
  {
    MutexLock lock(mutex_);
    const auto found = ranges_.find(number_of(registered));
    range = found->second;
    ranges_.erase(found);
  }
  auto status = engine_->unregister_host(registered);
  if (status) return {};
  Error error = noted(format("unregister {} bytes of host memory", range.bytes), std::move(status.error()));
  if (!engine_->is_stuck()) {
    MutexLock lock(mutex_);
    ranges_[number_of(registered)] = range;
  }
  return fail(std::move(error));
}

void Device::release(StreamHandle stream) {
  if (mark_.is_inherited()) return;
  auto status = drain(stream, kEndAtMost, Ends::late);
  // A stream whose work still runs stays listed, so that the ends of the memory that its work has wait for it.
  if (status || engine_->is_stuck()) {
    MutexLock lock(streams_mutex_);
    std::erase(streams_, stream);
    status = engine_->destroy_stream(stream);
  }
  if (!status && !engine_->is_stuck()) warn_of_leak("a stream", info_.uuid, status.error());
}

void Device::release(EventHandle event) {
  if (mark_.is_inherited()) return;
  auto status = engine_->destroy_event(event);
  if (!status && !engine_->is_stuck()) warn_of_leak("an event", info_.uuid, status.error());
}

Memory::~Memory() {
  if (device_ != nullptr) device_->release(block_);
}

void Memory::swap(Memory& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(block_, other.block_);
  std::swap(writable_, other.writable_);
}

Registration::~Registration() {
  if (device_ == nullptr || device_->mark_.is_inherited()) return;
  const Status status = device_->release(address_, kEndAtMost, Device::Ends::late);
  if (status) return;
  if (!device_->engine_->is_stuck()) warn_of_leak("registered host memory", device_->info().uuid, status.error());
  keep_for_ever(std::move(owner_));
}

Status Registration::end(Duration at_most) {
  if (device_ == nullptr) return {};
  const Status status = device_->release(address_, at_most, Device::Ends::early);
  if (!status && !device_->engine_->is_stuck()) return status;
  // A device that is lost runs nothing any more. The process' other devices still know the memory at this address.
  if (!status) keep_for_ever(std::move(owner_));
  device_ = nullptr;
  owner_ = nullptr;
  return {};
}

void Registration::swap(Registration& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(owner_, other.owner_);
}

Stream::~Stream() {
  if (device_ != nullptr) device_->release(handle_);
}

void Stream::swap(Stream& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
}

Event::~Event() {
  if (device_ != nullptr) device_->release(handle_);
}

void Event::swap(Event& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
}

tl::unexpected<Error> fail_unknown_device(const Uuid& uuid, std::span<const DeviceInfo> devices) {
  std::string there;
  for (const DeviceInfo& device : devices) there += (there.empty() ? "" : ", ") + device.uuid.text();
  return fail(Code::not_found, format("open device {}: no such device here; there are: {}", uuid.text(), there));
}

}  // namespace freshet::gpu
