// SPDX-License-Identifier: Apache-2.0
/// The level `external`: rank 0 puts a version into the repository. Where each rank can open the repository, it brings
/// its own bytes, and rank 0 only begins the put by parts, says what is wanted, and commits. Where that fails, because
/// a rank has no rights or a shard is damaged, rank 0 collects all bytes and puts them.

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "core/base/log.h"
#include "repo/levels/checkpointer_impl.h"

namespace freshet {
namespace {

/// What a rank holds on its way to the repository.
constexpr std::uint64_t kBringBatchBytes = std::uint64_t{16} << 20;
/// So long a batch may take at the limit on bytes per second; a put by parts ends when nothing comes for kPutLease.
constexpr std::uint64_t kBringBatchSeconds = 10;

/// True: what a rank lacks for good, such as rights. False: another version may be brought by parts.
bool may_not_bring(const Error& error) {
  return error.code() == Code::failed_precondition || error.code() == Code::unsupported ||
         error.code() == Code::invalid_argument;
}

std::string fallback_text(const std::string& model, VersionNumber version, const Error& why) {
  return format("checkpoints of {}: rank 0 brings version {} to the repository alone: {}", model, version,
                why.message());
}

}  // namespace

void Checkpointer::Impl::run_sender() {
  lower_own_priority();
  GroupSource source(*group_, options_.patience);
  levels::Pace pace(options_.limit_bytes_per_second);
  const auto stop = [this] { return has_ended(); };
  bool by_parts = ranks_bring();
  for (;;) {
    const std::optional<Due> due = next_due(&Impl::to_send_);
    if (!due) return;
    const Version& version = due->version;
    const std::uint64_t step = due->step;
    levels::RestartPlan plan{.source = levels::RestartPlan::Source::shards,
                             .version = version,
                             .step = step,
                             .ranks = options_.ranks,
                             .each_has_its_own = true};
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) plan.holders.push_back({version, rank, rank});
    std::vector<levels::BadShard> bad;
    const auto send = [&]() -> Status {
      if (external_ == nullptr) return fail(*external_damage_);
      FRESHET_ASSIGN(const levels::ShardedVersion whole,
                     levels::ShardedVersion::open(source, plan, options_.rank, bad));
      Status brought;
      if (by_parts) {
        brought = external_->put_by_parts(whole, [&](const PutToken& token, std::span<const std::uint32_t> tensors) {
          return bring_from_all(version, step, token, tensors, pace);
        });
        if (!brought && stop()) return brought;
        if (!brought && may_not_bring(brought.error())) by_parts = false;
        if (!brought) log_line(LogLevel::warning, fallback_text(options_.model, version.number, brought.error()));
      }
      if (!by_parts || !brought) {
        FRESHET_TRY(external_->put(
            whole, source, pace, bad, [&] { point("external_half", step); }, stop));
      }
      point("external_synced", step);
      return {};
    };
    const Status sent = send();
    const auto keep = options_.keep.find(Level::external);
    if (sent && keep != options_.keep.end()) {
      // The version is there, whatever becomes of older ones.
      const Status kept = external_->keep_newest(keep->second);
      if (!kept) log_line(LogLevel::warning, format("checkpoints of {}: {}", options_.model, kept.error().message()));
    }
    say(LevelNote::Kind::done, version, step, Level::external,
        sent ? std::nullopt : std::optional<Error>(sent.error()));
  }
}

Result<levels::PartBringer*> Checkpointer::Impl::bringer() {
  if (!bringer_) {
    std::shared_ptr<Repository> repository = external_ != nullptr ? external_->repository() : nullptr;
    if (repository == nullptr) {
      FRESHET_ASSIGN(repository, options_.external());
    }
    std::uint64_t batch = kBringBatchBytes;
    if (options_.limit_bytes_per_second != 0) {
      batch = std::clamp(options_.limit_bytes_per_second * kBringBatchSeconds, levels::kChunkBytes, kBringBatchBytes);
    }
    FRESHET_ASSIGN(
        levels::PartBringer opened,
        levels::PartBringer::open(std::move(repository), *folders_,
                                  {.table = cut_->table, .ranks = options_.ranks, .rank = options_.rank}, batch));
    bringer_.emplace(std::move(opened));
  }
  return &*bringer_;
}

Status Checkpointer::Impl::bring_own(const Version& version, std::uint64_t step, const PutToken& token,
                                     std::span<const std::uint32_t> tensors, levels::Pace& pace) {
  FRESHET_ASSIGN(levels::PartBringer* const own, bringer());
  const auto stop = [this] { return has_ended(); };
  return own->bring(version, token, tensors, pace, {.half = [&] { point("external_half", step); }, .stop = stop});
}

Status Checkpointer::Impl::bring_from_all(const Version& version, std::uint64_t step, const PutToken& token,
                                          std::span<const std::uint32_t> tensors, levels::Pace& pace) {
  {
    const MutexLock lock(mutex_);
    bringing_ = Bringing{.version = version.number, .waits_for = {}, .error = {}};
    for (group::Rank rank = 1; rank < options_.ranks; ++rank) bringing_->waits_for.insert(rank);
  }
  const levels::Question request{.kind = levels::Question::Kind::bring,
                                 .key = {.version = version, .rank = 0, .ranks = options_.ranks},
                                 .token = to_string(token),
                                 .tensors = {tensors.begin(), tensors.end()}};
  std::vector<group::Group::Question> asked;
  for (group::Rank rank = 1; rank < options_.ranks; ++rank) asked.push_back(group_->ask(rank, encode(request)));
  Status brought;
  for (group::Group::Question& one : asked) {
    const auto answer = one.wait(options_.patience);
    if (!answer && brought) brought = fail(answer.error());
  }
  if (brought) brought = bring_own(version, step, token, tensors, pace);
  const MutexLock lock(mutex_);
  // After an error too few may have heard of it; those that bring find that the put has ended.
  while (brought && !is_over() && !bringing_->waits_for.empty() && !bringing_->error) changed_.wait(mutex_);
  const Bringing ended = *std::exchange(bringing_, std::nullopt);
  if (!brought) return brought;
  if (ended.error) return fail(*ended.error);
  if (!ended.waits_for.empty()) return fail(Code::cancelled, "the job ends");
  return {};
}

void Checkpointer::Impl::take_request(const levels::Question& question) {
  const MutexLock lock(mutex_);
  to_bring_ = question;
  changed_.notify_all();
}

void Checkpointer::Impl::run_bringer() {
  lower_own_priority();
  levels::Pace pace(options_.limit_bytes_per_second);
  for (;;) {
    levels::Question request;
    std::uint64_t step = 0;
    {
      const MutexLock lock(mutex_);
      while (!is_over() && !to_bring_) changed_.wait(mutex_);
      if (is_over()) return;
      request = *std::exchange(to_bring_, std::nullopt);
      step = sending_step_;
    }
    const Version& version = request.key.version;
    const auto bring = [&]() -> Status {
      FRESHET_ASSIGN(const PutToken token, parse_put_token(request.token));
      return bring_own(version, step, token, request.tensors, pace);
    };
    const Status brought = bring();
    say(LevelNote::Kind::brought, version, step, Level::external,
        brought ? std::nullopt : std::optional<Error>(brought.error()));
  }
}

}  // namespace freshet
