// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/capture_sealer.h"

#include <algorithm>
#include <iterator>

#include "core/base/check.h"
#include "core/base/deadline.h"

namespace freshet {
namespace {
constexpr std::size_t kJobsMax = 2;
}  // namespace

CaptureSealer::CaptureSealer(SlabArena& arena, std::function<bool(SealedCapture)> on_sealed)
    : arena_(arena), on_sealed_(std::move(on_sealed)), thread_([this] { work(); }) {}

CaptureSealer::~CaptureSealer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CaptureSealer::wait_for_turn() {
  MutexLock lock(mutex_);
  while (jobs_.size() >= kJobsMax) changed_.wait(mutex_);
}

void CaptureSealer::push(Job job) {
  {
    MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

Status CaptureSealer::wait_idle(Duration at_most) {
  const Time deadline = deadline_in(at_most);
  MutexLock lock(mutex_);
  while (!jobs_.empty()) {
    if (!changed_.wait_until(mutex_, deadline) && !jobs_.empty()) {
      return fail(Code::timed_out, "wait for captures to be sealed: the time is over");
    }
  }
  return {};
}

std::vector<std::uint64_t> CaptureSealer::drop_unbegun() {
  std::vector<std::uint64_t> dropped;
  {
    MutexLock lock(mutex_);
    if (jobs_.empty()) return dropped;
    // The first may not have been begun; who works on it takes it from where it is.
    for (auto job = std::next(jobs_.begin()); job != jobs_.end(); ++job) dropped.push_back(job->ticket);
    jobs_.resize(1);
  }
  changed_.notify_all();
  return dropped;
}

void CaptureSealer::wait_idle() {
  MutexLock lock(mutex_);
  while (!jobs_.empty()) changed_.wait(mutex_);
}

void CaptureSealer::work() {
  for (;;) {
    const Job* job = nullptr;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && jobs_.empty()) changed_.wait(mutex_);
      if (jobs_.empty()) return;
      job = &jobs_.front();  // A deque's elements stay where they are while others are pushed.
    }
    seal(*job);
    {
      MutexLock lock(mutex_);
      jobs_.pop_front();
    }
    changed_.notify_all();
  }
}

void CaptureSealer::seal(const Job& job) {
  if (job.fresh) {
    FRESHET_CHECK(job.tensors.size() == job.tensors_total);
    segments_.assign(job.tensors_total, 0);
    digests_.assign(job.tensors_total, Digest{});
  }
  SealedCapture sealed{.ticket = job.ticket};
  std::vector<SegmentIndex> fresh_segments;
  for (const Tensor& tensor : job.tensors) {
    segments_[tensor.index] = tensor.segment;
    digests_[tensor.index] = tensor.digest;
    fresh_segments.push_back(tensor.segment);
    if (tensor.changed) sealed.changed.push_back(tensor.index);
  }
  arena_.seal(fresh_segments);
  merge_refused(job, sealed.changed);
  sealed.segments = segments_;
  sealed.places = arena_.places(segments_);
  sealed.digests = digests_;
  for (const std::uint32_t tensor : sealed.changed) sealed.changed_bytes += sealed.places[tensor].bytes;
  for (const auto& slab : arena_.slabs()) sealed.slab_bytes.push_back(slab.bytes);
  if (on_sealed_(std::move(sealed))) {
    refused_.clear();
  } else {
    refused_.insert(refused_.end(), job.tensors.begin(), job.tensors.end());
  }
}

/// Tensors of refused captures are news to the receiver still; those that this capture replaced are nobody's.
void CaptureSealer::merge_refused(const Job& job, std::vector<std::uint32_t>& changed) {
  if (refused_.empty()) return;
  std::vector<SegmentIndex> replaced;
  std::vector<Tensor> kept;
  for (const Tensor& tensor : refused_) {
    if (job.fresh || segments_[tensor.index] != tensor.segment) {
      replaced.push_back(tensor.segment);
    } else {
      kept.push_back(tensor);
      if (tensor.changed) changed.push_back(tensor.index);
    }
  }
  refused_ = std::move(kept);
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  arena_.release(replaced);
}

}  // namespace freshet
