// SPDX-License-Identifier: Apache-2.0
#include "transport/source/coming_version.h"

#include "core/base/check.h"

namespace freshet::source {

ComingVersion::ComingVersion(std::shared_ptr<const Manifest> manifest, Events events)
    : manifest_(std::move(manifest)), events_(std::move(events)), tensors_(manifest_->owners.size()) {}

ComingVersion::~ComingVersion() { events_.on_over(std::move(kept_)); }

void ComingVersion::tell() const {
  if (awaited_.exchange(false)) events_.on_more();
}

void ComingVersion::begin_dense(std::uint32_t tensor, Bytes memory) {
  const MutexLock lock(mutex_);
  Look& look = tensors_.at(tensor);
  FRESHET_CHECK(look.state == State::waits);
  look = {.state = State::dense, .memory = memory, .turn = look.turn + 1};
}

void ComingVersion::begin_delta(std::uint32_t tensor, const SegmentName& base, Payload payload) {
  const MutexLock lock(mutex_);
  Look& look = tensors_.at(tensor);
  FRESHET_CHECK(look.state == State::waits);
  look = {.state = State::delta, .base = base, .payload = std::move(payload), .turn = look.turn + 1};
}

void ComingVersion::grew(std::uint32_t tensor, std::uint64_t bytes) {
  {
    const MutexLock lock(mutex_);
    tensors_.at(tensor).came = bytes;
  }
  tell();
}

void ComingVersion::proved(std::uint32_t tensor, Bytes memory) {
  {
    const MutexLock lock(mutex_);
    Look& look = tensors_.at(tensor);
    look.state = State::there;
    look.memory = memory;
  }
  tell();
}

void ComingVersion::restart(std::uint32_t tensor) {
  {
    const MutexLock lock(mutex_);
    Look& look = tensors_.at(tensor);
    look = {.turn = look.turn + 1};
  }
  tell();
}

void ComingVersion::give_up(Error why) {
  {
    const MutexLock lock(mutex_);
    if (!given_up_) given_up_ = std::move(why);
  }
  tell();
}

bool ComingVersion::is_given_up() const {
  const MutexLock lock(mutex_);
  return given_up_.has_value();
}

std::vector<ComingVersion::Delta> ComingVersion::deltas() const {
  std::vector<Delta> deltas;
  const MutexLock lock(mutex_);
  for (std::uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const Look& look = tensors_[tensor];
    if (look.state != State::there || look.payload == nullptr) continue;
    deltas.push_back({.tensor = tensor, .base = *look.base, .payload = look.payload});
  }
  return deltas;
}

Result<ComingVersion::Look> ComingVersion::look(std::uint32_t tensor, bool for_more) const {
  const MutexLock lock(mutex_);
  if (given_up_) return fail(*given_up_);
  // Under the lock: what comes after this look finds it.
  if (for_more) awaited_ = true;
  return tensors_.at(tensor);
}

}  // namespace freshet::source
