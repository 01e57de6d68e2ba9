// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/shards/copy_thread.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace freshet::levels {

CopyThread::CopyThread(const ShareCut& cut, std::function<void()> at_chunk)
    : cut_(cut), at_chunk_(std::move(at_chunk)) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    // The system gives no more threads: add() copies.
  }
}

CopyThread::~CopyThread() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CopyThread::add(Share& share, std::size_t piece, Bytes from) {
  if (from.size() <= kSmallBytesMax || !thread_.joinable()) {
    capture_piece(cut_, share, piece, from);
    return;
  }
  {
    const MutexLock lock(mutex_);
    copies_.push_back({.share = &share, .piece = piece, .from = from, .chunks = chunks_of(cut_, piece)});
  }
  changed_.notify_all();
}

void CopyThread::finish(std::size_t piece) {
  const MutexLock lock(mutex_);
  for (;;) {
    const auto copy = std::ranges::find(copies_, piece, &Copy::piece);
    if (copy == copies_.end()) return;
    if (has_chunk(*copy)) {
      copy_chunk(copy);
    } else {
      changed_.wait(mutex_);  // Nothing but the processor holds the other thread up.
    }
  }
}

void CopyThread::finish_all() {
  const MutexLock lock(mutex_);
  while (!copies_.empty()) {
    const auto copy = std::ranges::find_if(copies_, [this](const Copy& one) { return has_chunk(one); });
    if (copy != copies_.end()) {
      copy_chunk(copy);
    } else {
      changed_.wait(mutex_);
    }
  }
}

void CopyThread::copy_chunk(Copies::iterator copy) {
  const std::uint64_t chunk = copy->next++;
  mutex_.unlock();
  if (at_chunk_) at_chunk_();
  capture_chunk(cut_, *copy->share, copy->piece, chunk, copy->from);
  mutex_.lock();
  if (++copy->done < copy->chunks) return;
  copies_.erase(copy);
  changed_.notify_all();
}

void CopyThread::run() {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    const auto copy = std::ranges::find_if(copies_, [this](const Copy& one) { return has_chunk(one); });
    if (copy != copies_.end()) {
      copy_chunk(copy);
    } else {
      changed_.wait(mutex_);
    }
  }
}

}  // namespace freshet::levels
