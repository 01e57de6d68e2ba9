// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/device_copier.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <system_error>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/log.h"

namespace freshet {
namespace {

/// For a host that waits in a stream's place.
constexpr Duration kDrainAtMost = std::chrono::seconds(30);
/// So often the thread looks whether the copier ends.
constexpr Duration kWaitSlice = std::chrono::milliseconds(200);

gpu::StreamHandle stream_of(const TensorCopy& copy) { return gpu::StreamHandle::of(copy.tensor->place.stream); }

}  // namespace

DeviceCopier::DeviceCopier(std::shared_ptr<gpu::Platform> platform, Duration end_at_most)
    : end_at_most_(end_at_most), platform_(std::move(platform)) {}

DeviceCopier::~DeviceCopier() {
  end();
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mutex_);
  if (ran_on_) leak_lanes();
}

/// Each part of a lane would wait half a minute more for a device that has hung already.
void DeviceCopier::leak_lanes() {
  log_line(LogLevel::warning,
           format("publish: copies from a GPU still run after {} ms; their streams, and the memory that they write, "
                  "stay with the driver until the process ends",
                  std::chrono::duration_cast<std::chrono::milliseconds>(end_at_most_).count()));
  static Mutex& mutex = *new Mutex;
  static auto& left = *new std::vector<decltype(lanes_)>;
  MutexLock lock(mutex);
  left.push_back(std::move(lanes_));
}

void DeviceCopier::end() {
  {
    MutexLock lock(mutex_);
    if (!ends_) ends_ = deadline_in(end_at_most_);
  }
  changed_.notify_all();
}

Status DeviceCopier::start() {
  {
    MutexLock lock(mutex_);
    if (ends_) return fail(Code::failed_precondition, "copy from a GPU: the publisher is being closed");
  }
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread([this] { complete(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start the thread that waits for GPUs' copies: {}", error.what()));
  }
  return {};
}

Status DeviceCopier::issue(std::vector<TensorCopy> copies, Done done) {
  Issued issued{.done = std::move(done)};
  for (const TensorCopy& copy : copies) issued.has_bytes.push_back(!copy.from.empty());
  Status status = start();
  if (status) status = queue(copies, issued.parts);
  if (!status) issued.failed = status.error();
  if (issued.parts.empty()) {
    issued.done(status ? Copied(std::vector<Digest>{}) : Copied(fail(Error(status.error()))));
    return status;
  }
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(issued));
  }
  changed_.notify_all();
  return status;
}

Result<std::shared_ptr<gpu::Device>> DeviceCopier::device_of(std::int32_t ordinal) {
  FRESHET_ASSIGN(const DeviceLane* const lane, lane_of(ordinal));
  return lane->shared_device();
}

Result<DeviceLane*> DeviceCopier::lane_of(std::int32_t ordinal) {
  const auto what = [&] { return format("publish from GPU {}", ordinal); };
  if (const auto found = lanes_.find(ordinal); found != lanes_.end()) return found->second.get();
  if (platform_ == nullptr) {
    auto opened = gpu::open_driver_platform();
    if (!opened) return fail(std::move(opened.error()).with_context(what()));
    platform_ = std::move(*opened);
  }
  FRESHET_ASSIGN(const std::vector<gpu::DeviceInfo> devices, platform_->devices());
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices.size()) {
    return refuse(format("{}: this process sees {} of them, from 0 on", what(), devices.size()));
  }
  FRESHET_ASSIGN(auto device, platform_->open(devices[static_cast<std::size_t>(ordinal)].uuid));
  auto lane = DeviceLane::open(ordinal, std::move(device));
  if (!lane) return fail(std::move(lane.error()).with_context(what()));
  MutexLock lock(mutex_);
  opened_.push_back(lane->get());
  return (lanes_[ordinal] = std::move(*lane)).get();
}

Status DeviceCopier::queue(std::span<const TensorCopy> copies, std::vector<Part>& parts) {
  std::map<std::int32_t, std::vector<TensorCopy>> by_device;
  for (const TensorCopy& copy : copies) by_device[copy.tensor->place.device].push_back(copy);
  // All that can be refused is refused before the first copy is queued.
  for (const auto& [ordinal, of_device] : by_device) {
    FRESHET_ASSIGN(DeviceLane* const lane, lane_of(ordinal));
    FRESHET_TRY(lane->register_slabs(slabs_));
    for (const TensorCopy& copy : of_device) FRESHET_TRY(lane->check(copy));
  }
  for (const auto& [ordinal, of_device] : by_device) {
    FRESHET_TRY(queue_on(*lanes_.at(ordinal), of_device, parts));
  }
  return {};
}

