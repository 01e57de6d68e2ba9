// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/host_world.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/format.h"
#include "core/gpu/kernels/copy_kernels.h"

namespace freshet::gpu::host_detail {
namespace {

constexpr std::uint64_t kWholeCopyBytes = 64;  // A smaller copy is one turn.
constexpr const char* kWildAddress = "an illegal memory access was encountered";

std::uintptr_t value_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

tl::unexpected<Error> refuse_value(const char* what) { return refuse(format("HOST_ERROR_INVALID_VALUE: {}", what)); }

}  // namespace

World::World(const HostOptions& options)
    : options_(options),
      random_(options.seed),
      used_(options.devices),
      stuck_(options.devices),
      struck_(options.devices) {
  for (std::size_t device = 0; device < options.devices; ++device) {
    for (int i = 0; i < 2; ++i)
      streams_.push_back(std::make_unique<HostStream>(HostStream{.device = device, .work = {}}));
  }
  thread_ = std::thread([this] { run(); });
}

World::~World() {
  if (mark_.is_inherited()) {
    thread_.detach();  // It runs in the parent alone.
    return;
  }
  {
    MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Counts World::counts() {
  MutexLock lock(mutex_);
  return counts_;
}

void World::hold(bool is_held) {
  {
    MutexLock lock(mutex_);
    is_held_ = is_held;
    if (is_held) granted_ = 0;
    while (is_held && is_busy_) changed_.wait(mutex_);
  }
  changed_.notify_all();
}

void World::strike(std::size_t device) {
  MutexLock lock(mutex_);
  struck_[device] = true;
}

std::string World::why_stuck(std::size_t device) {
  MutexLock lock(mutex_);
  return stuck_[device];
}

Status World::take_room(std::size_t device, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const std::uint64_t free = options_.bytes - used_[device];
  if (bytes > free) {
    return fail(Code::out_of_space,
                format("HOST_ERROR_OUT_OF_MEMORY: {} bytes wanted, {} of {} are free", bytes, free, options_.bytes));
  }
  used_[device] += bytes;
  return {};
}

void World::give_room(std::size_t device, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  used_[device] -= bytes;
}

std::uint64_t World::used(std::size_t device) {
  MutexLock lock(mutex_);
  return used_[device];
}

const std::pair<const std::uintptr_t, Known>* World::known_at(const void* address) {
  const auto after = known_.upper_bound(value_of(address));
  if (after == known_.begin()) return nullptr;
  const auto& found = *std::prev(after);
  return value_of(address) - found.first < found.second.bytes ? &found : nullptr;
}

Status World::add(const void* address, const Known& known) {
  MutexLock lock(mutex_);
  const auto after = known_.lower_bound(value_of(address));
  if (known_at(address) != nullptr || (after != known_.end() && after->first - value_of(address) < known.bytes)) {
    return fail(Code::already_exists, "HOST_ERROR_HOST_MEMORY_ALREADY_REGISTERED: a part of it is known already");
  }
  Known& added = known_[value_of(address)];
  added = known;
  added.number = ++last_number_;
  return {};
}

Result<Known> World::remove(const void* address, bool is_block) {
  MutexLock lock(mutex_);
  while (is_busy_) changed_.wait(mutex_);
  const auto found = known_.find(value_of(address));
  if (found == known_.end() || found->second.is_block != is_block) {
    return fail(Code::not_found, "HOST_ERROR_NOT_REGISTERED: no range begins there");
  }
  const Known known = found->second;
  known_.erase(found);
  return known;
}

std::optional<Known> World::find(const void* address) {
  MutexLock lock(mutex_);
  const auto* const found = known_at(address);
  return found == nullptr ? std::nullopt : std::optional<Known>(found->second);
}

StreamHandle World::add_stream(std::size_t device) {
  MutexLock lock(mutex_);
  streams_.push_back(std::make_unique<HostStream>(HostStream{.device = device, .work = {}}));
  return {streams_.back().get()};
}

Status World::remove_stream(StreamHandle stream) {
  MutexLock lock(mutex_);
  FRESHET_ASSIGN(HostStream* const found, own_stream_at(stream));
  found->is_closed = true;
  end_closed_streams();
  return {};
}

void World::end_closed_streams() {
  std::erase_if(streams_, [](const auto& stream) { return stream->is_closed && stream->work.empty(); });
}

EventHandle World::add_event(std::size_t device) {
  MutexLock lock(mutex_);
  auto event = std::make_unique<HostEvent>(HostEvent{.device = device, .latest = nullptr});
  void* const native = event.get();
  events_[native] = std::move(event);
  return {native};
}

Status World::remove_event(EventHandle event) {
  MutexLock lock(mutex_);
  if (events_.erase(event.native) == 0) return refuse_value("no such event");
  return {};
}

Result<HostStream*> World::own_stream_at(StreamHandle handle) {
  for (const auto& stream : streams_) {
    if (stream.get() == handle.native && !stream->is_closed) return stream.get();
  }
  return refuse_value("no such stream");
}

Result<HostStream*> World::stream_at(std::size_t device, StreamHandle handle) {
  const std::uintptr_t number = value_of(handle.native);
  // Null and 1 are the default stream of all threads, 2 that of one.
  if (number <= 2) return streams_[2 * device + (number == 2 ? 1 : 0)].get();
  FRESHET_ASSIGN(HostStream* const stream, own_stream_at(handle));
  if (stream->device != device) return refuse_value("a stream of another device");
  return stream;
}

Result<HostEvent*> World::event_at(EventHandle handle) {
  const auto found = events_.find(handle.native);
  if (found == events_.end()) return refuse_value("no such event");
  return found->second.get();
}

Result<std::uint64_t> World::number_of(const void* address, std::uint64_t bytes, bool written) {
  const auto after = known_.upper_bound(value_of(address));
  if (after != known_.end() && after->first - value_of(address) < bytes)
    return refuse_value("a range runs into another");
  const auto* const found = known_at(address);
  if (found == nullptr) return std::uint64_t{0};
  const Known& known = found->second;
  if (bytes > known.bytes - (value_of(address) - found->first)) return refuse_value("a range past its memory's end");
  if (written && !known.writable) return refuse_value("the memory is read-only");
  return known.number;
}

bool World::is_alive(std::uint64_t number, const void* address) {
  if (number == 0) return true;
  const auto* const found = known_at(address);
  return found != nullptr && found->second.number == number;
}

bool World::is_block(const void* address) {
  const auto* const found = known_at(address);
  return found != nullptr && found->second.is_block;
}

/// Whether the kernel's addresses are all the device's, on a device whose kernels reach no other.
bool World::reaches_all(const KernelWork& kernel) {
  if (options_.kernels_reach_host || kernel.launch.kernel != Kernel::kCopy) return true;
  CopyArguments arguments;
  std::memcpy(&arguments, kernel.arguments.data(), sizeof(arguments));
  if (!is_block(arguments.tensors)) return false;
  const std::span<const CopyTensor> rows(arguments.tensors, arguments.tensor_count);
  for (const CopyTensor& row : rows) {
    if (!is_block(row.from) || !is_block(row.to)) return false;
  }
  return true;
}

std::uint64_t World::draw(std::uint64_t below) { return random_() % below; }

void World::capture(StreamHandle stream, bool is_captured) {
  MutexLock lock(mutex_);
  if (const auto found = own_stream_at(stream)) (*found)->is_captured = is_captured;
}

Result<bool> World::is_capturing(std::size_t device, StreamHandle stream) {
  MutexLock lock(mutex_);
  FRESHET_ASSIGN(HostStream* const found, stream_at(device, stream));
  return found->is_captured;
}

Status World::record(std::size_t device, EventHandle event, StreamHandle stream) {
  MutexLock lock(mutex_);
  FRESHET_ASSIGN(HostStream* const onto, stream_at(device, stream));
  FRESHET_ASSIGN(HostEvent* const what, event_at(event));
  if (what->device != device) return refuse_value("an event of another device");
  what->latest = std::make_shared<Marker>();
  onto->work.push_back({.record = what->latest});
  return {};
}

Status World::make_wait(std::size_t device, StreamHandle stream, EventHandle event) {
  MutexLock lock(mutex_);
  FRESHET_ASSIGN(HostStream* const onto, stream_at(device, stream));
  FRESHET_ASSIGN(HostEvent* const what, event_at(event));
  if (what->latest != nullptr) onto->work.push_back({.wait = what->latest});
  return {};
}

Status World::copy(std::size_t device, StreamHandle stream, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  FRESHET_ASSIGN(HostStream* const onto, stream_at(device, stream));
  FRESHET_ASSIGN(const std::uint64_t to_number, number_of(to, bytes, true));
  FRESHET_ASSIGN(const std::uint64_t from_number, number_of(from, bytes, false));
  onto->work.push_back({.copy = CopyWork{to, from, bytes, to_number, from_number}});
  return {};
}

Status World::launch(std::size_t device, StreamHandle stream, KernelWork kernel) {
  MutexLock lock(mutex_);
  FRESHET_ASSIGN(HostStream* const onto, stream_at(device, stream));
  onto->work.push_back({.kernel = std::move(kernel)});
  return {};
}

Result<bool> World::is_done(EventHandle event) {
  MutexLock lock(mutex_);
  FRESHET_ASSIGN(HostEvent* const what, event_at(event));
  const std::shared_ptr<Marker> marker = what->latest;
  if (marker == nullptr || marker->done) return true;
  if (is_held_) return false;
  std::uint64_t pending = 0;
  for (const auto& stream : streams_) pending += stream->work.size();
  // Often none, and more when much waits, so that no test waits long for the last.
  granted_ += draw(2 + pending / 4);
  changed_.notify_all();
  while (granted_ > 0) changed_.wait(mutex_);
  return marker->done;
}

void World::run() {
  MutexLock lock(mutex_);
  while (!ends_) {
    if (granted_ == 0) {
      changed_.wait(mutex_);
      continue;
    }
    if (HostStream* const stream = choose(); stream != nullptr) {
      --granted_;
      ++counts_.turns;
      take_turn(*stream);
      end_closed_streams();
    } else {
      granted_ = 0;
    }
    if (granted_ == 0) changed_.notify_all();
  }
}

bool World::may_go_on(const HostStream& stream) {
  if (stream.work.empty() || !stuck_[stream.device].empty()) return false;
  const Work& next = stream.work.front();
  return next.wait == nullptr || next.wait->done;
}

HostStream* World::choose() {
  std::vector<HostStream*> able;
  for (const auto& stream : streams_) {
    if (may_go_on(*stream)) able.push_back(stream.get());
  }
  return able.empty() ? nullptr : able[draw(able.size())];
}

void World::take_turn(HostStream& stream) {
  if (struck_[stream.device]) {
    struck_[stream.device] = false;
    stuck_[stream.device] = format("HOST_ERROR_ILLEGAL_ADDRESS: {}", kWildAddress);
    return;
  }
  Work& next = stream.work.front();
  if (next.copy) return take_turn_of_copy(stream);
  if (next.kernel) return take_turn_of_kernel(stream);
  if (next.record != nullptr) next.record->done = true;
  stream.work.pop_front();
}

void World::take_turn_of_copy(HostStream& stream) {
  CopyWork& copy = *stream.work.front().copy;
  if (!is_alive(copy.to_number, copy.to) || !is_alive(copy.from_number, copy.from)) {
    stuck_[stream.device] = format("HOST_ERROR_ILLEGAL_ADDRESS: {}: a copy's memory is gone", kWildAddress);
    return;
  }
  const bool is_split = copy.bytes > kWholeCopyBytes && draw(3) == 0;
  const std::uint64_t now = is_split ? copy.bytes / 2 : copy.bytes;
  if (is_block(copy.from) && !is_block(copy.to)) counts_.bytes_to_host += now;
  if (!is_block(copy.from) && is_block(copy.to)) counts_.bytes_to_device += now;
  is_busy_ = true;
  mutex_.unlock();
  std::memcpy(copy.to, copy.from, now);
  mutex_.lock();
  is_busy_ = false;
  changed_.notify_all();
  copy.to += now;
  copy.from += now;
  copy.bytes -= now;
  if (copy.bytes == 0) stream.work.pop_front();
}

void World::take_turn_of_kernel(HostStream& stream) {
  const KernelWork& kernel = *stream.work.front().kernel;
  if (!reaches_all(kernel)) {
    stuck_[stream.device] = format("HOST_ERROR_ILLEGAL_ADDRESS: {}: a kernel has a host address", kWildAddress);
    return;
  }
  const std::uint64_t seed = random_();
  is_busy_ = true;
  mutex_.unlock();
  const Status status = run_on_host(kernel.launch, kernel.arguments, seed);
  mutex_.lock();
  is_busy_ = false;
  changed_.notify_all();
  if (!status) stuck_[stream.device] = format("HOST_ERROR_LAUNCH_FAILED: {}", status.error().message());
  stream.work.pop_front();
}

}  // namespace freshet::gpu::host_detail
