// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/bringer.h"

#include <algorithm>
#include <utility>

#include "repo/levels/rank/level_thread.h"

namespace freshet::levels {
namespace {

/// What a rank holds on its way to the repository.
constexpr std::uint64_t kBringBatchBytes = std::uint64_t{16} << 20;
/// So long a batch may take at the limit on bytes per second; a put by parts ends when nothing comes for kPutLease.
constexpr std::uint64_t kBringBatchSeconds = 10;

}  // namespace

void Bringer::join() {
  if (thread_.joinable()) thread_.join();
}

void Bringer::end() {
  const MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool Bringer::has_ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

void Bringer::take_request(const Question& request) {
  const MutexLock lock(mutex_);
  request_ = request;
  changed_.notify_all();
}

void Bringer::set_sending(VersionNumber number, std::uint64_t step) {
  const MutexLock lock(mutex_);
  sending_ = number;
  sending_step_ = step;
}

std::optional<std::uint64_t> Bringer::step_of_sending(const ShardKey& key) const {
  const MutexLock lock(mutex_);
  if (sending_ != key.version.number || key.ranks != job_.options.ranks) return std::nullopt;
  return sending_step_;
}

Result<PartBringer*> Bringer::opened() {
  if (parts_) return &*parts_;
  const Checkpointer::Options& options = job_.options;
  std::shared_ptr<Repository> repository = job_.external != nullptr ? job_.external->repository() : nullptr;
  if (repository == nullptr) {
    FRESHET_ASSIGN(repository, options.external());
  }
  std::uint64_t batch = kBringBatchBytes;
  if (options.limit_bytes_per_second != 0) {
    batch = std::clamp(options.limit_bytes_per_second * kBringBatchSeconds, kChunkBytes, kBringBatchBytes);
  }
  FRESHET_ASSIGN(PartBringer parts, PartBringer::open(std::move(repository), *job_.folders, *job_.cut, batch));
  return &parts_.emplace(std::move(parts));
}

Status Bringer::bring(const Version& version, std::uint64_t step, const PutToken& token,
                      std::span<const std::uint32_t> tensors) {
  FRESHET_ASSIGN(PartBringer* const parts, opened());
  return parts->bring(version, token, tensors, pace_,
                      {.half = [&] { job_.point("external_half", step); }, .stop = [this] { return has_ended(); }});
}

void Bringer::run() {
  lower_own_priority();
  for (;;) {
    Question request;
    std::uint64_t step = 0;
    {
      const MutexLock lock(mutex_);
      while (!ended_ && !request_) changed_.wait(mutex_);
      if (ended_) return;
      request = *std::exchange(request_, std::nullopt);
      step = sending_step_;
    }
    const Version& version = request.key.version;
    const auto carry_out = [&]() -> Status {
      FRESHET_ASSIGN(const PutToken token, parse_put_token(request.token));
      return bring(version, step, token, request.tensors);
    };
    const Status brought = carry_out();
    job_.say(LevelNote::Kind::brought, version, step, Level::external,
             brought ? std::nullopt : std::optional<Error>(brought.error()));
  }
}

}  // namespace freshet::levels
