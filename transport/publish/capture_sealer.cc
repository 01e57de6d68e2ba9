// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/capture_sealer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/check.h"
#include "core/base/deadline.h"

namespace freshet {
namespace {
constexpr std::size_t kJobsMax = 2;

void add_segments_of(const CapturedTensor& tensor, std::vector<SegmentIndex>& to) {
  to.push_back(tensor.segment);
  if (tensor.on_device) to.push_back(*tensor.on_device);
}

}  // namespace

void IssuedCopies::complete(TensorCopier::Copied copied) {
  FRESHET_CHECK(!is_complete() && (!copied || copied->digests.empty() || copied->digests.size() == tensors.size()));
  copied_ = std::move(copied);
  {
    MutexLock lock(mutex_);
    complete_.store(true, std::memory_order_release);
  }
  completed_.notify_all();
}

void IssuedCopies::wait() const {
  MutexLock lock(mutex_);
  while (!is_complete()) completed_.wait(mutex_);
}

bool IssuedCopies::wait_until(Time deadline) const {
  MutexLock lock(mutex_);
  while (!is_complete() && completed_.wait_until(mutex_, deadline)) {
  }
  return is_complete();
}

CaptureSealer::CaptureSealer(SlabArena& arena, SlabArena& on_device, SegmentPairs& pairs, TensorCopier* bringer,
                             OnSealed on_sealed, OnFailed on_failed)
    : arena_(arena),
      on_device_(on_device),
      pairs_(pairs),
      bringer_(bringer),
      on_sealed_(std::move(on_sealed)),
      on_failed_(std::move(on_failed)),
      thread_([this] { work(); }) {}

void CaptureSealer::finish() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CaptureSealer::begin_architecture(std::size_t tensors) {
  MutexLock lock(mutex_);
  FRESHET_CHECK(jobs_.empty());
  last_.assign(tensors, Last{});
  lost_.clear();
  first_ = true;
}

void CaptureSealer::resume_from(const std::vector<Digest>& digests) {
  MutexLock lock(mutex_);
  FRESHET_CHECK(first_ && jobs_.empty() && digests.size() == last_.size());
  for (std::size_t tensor = 0; tensor < digests.size(); ++tensor) last_[tensor].digest = digests[tensor];
}

bool CaptureSealer::wait_for_turn(Duration at_most) {
  const Time deadline = deadline_in(at_most);
  MutexLock lock(mutex_);
  while (jobs_.size() >= kJobsMax && changed_.wait_until(mutex_, deadline)) {
  }
  return jobs_.size() < kJobsMax;
}

void CaptureSealer::push(Job job) {
  // A capture whose digests are missing is the worker's, which may take the time.
  const bool is_ready = std::ranges::all_of(job.copies, [](const auto& copies) {
    return copies->is_complete() && !copies->lack_bytes &&
           (!copies->copied() || copies->copied()->digests.size() == copies->tensors.size());
  });
  if (is_ready) gather(job);
  if (is_ready && job.is_given_up) return release(job);
  {
    MutexLock lock(mutex_);
    if (is_ready && (jobs_.empty() || jobs_.back().is_settled)) settle(job);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

std::vector<std::uint32_t> CaptureSealer::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

Status CaptureSealer::wait_idle(Duration at_most) {
  const Time deadline = deadline_in(at_most);
  MutexLock lock(mutex_);
  while (!jobs_.empty()) {
    if (!changed_.wait_until(mutex_, deadline) && !jobs_.empty()) {
      return fail(Code::timed_out, "the captures were not sealed in time");
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
    for (auto job = std::next(jobs_.begin()); job != jobs_.end(); ++job) {
      if (!job->is_given_up) dropped.push_back(job->ticket);
    }
    jobs_.resize(1);
  }
  changed_.notify_all();
  return dropped;
}

void CaptureSealer::work() {
  for (;;) {
    Job* job = nullptr;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && jobs_.empty()) changed_.wait(mutex_);
      if (jobs_.empty()) return;
      job = &jobs_.front();  // A deque's elements stay where they are while others are pushed.
    }
    for (const auto& copies : job->copies) copies->wait();
    gather(*job);
    if (job->lacks_bytes) bring_kept(*job);
    {
      MutexLock lock(mutex_);
      if (!job->is_settled) settle(*job);
    }
    finish(*job);
    {
      MutexLock lock(mutex_);
      jobs_.pop_front();
    }
    changed_.notify_all();
  }
}

/// Collects the tensors of complete copies, once, and computes the digests that the copier did not.
void CaptureSealer::gather(Job& job) {
  for (const auto& copies : job.copies) {
    const TensorCopier::Copied& copied = copies->copied();
    if (!copied) job.copied = fail(Error(copied.error()));
    const bool is_wanted = copied && !job.is_given_up;
    const bool has_digests = copied && !copied->digests.empty();
    if (is_wanted && copies->lack_bytes && has_digests) job.lacks_bytes = true;
    if (is_wanted && copies->lack_bytes && !has_digests) {
      if (Status brought = bring(copies->tensors); !brought) job.copied = std::move(brought);
    }
    for (std::size_t i = 0; is_wanted && i < copies->tensors.size(); ++i) {
      CapturedTensor& tensor = copies->tensors[i];
      tensor.digest =
          has_digests ? copied->digests[i] : digest_of(std::as_const(arena_).bytes(arena_.place(tensor.segment)));
      if (has_digests && !copied->deltas.empty()) tensor.delta = copied->deltas[i];
    }
    job.tensors.insert(job.tensors.end(), copies->tensors.begin(), copies->tensors.end());
  }
  if (job.copies.size() > 1) {
    // A tensor that was captured again has its last copy, in the same segment. So from the end on, the first one stays.
    std::ranges::reverse(job.tensors);
    std::ranges::stable_sort(job.tensors, {}, &CapturedTensor::index);
    const auto rest = std::ranges::unique(job.tensors, {}, &CapturedTensor::index);
    job.tensors.erase(rest.begin(), rest.end());
  }
  job.copies.clear();
}

Status CaptureSealer::bring(std::span<const CapturedTensor> tensors) {
  std::vector<TensorCopy> copies;
  for (const CapturedTensor& tensor : tensors) {
    if (!tensor.on_device) continue;
    copies.push_back({.to = arena_.memory(arena_.place(tensor.segment)),
                      .from = on_device_.memory(on_device_.place(*tensor.on_device)),
                      .delta = tensor.delta});
  }
  return bringer_->bring(copies);
}

/// As settle() will decide: the first job is not settled, so no later one is, and what the decision depends on stays.
void CaptureSealer::bring_kept(Job& job) {
  if (!job.copied) return;
  std::vector<CapturedTensor> kept;
  {
    MutexLock lock(mutex_);
    if (!has_lost(job)) return;
    const std::vector<bool> told = told_by(job);
    std::ranges::copy_if(job.tensors, std::back_inserter(kept), [&](const CapturedTensor& tensor) {
      return last_[tensor.index].keeps(tensor.digest, told[tensor.index]);
    });
  }
  if (Status brought = bring(kept); !brought) job.copied = std::move(brought);
}

/// The tensors that the caller said changed.
std::vector<bool> CaptureSealer::told_by(const Job& job) const {
  std::vector<bool> told(last_.size(), job.kind == Changed::Kind::all);
  for (const std::uint32_t index : job.named) told[index] = true;
  return told;
}

/// Whether the job has the tensors of which a copy failed.
bool CaptureSealer::has_lost(const Job& job) const {
  return std::ranges::includes(job.tensors, lost_, {}, &CapturedTensor::index);
}

/// Gives back the copies of tensors that are as they were, except those that the caller said changed. The first capture
/// keeps every copy, since nobody else has the bytes here, and only notes which equal the resumed version's.
void CaptureSealer::settle(Job& job) {
  job.is_settled = true;
  if (job.is_given_up) return;
  if (!job.copied) return lose(job, job.copied.error());
  if (!has_lost(job)) {
    return lose(job, Error(Code::unavailable, "a copy for the version before failed, and this version needs it"));
  }
  lost_.clear();
  job.is_first = std::exchange(first_, false);
  FRESHET_CHECK(!job.is_first || job.tensors.size() == last_.size());
  const std::vector<bool> told = told_by(job);
  std::vector<SegmentIndex> unchanged;
  std::vector<CapturedTensor> kept;
  for (CapturedTensor& tensor : job.tensors) {
    Last& last = last_[tensor.index];
    tensor.changed = last.digest != tensor.digest || (last.has_segment && told[tensor.index]);
    if (last.keeps(tensor.digest, told[tensor.index])) {
      kept.push_back(tensor);
    } else {
      add_segments_of(tensor, unchanged);
    }
    last = {.digest = tensor.digest, .has_segment = true};
  }
  job.tensors = std::move(kept);
  release(unchanged);
}

/// What a failed copy was to bring is nowhere: the tensors' memory may have changed since. So the version is none, and
/// neither is one that was issued since without these tensors. The next capture takes them all.
void CaptureSealer::lose(Job& job, Error error) {
  std::vector<std::uint32_t> lost = std::exchange(lost_, {});
  for (const CapturedTensor& tensor : job.tensors) lost.push_back(tensor.index);
  std::ranges::sort(lost);
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  lost_ = std::move(lost);
  job.copied = fail(std::move(error).with_context("copy the tensors"));
}

void CaptureSealer::release(std::span<const SegmentIndex> segments) {
  arena_.release(segments);
  on_device_.release(segments);
}

void CaptureSealer::release(const Job& job) {
  std::vector<SegmentIndex> segments;
  for (const CapturedTensor& tensor : job.tensors) add_segments_of(tensor, segments);
  release(segments);
}

void CaptureSealer::finish(Job& job) {
  if (!job.is_given_up && job.copied) return seal(job);
  release(job);
  if (!job.is_given_up && on_failed_) on_failed_(job.ticket, job.copied.error());
}

void CaptureSealer::seal(Job& job) {
  if (job.is_first) {
    segments_.assign(job.tensors.size(), 0);
    device_segments_.assign(job.tensors.size(), std::nullopt);
    digests_.assign(job.tensors.size(), Digest{});
  }
  SealedCapture sealed{.ticket = job.ticket};
  std::vector<SegmentIndex> fresh_segments;
  for (CapturedTensor& tensor : job.tensors) {
    // Changes that had no room would have none the next time: the device would pack them in vain.
    const bool had_no_room = tensor.is_paired && tensor.delta == nullptr;
    if (tensor.on_device && !had_no_room) pairs_.note(tensor.segment, *tensor.on_device);
    tensor.delta = nullptr;  // Its memory is for the next capture.
    segments_[tensor.index] = tensor.segment;
    device_segments_[tensor.index] = tensor.on_device;
    digests_[tensor.index] = tensor.digest;
    add_segments_of(tensor, fresh_segments);
    if (tensor.changed) sealed.changed.push_back(tensor.index);
  }
  arena_.seal(fresh_segments);
  on_device_.seal(fresh_segments);
  merge_refused(job, sealed.changed);
  sealed.segments = segments_;
  sealed.places = arena_.places(segments_);
  sealed.digests = digests_;
  for (const std::uint32_t tensor : sealed.changed) sealed.changed_bytes += sealed.places[tensor].bytes;
  for (const auto& slab : arena_.slabs()) sealed.slab_bytes.push_back(slab.bytes);
  for (std::size_t tensor = 0; tensor < device_segments_.size(); ++tensor) {
    if (!device_segments_[tensor]) continue;
    sealed.device_places.resize(device_segments_.size());
    sealed.device_places[tensor] = on_device_.place(*device_segments_[tensor]);
    sealed.segments.push_back(*device_segments_[tensor]);
  }
  for (const auto& slab : on_device_.slabs()) sealed.device_slab_bytes.push_back(slab.bytes);
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
  std::vector<CapturedTensor> kept;
  for (const CapturedTensor& tensor : refused_) {
    if (job.is_first || segments_[tensor.index] != tensor.segment) {
      add_segments_of(tensor, replaced);
    } else {
      kept.push_back(tensor);
      if (tensor.changed) changed.push_back(tensor.index);
    }
  }
  refused_ = std::move(kept);
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  release(replaced);
}

}  // namespace freshet