/// A place may have been another device's copy's before.
Status DeviceCopier::follow_others(DeviceLane& lane) {
  for (const auto& [ordinal, other] : lanes_) {
    if (other.get() == &lane) continue;
    FRESHET_ASSIGN(const gpu::Event so_far, other->device().create_event());
    FRESHET_TRY(other->device().record(so_far, other->stream()));
    FRESHET_TRY(lane.device().make_wait(lane.stream(), so_far.handle()));
  }
  return {};
}

Status DeviceCopier::queue_on(DeviceLane& lane, std::span<const TensorCopy> copies, std::vector<Part>& parts) {
  Part part{.lane = &lane};
  FRESHET_ASSIGN(part.done, lane.device().create_event());
  std::vector<gpu::StreamHandle> theirs;
  std::set<std::uintptr_t> seen;
  for (const TensorCopy& copy : copies) {
    if (seen.insert(copy.tensor->place.stream).second) theirs.push_back(stream_of(copy));
  }
  for (const gpu::StreamHandle stream : theirs) FRESHET_TRY(lane.follow(stream));
  FRESHET_TRY(follow_others(lane));

  std::vector<TensorCopy> away(copies.begin(), copies.end());
  std::vector<Bytes> on_device;
  for (TensorCopy& copy : away) {
    if (copy.via.empty()) continue;
    copy.to = copy.via;
    on_device.push_back(copy.via);
  }
  Status status = lane.queue(lane.stream(), away, part.used);
  // Of copies that failed some are queued: the tensors' next writers wait for these, too.
  Status marked = lane.device().record(part.done, lane.stream());
  for (const gpu::StreamHandle stream : theirs) {
    if (marked) marked = lane.device().make_wait(stream, part.done.handle());
  }
  if (status && !on_device.empty()) {
    status = lane.digest(on_device, part.used);
    if (marked) marked = lane.device().record(part.done, lane.stream());
  }
  if (!marked) {
    // No stream of theirs can be made to wait, so the host waits in their place. A lost device copies nothing any more.
    static_cast<void>(lane.device().drain(kDrainAtMost));
    if (status) status = std::move(marked);
  }
  parts.push_back(std::move(part));
  return status;
}

void DeviceCopier::complete() {
  for (;;) {
    Issued issued;
    {
      MutexLock lock(mutex_);
      while (!ends_ && queue_.empty()) changed_.wait(mutex_);
      if (queue_.empty()) return;
      issued = std::move(queue_.front());
      queue_.pop_front();
    }
    Status status;
    for (Part& part : issued.parts) {
      Status done = wait_for(part);
      if (status && !done) status = std::move(done);
    }
    if (issued.failed) status = fail(*std::move(issued.failed));
    issued.done(status ? Copied(digests_of(issued)) : Copied(fail(std::move(status.error()))));
    for (Part& part : issued.parts) part.lane->give_back(std::move(part.used));
  }
}

/// All of them, or none.
std::vector<Digest> DeviceCopier::digests_of(const Issued& issued) {
  if (issued.parts.size() != 1 || !issued.parts.front().used.digests.is_whole()) return {};
  const std::vector<Digest> formed = issued.parts.front().used.digests.digests();
  if (formed.size() != static_cast<std::size_t>(std::ranges::count(issued.has_bytes, true))) return {};
  std::vector<Digest> digests;
  auto next = formed.begin();
  for (const bool has_bytes : issued.has_bytes) digests.push_back(has_bytes ? *next++ : digest_of({}));
  return digests;
}

Result<DeviceLane*> DeviceCopier::lane_that_has(const std::byte* address) {
  std::vector<DeviceLane*> lanes;
  {
    MutexLock lock(mutex_);
    lanes = opened_;
  }
  for (DeviceLane* const lane : lanes) {
    FRESHET_ASSIGN(const gpu::PointerInfo info, lane->device().describe(address));
    if (info.device == lane->device().info().uuid) return lane;
  }
  return fail(Code::not_found, "no GPU that this publisher has opened has the bytes");
}

Status DeviceCopier::bring(std::span<const TensorCopy> copies) {
  if (copies.empty()) return {};
  FRESHET_ASSIGN(DeviceLane* const lane, lane_that_has(copies.front().from.data()));
  Part part{.lane = lane};
  FRESHET_ASSIGN(part.done, lane->device().create_event());
  Status status = lane->queue(lane->stream_behind(), copies, part.used);
  Status done = lane->device().record(part.done, lane->stream_behind());
  done = done ? wait_for(part) : lane->device().drain(kDrainAtMost);
  lane->give_back(std::move(part.used));
  return status ? std::move(done) : std::move(status);
}

/// As long as the copier lives, there is nothing else to do than to wait: the copies' places cannot be given away.
Status DeviceCopier::wait_for(Part& part) {
  for (;;) {
    Status status = part.lane->device().wait(part.done, kWaitSlice);
    if (status || status.error().code() != Code::timed_out) return status;
    MutexLock lock(mutex_);
    if (!ends_ || system_clock().now() < *ends_) continue;
    ran_on_ = true;
    return status;
  }
}

}  // namespace freshet
