// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/shards/share_sealer.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"

namespace freshet::levels {
namespace {

constexpr std::ptrdiff_t kTurnsMax = 2;  ///< Captures that wait for copies from GPUs.
constexpr Duration kCopiesLookAgain = std::chrono::minutes(1);

}  // namespace

ShareSealer::~ShareSealer() { stop(); }

Status ShareSealer::start() {
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start the thread that waits for copies from GPUs: {}", error.what()));
  }
  return {};
}

void ShareSealer::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool ShareSealer::is_idle() const {
  const MutexLock lock(mutex_);
  return queue_.empty();
}

bool ShareSealer::has_turn() const {
  const MutexLock lock(mutex_);
  return std::ranges::count_if(queue_, [](const Ended& ended) { return ended.copies != nullptr; }) < kTurnsMax;
}

bool ShareSealer::is_full() const {
  const MutexLock lock(mutex_);
  return queue_.size() >= kWaitingMax;
}

Status ShareSealer::wait_idle(Duration at_most) const {
  const Time deadline = deadline_in(at_most);
  for (;;) {
    FRESHET_TRY(Interruption::check());
    const Time look = Interruption::next_look(deadline);
    const MutexLock lock(mutex_);
    while (!queue_.empty() && changed_.wait_until(mutex_, look)) {
    }
    if (queue_.empty()) return {};
    if (look == deadline) return fail(Code::timed_out, "copies from a GPU still run");
  }
}

std::uint64_t ShareSealer::seal(Share& share) {
  std::uint64_t changed = 0;
  for (std::size_t piece = 0; piece < cut_.pieces.size(); ++piece) {
    if (baseline_.known[piece] && is_equal_piece(cut_, piece, share.digests, baseline_.digests)) {
      share.writers[piece] = baseline_.writers[piece];
    } else {
      changed += cut_.pieces[piece].piece.bytes();
    }
  }
  baseline_.digests = share.digests;
  baseline_.writers = share.writers;
  baseline_.known.assign(cut_.pieces.size(), true);
  return changed;
}

void ShareSealer::push(Ended ended) {
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(ended));
  }
  changed_.notify_all();
}

/// The share is nobody else's before its copies have ended, also where the version comes to nothing.
void ShareSealer::finish_copies(Ended& ended) const {
  if (ended.copies == nullptr) return;
  while (!ended.copies->wait(kCopiesLookAgain)) {
  }
  if (ended.error) return;
  if (const Status copied = ended.copies->copied(); !copied) {
    ended.error = Error(copied.error()).with_context(format("version {}, copy the tensors", ended.version.number));
    return;
  }
  for (const std::size_t piece : ended.copies->pieces()) {
    const Bytes bytes(ended.share->memory.data() + cut_.offsets[piece], cut_.pieces[piece].piece.bytes());
    digest_piece(cut_, piece, bytes, ended.share->digests);
  }
}

void ShareSealer::run() {
  for (;;) {
    Ended ended;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && queue_.empty()) changed_.wait(mutex_);
      if (stopping_) return;
      ended = queue_.front();
    }
    const bool was_well = !ended.error;
    finish_copies(ended);
    if (!ended.error) seal(*ended.share);
    on_sealed_(ended, was_well && ended.error);
    {
      const MutexLock lock(mutex_);
      queue_.pop_front();
    }
    changed_.notify_all();
  }
}

}  // namespace freshet::levels
