// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/checkpointer.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/levels/rank/checkpointer_impl.h"
#include "repo/levels/terms/ring.h"

namespace freshet {
namespace {

using levels::Level;
using levels::LevelNote;

constexpr Duration kLastLifePatience = std::chrono::seconds(5);
constexpr Duration kCopiesPatience = std::chrono::hours(1);  ///< For GPUs, as a restart has for disks.

}  // namespace

Checkpointer::Checkpointer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpointer::~Checkpointer() = default;

Result<std::unique_ptr<Checkpointer>> Checkpointer::open(Options options, std::vector<LaidTensor> tensors,
                                                         const std::stop_token& stop) {
  const StopInterrupts stops(stop);
  auto impl = std::make_unique<Impl>(std::move(options), std::move(tensors));
  FRESHET_TRY(impl->open());
  return std::unique_ptr<Checkpointer>(new Checkpointer(std::move(impl)));
}

Result<std::optional<Checkpointer::Restored>> Checkpointer::restore(std::span<const MutableBytes> held,
                                                                    levels::RestartChoice choice,
                                                                    const std::stop_token& stop) {
  const StopInterrupts stops(stop);
  return impl_->restore(held, choice);
}
Result<VersionNumber> Checkpointer::begin(std::uint64_t step, const std::stop_token& stop) {
  const StopInterrupts stops(stop);
  return impl_->begin(step);
}
Status Checkpointer::capture(std::size_t tensor, Bytes held) { return impl_->capture().capture(tensor, held, false); }
Status Checkpointer::capture(std::span<const Held> held) { return impl_->capture().capture(held); }
std::shared_ptr<const CheckpointCopies> Checkpointer::copies() const { return impl_->capture().copies(); }
Status Checkpointer::capture_beside(std::size_t tensor, Bytes held) {
  return impl_->capture().capture(tensor, held, true);
}
Status Checkpointer::wait_for_copy(std::size_t tensor) { return impl_->capture().wait_for_copy(tensor); }
Result<Checkpointer::Captured> Checkpointer::end() { return impl_->capture().end(); }

Result<Checkpointer::Captured> Checkpointer::checkpoint(std::uint64_t step, std::span<const Bytes> held,
                                                        const std::stop_token& stop) {
  FRESHET_TRY(begin(step, stop));
  Status captured;
  for (std::size_t i = 0; i < held.size() && captured; ++i) captured = capture(i, held[i]);
  Result<Captured> ended = end();
  if (!captured) return fail(std::move(captured).error());
  return ended;
}

Result<bool> Checkpointer::poll(VersionNumber version, CheckpointLevel level) const {
  return impl_->book().poll(version, level);
}
Status Checkpointer::wait(VersionNumber version, CheckpointLevel level, Duration at_most,
                          const std::stop_token& stop) const {
  return impl_->book().wait(version, level, at_most, stop);
}
Checkpointer::Stored Checkpointer::stored(std::size_t tensor) const {
  const levels::OwnTensor& own = impl_->job().own[tensor];
  if (!own.piece) return {};
  return {.offset = own.offset, .bytes = impl_->job().cut->pieces[*own.piece].piece.bytes()};
}
const std::vector<CheckpointLevel>& Checkpointer::levels() const { return impl_->job().levels; }
Status Checkpointer::settle(Duration at_most, const std::stop_token& stop) const {
  return impl_->settle(at_most, stop);
}
Status Checkpointer::finish(Duration at_most, const std::stop_token& stop) {
  const StopInterrupts stops(stop);  // For what comes after the levels.
  return impl_->finish(at_most, stop);
}
Status Checkpointer::check_stored() const { return impl_->check_stored(); }

Checkpointer::Impl::~Impl() {
  capture_.stop_copies();  // First of all: from here on, the program may free its tensors.
  book_.stop();
  teller_.stop();
  end_threads();
  if (job_.group != nullptr) job_.group->stop();  // Whoever waits for a peer is told that none answers.
  for (levels::LevelThread* thread : {&writer_, &copier_, &sending_}) thread->join();
  bringer_.join();
  teller_.join();
  job_.group.reset();  // Its threads call the rest.
}

void Checkpointer::Impl::end_threads() {
  writer_.end();
  copier_.end();
  sending_.end();
  sender_.end();
  bringer_.end();
}

Status Checkpointer::Impl::open() {
  FRESHET_TRY(job_.check_options());
  job_.cut_tensors();
  const Options& options = job_.options;
  FRESHET_TRY(open_folders());
  std::optional<levels::RepositoryOpening> repository;
  if (options.external && options.rank == 0) repository.emplace(options.external);
  if (options.rank == 0) {
    board_.emplace(
        levels::LevelBoard::Options{.ranks = options.ranks, .levels = job_.levels, .when_behind = options.when_behind});
  }
  FRESHET_TRY(book_.allocate());
  FRESHET_TRY(meet(repository ? &*repository : nullptr));
  if (repository) {
    auto opened = repository->wait();
    if (!opened && opened.error().code() != Code::corrupt) return fail(opened.error());
    if (!opened) job_.external_damage = Error(opened.error()).with_context("the repository is damaged");
    const bool is_paced = options.external_is_shared;
    if (opened) job_.external = std::make_unique<levels::ExternalLevel>(*std::move(opened), options.model, is_paced);
  }
  return start();
}

/// The job's life before may still be on its way out.
Status Checkpointer::Impl::open_folders() {
  const Options& options = job_.options;
  const Time deadline = system_clock().now() + std::min<Duration>(options.patience, kLastLifePatience);
  for (;;) {
    auto opened = levels::ShardFolders::open(job_.env, options.local, options.model, options.rank);
    if (opened) {
      job_.folders = *std::move(opened);
      return {};
    }
    if (opened.error().code() != Code::already_exists || system_clock().now() >= deadline) return fail(opened.error());
    FRESHET_TRY(Interruption::check());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// A slow repository keeps no rank from meeting, since no rank is asked for it before all call restore(). One that
/// cannot be opened ends rank 0's wait for the others.
Status Checkpointer::Impl::meet(levels::RepositoryOpening* repository) {
  const group::GroupHandlers handlers{
      .on_ask = [this](group::Rank, Bytes question) { return answers_.answer(question); },
      .on_note = [this](group::Rank from, Bytes note) { on_note(from, note); },
      .on_end = [this](const std::vector<group::Rank>& lost, const Error& why) { on_end(lost, why); }};
  group::GroupOptions options{.rank = job_.options.rank,
                              .ranks = job_.options.ranks,
                              .meet = job_.options.meet,
                              .host = job_.host,
                              .claims = job_.claims(),
                              .security = job_.options.security};
  options.times.patience = job_.options.patience;
  options.times.silence = job_.options.lost_after;
  std::optional<Interruption> interruption;
  if (repository != nullptr) interruption.emplace([repository] { return repository->has_failed(); });
  auto met = group::Group::open(options, handlers);
  if (!met) return fail(repository != nullptr && repository->has_failed() ? repository->wait().error() : met.error());
  job_.group = *std::move(met);
  job_.shares_folder = job_.folders->is_shared();  // All ranks have their folders by now.
  return {};
}

Status Checkpointer::Impl::start() {
  const Options& options = job_.options;
  if (options.group.kind != levels::GroupScheme::Kind::none) {
    std::vector<std::string> hosts;
    for (const group::Peer& peer : job_.group->peers()) hosts.push_back(peer.host);
    FRESHET_ASSIGN(job_.groups, levels::make_groups(hosts, options.group.losses));
    group_.emplace(job_, kept_);
    copier_.start(*group_);
  }
  writer_.start(local_);
  teller_.start();
  if (options.external && options.rank == 0) sending_.start(sender_);
  if (options.rank != 0 && job_.ranks_bring()) bringer_.start();
  return {};
}

void Checkpointer::Impl::on_note(group::Rank from, Bytes bytes) {
  const Result<LevelNote> note = levels::decode_level_note(bytes);
  if (!note) return;
  if (note->kind == LevelNote::Kind::captured || note->kind == LevelNote::Kind::done) {
    if (!board_) return;
    for (const LevelNote& said : board_->on_note(from, *note)) {
      for (group::Rank to = 0; to < job_.options.ranks; ++to) job_.group->note(to, encode(said));
    }
    return;
  }
  if (note->kind == LevelNote::Kind::brought) return sender_.take_brought(from, *note);
  if (from != 0) return;
  if (note->kind == LevelNote::Kind::begin) return begin_level(*note);
  book_.take_note(*note);
  teller_.tell(*note);
}

void Checkpointer::Impl::begin_level(const LevelNote& note) {
  if (!book_.knows(note.version)) return;
  const levels::Due due{.version = job_.version_of(note.version), .step = note.step};
  if (note.level == Level::local) writer_.add(due);
  if (note.level == Level::group) copier_.add(due);
  if (note.level == Level::external) {
    bringer_.set_sending(note.version, note.step);
    if (job_.options.rank == 0) sending_.add(due);
  }
}

void Checkpointer::Impl::on_end(const std::vector<group::Rank>& lost, const Error& why) {
  book_.end(why);
  end_threads();
  if (!lost.empty()) teller_.tell_lost(lost, why);
}

Result<VersionNumber> Checkpointer::Impl::begin(std::uint64_t step) {
  if (finished_) return fail(Code::failed_precondition, "the job was finished; open a new checkpointer");
  if (!restored_) return fail(Code::failed_precondition, "call restore() first, also to begin anew");
  return capture_.begin(step);
}

Result<std::optional<Checkpointer::Restored>> Checkpointer::Impl::restore(std::span<const MutableBytes> held,
                                                                          const levels::RestartChoice& choice) {
  if (capture_.is_under_way()) return fail(Code::failed_precondition, "a version is being captured");
  FRESHET_TRY(capture_.wait_sealed(kCopiesPatience));
  FRESHET_ASSIGN(levels::Restore::Decided decided, levels::Restore(job_, book_, answers_, held, choice).run());
  if (!restored_) FRESHET_TRY(begin_life(decided, choice));
  restored_ = true;
  capture_.set_baseline(std::move(decided.baseline));
  if (decided.plan.source == levels::RestartPlan::Source::nothing) return std::optional<Restored>();
  return std::optional<Restored>(std::move(decided.restored));
}

Status Checkpointer::Impl::begin_life(const levels::Restore::Decided& decided, const levels::RestartChoice& choice) {
  const levels::RestartPlan& plan = decided.plan;
  job_.life = {.id = {.run = plan.run, .incarnation = plan.incarnation}, .number = plan.next_number - 1};
  capture_.set_first_number(plan.next_number);
  levels::Promises promises;
  promises.number_max = plan.next_number - 1;
  promises.incarnation_max = plan.incarnation;
  // Beginning anew on purpose, nothing that was acknowledged is missed any more.
  if (plan.source != levels::RestartPlan::Source::nothing || choice.same_history) {
    FRESHET_ASSIGN(const levels::Promises earlier, job_.folders->promises());
    promises.acknowledged = earlier.acknowledged;
  }
  FRESHET_TRY(teller_.begin_life(std::move(promises)));
  if (plan.source == levels::RestartPlan::Source::shards) {
    local_.inherit_from(plan, decided.baseline);
    kept_.keep_earlier(Level::local, plan.version);
    kept_.keep_earlier(Level::group, plan.version);
  }
  // What the groups have stays until they have a newer one, also where something newer was restored from elsewhere.
  for (const levels::HeldShard& shard : job_.folders->scan()) {
    const levels::Version& version = shard.key.version;
    if (version.number == plan.group_number) kept_.keep_earlier(Level::group, version);
    const bool is_version = choice.same_history && !shard.bytes_only && shard.kind == levels::ShardKind::own;
    if (is_version) kept_.keep_earlier(Level::local, version);
  }
  return {};
}

Status Checkpointer::Impl::settle(Duration at_most, const std::stop_token& stop) const {
  return book_.settle([this] { return teller_.has_told_all(); }, at_most, stop);
}

Status Checkpointer::Impl::finish(Duration at_most, const std::stop_token& stop) {
  const Time deadline = deadline_in(at_most);
  FRESHET_TRY(settle(at_most, stop));
  finished_ = true;
  // Before a restore() nothing was promised in this life, and what an earlier one did stands.
  if (restored_) teller_.end_life(capture_.last_number());
  return job_.group->leave(std::max<Duration>(deadline - system_clock().now(), std::chrono::seconds(1)));
}

/// What does not reach `local` reaches no later level. What did not reach `memory` was left out by another rank, where
/// a call or the log told of it.
Status Checkpointer::Impl::check_stored() const {
  const VersionNumber last = capture_.last_captured();
  if (last == 0 || !book_.poll(last, Level::memory).value_or(false)) return {};
  const Result<bool> stored = book_.poll(last, Level::local);
  if (stored) return {};
  return fail(Error(stored.error()).with_context(format("version {}, the last one, is stored nowhere", last)));
}

}  // namespace freshet
