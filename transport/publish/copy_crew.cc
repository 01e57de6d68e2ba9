// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/copy_crew.h"

#include <algorithm>
#include <numeric>
#include <system_error>

#include "core/vector/copy.h"

namespace freshet {
namespace {

/// Waking a helper takes as long as copying some hundred kilobytes.
constexpr std::uint64_t kSharedBytesMin = std::uint64_t{4} << 20;

}  // namespace

CopyCrew::CopyCrew(std::size_t helpers) {
  try {
    for (std::size_t i = 0; i < helpers; ++i) helpers_.emplace_back([this] { help(); });
  } catch (const std::system_error&) {
    // The system gives no more threads: those that there are, and the caller's, do the work.
  }
}

CopyCrew::~CopyCrew() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

Status CopyCrew::issue(std::vector<TensorCopy> copies, Done done) {
  std::vector<Digest> digests(copies.size());
  std::uint64_t bytes = 0;
  for (const TensorCopy& copy : copies) bytes += copy.from.size();
  if (helpers_.empty() || copies.size() < 2 || bytes < kSharedBytesMin) {
    for (std::size_t i = 0; i < copies.size(); ++i) digests[i] = copy_and_digest(copies[i].to, copies[i].from);
  } else {
    share(copies, digests);
  }
  done(std::move(digests));
  return {};
}

void CopyCrew::share(std::span<const TensorCopy> copies, std::span<Digest> digests) {
  const auto batch = std::make_shared<Batch>();
  batch->copies = copies;
  batch->digests = digests;
  batch->order.resize(copies.size());
  std::iota(batch->order.begin(), batch->order.end(), 0u);
  std::stable_sort(batch->order.begin(), batch->order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return copies[a].from.size() > copies[b].from.size(); });
  batch->undone = copies.size();
  {
    MutexLock lock(mutex_);
    batch_ = batch;
    ++batches_;
  }
  changed_.notify_all();
  work_on(*batch);
  // A helper is at most one tensor behind, and nothing but the processor holds it up.
  for (std::size_t undone = batch->undone.load(std::memory_order_acquire); undone != 0;
       undone = batch->undone.load(std::memory_order_acquire)) {
    batch->undone.wait(undone, std::memory_order_acquire);
  }
}

void CopyCrew::work_on(Batch& batch) {
  for (std::size_t i = batch.next++; i < batch.order.size(); i = batch.next++) {
    const TensorCopy& copy = batch.copies[batch.order[i]];
    batch.digests[batch.order[i]] = copy_and_digest(copy.to, copy.from);
    if (batch.undone.fetch_sub(1, std::memory_order_acq_rel) == 1) batch.undone.notify_all();
  }
}

void CopyCrew::help() {
  std::uint64_t seen = 0;
  for (;;) {
    std::shared_ptr<Batch> batch;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && batches_ == seen) changed_.wait(mutex_);
      if (stopping_) return;
      seen = batches_;
      batch = batch_;
    }
    work_on(*batch);
  }
}

}  // namespace freshet
