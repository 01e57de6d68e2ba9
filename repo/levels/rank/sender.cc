// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/sender.h"

#include <utility>
#include <vector>

#include "core/base/format.h"

namespace freshet::levels {
namespace {

/// True: what a rank lacks for good, such as rights. False: another version may be brought by parts.
bool may_not_bring(const Error& error) {
  return error.code() == Code::failed_precondition || error.code() == Code::unsupported ||
         error.code() == Code::invalid_argument;
}

}  // namespace

Status Sender::reach(const Due& due) {
  if (job_.external == nullptr) return fail(*job_.external_damage);
  FRESHET_TRY(send(due));
  job_.point("external_synced", due.step);
  if (!job_.options.keep.contains(Level::external)) return {};
  // The version is there, whatever becomes of older ones.
  const Status kept = job_.external->keep_newest(job_.options.keep.at(Level::external));
  if (!kept) job_.warn(kept.error().message());
  return {};
}

Status Sender::send(const Due& due) {
  const std::uint32_t ranks = job_.options.ranks;
  GroupSource source(*job_.group, job_.options.patience);
  RestartPlan plan{.source = RestartPlan::Source::shards,
                   .version = due.version,
                   .step = due.step,
                   .ranks = ranks,
                   .each_has_its_own = true};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) plan.holders.push_back({due.version, rank, rank});
  std::vector<BadShard> bad;
  FRESHET_ASSIGN(const ShardedVersion whole, ShardedVersion::open(source, plan, job_.options.rank, bad));
  if (by_parts_) {
    const Status brought =
        job_.external->put_by_parts(whole, [&](const PutToken& token, std::span<const std::uint32_t> tensors) {
          return bring_from_all(due, token, tensors);
        });
    if (brought || bringer_.has_ended()) return brought;
    if (may_not_bring(brought.error())) by_parts_ = false;
    job_.warn(
        format("rank 0 brings version {} to the repository alone: {}", due.version.number, brought.error().message()));
  }
  return job_.external->put(
      whole, source, pace_, bad, [&] { job_.point("external_half", due.step); },
      [this] { return bringer_.has_ended(); });
}

Status Sender::bring_from_all(const Due& due, const PutToken& token, std::span<const std::uint32_t> tensors) {
  const std::uint32_t ranks = job_.options.ranks;
  {
    const MutexLock lock(mutex_);
    bringing_ = Bringing{.version = due.version.number, .waits_for = {}, .error = {}};
    for (group::Rank rank = 1; rank < ranks; ++rank) bringing_->waits_for.insert(rank);
  }
  const Question request{.kind = Question::Kind::bring,
                         .key = {.version = due.version, .rank = 0, .ranks = ranks},
                         .token = to_string(token),
                         .tensors = {tensors.begin(), tensors.end()}};
  std::vector<group::Group::Question> asked;
  for (group::Rank rank = 1; rank < ranks; ++rank) asked.push_back(job_.group->ask(rank, encode(request)));
  Status brought;
  for (group::Group::Question& one : asked) {
    const auto answer = one.wait(job_.options.patience);
    if (!answer && brought) brought = fail(answer.error());
  }
  if (brought) brought = bringer_.bring(due.version, due.step, token, tensors);
  const MutexLock lock(mutex_);
  // After an error too few may have heard of it; those that bring find that the put has ended.
  while (brought && !ended_ && !bringing_->waits_for.empty() && !bringing_->error) changed_.wait(mutex_);
  const Bringing last = *std::exchange(bringing_, std::nullopt);
  if (!brought) return brought;
  if (last.error) return fail(*last.error);
  if (!last.waits_for.empty()) return fail(Code::cancelled, "the job ends");
  return {};
}

void Sender::take_brought(group::Rank from, const LevelNote& note) {
  const MutexLock lock(mutex_);
  if (!bringing_ || bringing_->version != note.version || bringing_->waits_for.erase(from) == 0) return;
  if (note.error && !bringing_->error) bringing_->error = Error(*note.error).with_context(format("rank {}", from));
  changed_.notify_all();
}

void Sender::end() {
  const MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace freshet::levels
