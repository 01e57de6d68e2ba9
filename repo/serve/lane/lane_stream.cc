// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/lane/lane_stream.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::rpc {
namespace {

/// One message for so much of the ring.
constexpr std::uint64_t kToldParts = 8;

}  // namespace

void LaneStream::push(std::uint64_t bytes) {
  {
    const MutexLock lock(mutex_);
    written_ += bytes;
  }
  changed_.notify_all();
}

void LaneStream::cut() {
  {
    const MutexLock lock(mutex_);
    is_cut_ = true;
  }
  changed_.notify_all();
}

Result<std::uint64_t> LaneStream::written_past(std::uint64_t past) {
  {
    const MutexLock lock(mutex_);
    if (written_ > past) return written_;
  }
  tell();
  const MutexLock lock(mutex_);
  while (written_ <= past && !is_cut_) changed_.wait(mutex_);
  if (written_ > past) return written_;
  return fail(Code::unavailable, "no more of the put comes: its client left, or this server is ending");
}

void LaneStream::advance(std::uint64_t position) {
  position_ = position;
  if (position_ - told_ >= ring_.size() / kToldParts) tell();
}

void LaneStream::tell() {
  const std::uint64_t bytes = position_ - std::exchange(told_, position_);
  if (bytes != 0 && done_) done_(bytes);
}

Status LaneStream::pass_to(std::uint64_t position) {
  while (position_ < position) {
    FRESHET_ASSIGN(const std::uint64_t written, written_past(position_));
    advance(std::min(written, position));
  }
  return {};
}

Result<Bytes> LaneStream::take(std::uint64_t from, std::uint64_t bytes) {
  if (from < position_) return fail(Code::failed_precondition, "its bytes came and went");
  FRESHET_TRY(pass_to(from));
  const std::uint64_t at = from % ring_.size();
  // Half of it, so that the client can write the other one meanwhile.
  const bool fits = bytes <= ring_.size() / 2 && bytes <= ring_.size() - at;
  return in_place_ && fits ? in_place(from, bytes) : copied(from, bytes);
}

Result<Bytes> LaneStream::in_place(std::uint64_t from, std::uint64_t bytes) {
  // Not advanced: it is done with when something behind it is taken.
  if (bytes != 0) FRESHET_TRY(written_past(from + bytes - 1));
  return ring_.subspan(from % ring_.size(), bytes);
}

Result<Bytes> LaneStream::copied(std::uint64_t from, std::uint64_t bytes) {
  if (bytes > memory_bytes_) {
    memory_bytes_ = 0;
    memory_.reset();
    memory_.reset(new (std::nothrow) std::byte[bytes]);
    if (memory_ == nullptr) return fail(Code::out_of_space, format("no memory for {} bytes", bytes));
    memory_bytes_ = bytes;
  }
  const std::uint64_t end = from + bytes;
  while (position_ < end) {
    FRESHET_ASSIGN(const std::uint64_t written, written_past(position_));
    const std::uint64_t at = position_ % ring_.size();
    const std::uint64_t count = std::min({written - position_, end - position_, ring_.size() - at});
    FRESHET_CHECK(count <= bytes - (position_ - from));
    std::memcpy(memory_.get() + (position_ - from), ring_.data() + at, count);
    advance(position_ + count);
  }
  return Bytes(memory_.get(), bytes);
}

}  // namespace freshet::rpc
