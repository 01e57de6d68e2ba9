// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/device_copier.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <system_error>
#include <tuple>
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
/// Of deltas that are brought in one go; a longer one goes alone.
constexpr std::uint64_t kDeltaBytesAtOnce = std::uint64_t{32} << 20;

gpu::StreamHandle stream_of(const TensorCopy& copy) { return gpu::StreamHandle::of(copy.tensor->place.stream); }

}  // namespace

DeviceCopier::DeviceCopier(std::shared_ptr<gpu::Platform> platform, Duration end_at_most, BringCosts::Deltas deltas)
    : end_at_most_(end_at_most), costs_(deltas), platform_(std::move(platform)) {}

DeviceCopier::~DeviceCopier() {
  end();
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mutex_);
  if (!running_on_.empty()) leak_lanes();
}

/// Each part of a lane would wait half a minute more for a device that has hung already.
void DeviceCopier::leak_lanes() {
  log_line(LogLevel::warning,
           format("copies from a GPU still run after {} ms; their streams, and the memory that they write, "
                  "stay with the driver until the process ends",
                  std::chrono::duration_cast<std::chrono::milliseconds>(end_at_most_).count()));
  static Mutex& mutex = *new Mutex;
  static auto& left = *new std::vector<std::tuple<decltype(lanes_), decltype(slabs_), decltype(running_on_)>>;
  MutexLock lock(mutex);
  left.emplace_back(std::move(lanes_), std::move(slabs_), std::move(running_on_));
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
    if (ends_) return fail(Code::failed_precondition, "copy from a GPU: its owner is being closed");
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
  for (const TensorCopy& copy : copies) issued.by.push_back(copy.from.empty() ? By::nobody : By::host);
  Status status = start();
  if (status) status = queue(copies, issued);
  if (!status) issued.failed = status.error();
  if (issued.parts.empty()) {
    issued.done(status ? Copied(FormedWithCopies()) : Copied(fail(Error(status.error()))));
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
  const auto what = [&] { return format("copy from GPU {}", ordinal); };
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

Status DeviceCopier::queue(std::span<const TensorCopy> copies, Issued& issued) {
  std::map<std::int32_t, std::vector<std::size_t>> by_device;
  for (std::size_t i = 0; i < copies.size(); ++i) by_device[copies[i].tensor->place.device].push_back(i);
  // All that can be refused is refused before the first copy is queued.
  for (const auto& [ordinal, which] : by_device) {
    FRESHET_ASSIGN(DeviceLane* const lane, lane_of(ordinal));
    FRESHET_TRY(lane->register_slabs(slabs_));
    for (const std::size_t i : which) FRESHET_TRY(lane->check(copies[i]));
  }
  for (const auto& [ordinal, which] : by_device) {
    FRESHET_TRY(queue_on(*lanes_.at(ordinal), copies, which, issued));
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

Status DeviceCopier::queue_on(DeviceLane& lane, std::span<const TensorCopy> copies, std::span<const std::size_t> which,
                              Issued& issued) {
  Part part{.lane = &lane};
  FRESHET_ASSIGN(part.done, lane.device().create_event());
  std::vector<TensorCopy> mine;
  std::vector<gpu::StreamHandle> theirs;
  std::set<std::uintptr_t> seen;
  for (const std::size_t i : which) {
    mine.push_back(copies[i]);
    if (seen.insert(copies[i].tensor->place.stream).second) theirs.push_back(stream_of(copies[i]));
  }
  for (const gpu::StreamHandle stream : theirs) FRESHET_TRY(lane.follow(stream));
  FRESHET_TRY(follow_others(lane));

  auto packed = lane.pack(mine, part.used);
  Status status = packed ? Status() : fail(std::move(packed.error()));
  std::vector<TensorCopy> away;
  std::vector<Bytes> on_device;
  for (std::size_t i = 0; status && i < mine.size(); ++i) {
    if ((*packed)[i]) {
      issued.by[which[i]] = By::packer;
      continue;
    }
    away.push_back(mine[i]);
    if (mine[i].via.empty()) continue;
    away.back().to = mine[i].via;
    on_device.push_back(mine[i].via);
    issued.by[which[i]] = By::digester;
  }
  const bool has_packed = away.size() < mine.size();
  if (status) status = lane.queue(lane.stream(), away, part.used);
  // Of copies that failed some are queued: the tensors' next writers wait for these, too.
  Status marked = lane.device().record(part.done, lane.stream());
  for (const gpu::StreamHandle stream : theirs) {
    if (marked) marked = lane.device().make_wait(stream, part.done.handle());
  }
  if (status && has_packed) status = lane.finish_packed(part.used);
  if (status && !on_device.empty()) status = lane.digest(on_device, part.used);
  if (marked) marked = lane.device().record(part.done, lane.stream());
  if (!marked) {
    // No stream of theirs can be made to wait, so the host waits in their place. A lost device copies nothing any more.
    static_cast<void>(lane.device().drain(kDrainAtMost));
    if (status) status = std::move(marked);
  }
  issued.parts.push_back(std::move(part));
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
    issued.done(status ? Copied(formed_by(issued)) : Copied(fail(std::move(status.error()))));
    for (Part& part : issued.parts) give_back(std::move(part));
  }
}

/// All digests, or none.
FormedWithCopies DeviceCopier::formed_by(const Issued& issued) {
  if (issued.parts.size() != 1) return {};
  const DeviceLane::Used& used = issued.parts.front().used;
  std::vector<Digest> of_digester;
  std::vector<Digest> of_packer;
  if (used.digests.is_whole()) of_digester = used.digests.digests();
  if (used.packed != nullptr && used.packed->is_whole()) of_packer = used.packed->digests();
  FormedWithCopies formed;
  std::size_t digested = 0;
  std::size_t packed = 0;
  for (const By by : issued.by) {
    formed.deltas.emplace_back();
    if (by == By::nobody) {
      formed.digests.push_back(digest_of({}));
    } else if (by == By::packer && packed < of_packer.size()) {
      if (used.packed->has_delta(packed)) {
        formed.deltas.back() = std::make_shared<const gpu::PackedDelta>(used.packed, packed);
      }
      formed.digests.push_back(of_packer[packed++]);
    } else if (by == By::digester && digested < of_digester.size()) {
      formed.digests.push_back(of_digester[digested++]);
    } else {
      return {};
    }
  }
  return formed;
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
  std::vector<TensorCopy> whole;
  std::vector<TensorCopy> by_delta;
  for (const TensorCopy& copy : copies) {
    const bool has_cheap_delta =
        copy.delta != nullptr && costs_.is_delta_cheaper(copy.from.size(), copy.delta->blocks().size());
    (has_cheap_delta ? by_delta : whole).push_back(copy);
  }
  FRESHET_TRY(bring_deltas(*lane, by_delta, whole));
  return bring_whole(*lane, whole);
}

/// Waits for what was queued on stream_behind(), also where not all of it was.
Status DeviceCopier::finish_behind(Part& part, Status queued) {
  DeviceLane& lane = *part.lane;
  Status done = lane.device().record(part.done, lane.stream_behind());
  done = done ? wait_for(part) : lane.device().drain(kDrainAtMost);
  return queued ? std::move(done) : std::move(queued);
}

Status DeviceCopier::bring_whole(DeviceLane& lane, std::span<const TensorCopy> copies) {
  if (copies.empty()) return {};
  const Time begin = system_clock().now();
  Part part{.lane = &lane};
  FRESHET_ASSIGN(part.done, lane.device().create_event());
  Status queued = lane.queue(lane.stream_behind(), copies, part.used);
  Status status = finish_behind(part, std::move(queued));
  give_back(std::move(part));
  std::uint64_t bytes = 0;
  for (const TensorCopy& copy : copies) bytes += copy.from.size();
  if (status) costs_.note_whole(bytes, system_clock().now() - begin);
  return status;
}

/// `whole` gets the copies that their deltas did not make.
Status DeviceCopier::bring_deltas(DeviceLane& lane, std::span<const TensorCopy> copies,
                                  std::vector<TensorCopy>& whole) {
  while (!copies.empty()) {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    do {
      bytes += copies[count++].delta->blocks().size();
    } while (count < copies.size() && bytes + copies[count].delta->blocks().size() <= kDeltaBytesAtOnce);
    const Time begin = system_clock().now();
    FRESHET_TRY(bring_some_deltas(lane, copies.first(count), whole));
    costs_.note_delta(bytes, system_clock().now() - begin);
    copies = copies.subspan(count);
  }
  return {};
}

Status DeviceCopier::bring_some_deltas(DeviceLane& lane, std::span<const TensorCopy> copies,
                                       std::vector<TensorCopy>& whole) {
  Part part{.lane = &lane};
  FRESHET_ASSIGN(part.done, lane.device().create_event());
  const Result<bool> queued = lane.bring_deltas(copies, part.used);
  Status status = finish_behind(part, queued ? Status() : fail(Error(queued.error())));
  if (status && !*queued) whole.insert(whole.end(), copies.begin(), copies.end());
  const std::byte* blocks = status && *queued ? part.used.rows->begin() : nullptr;
  for (std::size_t i = 0; blocks != nullptr && i < copies.size(); ++i) {
    const std::uint64_t bytes = copies[i].delta->blocks().size();
    if (const Status applied = copies[i].delta->apply({blocks, bytes}, copies[i].to); !applied) {
      // All bytes mend what a fault of the memory did.
      whole.push_back(copies[i]);
      if (!std::exchange(said_bad_delta_, true)) {
        log_line(LogLevel::warning, format("publish: {}; all bytes of the tensor are copied from the GPU instead; this "
                                           "is said once",
                                           applied.error().message()));
      }
    }
    blocks += bytes;
  }
  give_back(std::move(part));
  return status;
}

/// As long as the copier lives, there is nothing else to do than to wait: the copies' places cannot be given away.
Status DeviceCopier::wait_for(Part& part) {
  for (;;) {
    Status status = part.lane->device().wait(part.done, kWaitSlice);
    if (status || status.error().code() != Code::timed_out) return status;
    MutexLock lock(mutex_);
    if (!ends_ || system_clock().now() < *ends_) continue;
    part.runs_on = true;
    return status;
  }
}

void DeviceCopier::give_back(Part part) {
  if (!part.runs_on) return part.lane->give_back(std::move(part.used));
  MutexLock lock(mutex_);
  running_on_.push_back(std::move(part));
}

}  // namespace freshet
