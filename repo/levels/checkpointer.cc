// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/checkpointer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/log.h"
#include "repo/levels/checkpointer_impl.h"
#include "repo/levels/repository_opening.h"
#include "transport/group/launcher.h"

namespace freshet {
namespace {

constexpr std::size_t kSharesAtStart = 3;  ///< A fourth comes where peers are slow to say that they captured.

using GroupKind = levels::GroupScheme::Kind;

constexpr Duration kLastLifePatience = std::chrono::seconds(5);

std::string machine_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

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
Status Checkpointer::capture(std::size_t tensor, Bytes held) { return impl_->capture(tensor, held, false); }
Status Checkpointer::capture_beside(std::size_t tensor, Bytes held) { return impl_->capture(tensor, held, true); }
Status Checkpointer::wait_for_copy(std::size_t tensor) { return impl_->wait_for_copy(tensor); }
Result<Checkpointer::Captured> Checkpointer::end() { return impl_->end(); }

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
  return impl_->poll(version, level);
}
Status Checkpointer::wait(VersionNumber version, CheckpointLevel level, Duration at_most,
                          const std::stop_token& stop) const {
  return impl_->wait(version, level, at_most, stop);
}
const std::vector<CheckpointLevel>& Checkpointer::levels() const { return impl_->level_list(); }
Status Checkpointer::settle(Duration at_most, const std::stop_token& stop) const {
  return impl_->settle_all(at_most, stop);
}
Status Checkpointer::finish(Duration at_most, const std::stop_token& stop) {
  const StopInterrupts stops(stop);  // For what comes after the levels.
  return impl_->finish(at_most, stop);
}

Checkpointer::Impl::Impl(Options options, std::vector<LaidTensor> tensors)
    : options_(std::move(options)),
      tensors_(std::move(tensors)),
      host_(options_.host.empty() ? machine_name() : options_.host),
      env_(options_.env != nullptr ? *options_.env : system_env()) {}

Checkpointer::Impl::~Impl() {
  copies_.reset();  // First of all: from here on, the program may free its tensors.
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (group_ != nullptr) group_->stop();  // Whoever waits for a peer is told that none answers.
  for (std::thread& thread : threads_) thread.join();
  group_.reset();
}

void Checkpointer::Impl::point(std::string_view name, std::uint64_t step) const {
  if (options_.at_point) options_.at_point(name, step);
}

Status Checkpointer::Impl::check_options() const {
  FRESHET_TRY(check_model_name(options_.model));
  FRESHET_TRY(check_layouts(tensors_, options_.ranks));
  if (options_.rank >= options_.ranks) {
    return refuse(format("rank {} of {} ranks cannot be: ranks count from 0", options_.rank, options_.ranks));
  }
  if (options_.ranks > 1 && options_.meet.empty()) return refuse("more than one rank: say where they meet");
  if (options_.local.empty()) return refuse("a folder for the level local is needed");
  return {};
}

Status Checkpointer::Impl::open() {
  FRESHET_TRY(check_options());
  levels_ = {Level::memory, Level::local};
  if (options_.group.kind != GroupKind::none) levels_.push_back(Level::group);
  if (options_.external) levels_.push_back(Level::external);
  auto table = levels::TensorTable::of(whole_tensors(tensors_, options_.ranks));
  cut_ = std::make_unique<levels::ShareCut>(table, options_.ranks, options_.rank);

  std::unordered_map<std::string_view, std::uint32_t> whole;
  for (std::uint32_t i = 0; i < table->tensors.size(); ++i) whole.emplace(table->tensors[i].spec.name, i);
  for (const LaidTensor& tensor : tensors_) {
    const std::string name =
        tensor.layout.cut == Cut::own ? own_name(tensor.spec.name, options_.rank) : tensor.spec.name;
    OwnTensor& own = own_.emplace_back();
    own.whole = whole.at(name);
    own.bytes = held_piece(table->tensors[own.whole], own.whole, options_.ranks, options_.rank).bytes();
    const auto at = std::ranges::lower_bound(cut_->pieces, own.whole, {},
                                             [](const StoredPiece& stored) { return stored.piece.tensor; });
    if (at == cut_->pieces.end() || at->piece.tensor != own.whole) continue;
    own.piece = static_cast<std::size_t>(at - cut_->pieces.begin());
    own.offset = at->offset_in_held;
  }
  FRESHET_TRY(open_folders());
  std::optional<levels::RepositoryOpening> repository;
  if (options_.external && options_.rank == 0) repository.emplace(options_.external);
  if (options_.rank == 0) {
    board_.emplace(
        levels::LevelBoard::Options{.ranks = options_.ranks, .levels = levels_, .when_behind = options_.when_behind});
  }
  {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < kSharesAtStart; ++i) {
      FRESHET_ASSIGN(levels::ShareMemory memory, levels::ShareMemory::allocate(cut_->offsets.back()));
      shares_.push_back(std::make_shared<Share>(std::move(memory)));
    }
  }
  FRESHET_TRY(meet(repository ? &*repository : nullptr));
  if (repository) {
    auto opened = repository->wait();
    if (!opened && opened.error().code() != Code::corrupt) return fail(opened.error());
    if (!opened) external_damage_ = Error(opened.error()).with_context("the repository is damaged");
    const bool is_paced = options_.external_is_shared;
    if (opened) external_ = std::make_unique<levels::ExternalLevel>(*std::move(opened), options_.model, is_paced);
  }
  return start();
}

/// The job's life before may still be on its way out.
Status Checkpointer::Impl::open_folders() {
  const Time deadline = system_clock().now() + std::min<Duration>(options_.patience, kLastLifePatience);
  for (;;) {
    auto opened = levels::ShardFolders::open(env_, options_.local, options_.model, options_.rank);
    if (opened) {
      folders_ = *std::move(opened);
      return {};
    }
    if (opened.error().code() != Code::already_exists || system_clock().now() >= deadline) return fail(opened.error());
    FRESHET_TRY(Interruption::check());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

group::Claims Checkpointer::Impl::claims() const {
  std::string level_names;
  for (const Level level : levels_) level_names += format("{}{}", level_names.empty() ? "" : ",", name_of(level));
  group::Claims claims = {{"model", options_.model},
                          {"tensors", to_hex(cut_->table->digest)},
                          {"levels", level_names},
                          {"when-behind", options_.when_behind == levels::WhenBehind::skip ? "skip" : "wait"}};
  const std::string job = options_.job.empty() ? group::job_of_launcher(env_, options_.ranks) : options_.job;
  if (!job.empty()) claims.emplace_back(group::kJobClaim, job);
  if (options_.group.kind != GroupKind::none) claims.emplace_back("group", to_string(options_.group));
  claims.insert(claims.end(), options_.alike.begin(), options_.alike.end());
  return claims;
}

/// A slow repository keeps no rank from meeting, since no rank is asked for it before all call restore(). One that
/// cannot be opened ends rank 0's wait for the others.
Status Checkpointer::Impl::meet(levels::RepositoryOpening* repository) {
  const group::GroupHandlers handlers{
      .on_ask = [this](group::Rank, Bytes question) { return on_ask(question); },
      .on_note = [this](group::Rank from, Bytes note) { on_note(from, note); },
      .on_end = [this](const std::vector<group::Rank>& lost, const Error& why) { on_end(lost, why); }};
  group::GroupOptions options{.rank = options_.rank,
                              .ranks = options_.ranks,
                              .meet = options_.meet,
                              .host = host_,
                              .claims = claims(),
                              .security = options_.security};
  options.times.patience = options_.patience;
  if (options_.lost_after > Duration::zero()) options.times.silence = options_.lost_after;
  std::optional<Interruption> interruption;
  if (repository != nullptr) interruption.emplace([repository] { return repository->has_failed(); });
  auto met = group::Group::open(options, handlers);
  if (!met) return fail(repository != nullptr && repository->has_failed() ? repository->wait().error() : met.error());
  group_ = *std::move(met);
  shares_folder_ = folders_->is_shared();  // All ranks have their folders by now.
  return {};
}

Status Checkpointer::Impl::start() {
  if (options_.group.kind != GroupKind::none) {
    std::vector<std::string> hosts;
    for (const group::Peer& peer : group_->peers()) hosts.push_back(peer.host);
    FRESHET_ASSIGN(groups_, levels::make_groups(hosts, options_.group.losses));
    ring_ = levels::place_in_ring(groups_, options_.rank);
    if (options_.group.kind == GroupKind::parity) {
      parity_ = std::make_unique<levels::ParityMaker>(
          levels::ParityMaker::Group{.model = options_.model,
                                     .host = host_,
                                     .rank = options_.rank,
                                     .ranks = options_.ranks,
                                     .members = levels::group_of(groups_, options_.rank),
                                     .losses = options_.group.losses,
                                     .table = cut_->table});
    }
    threads_.emplace_back([this] { run_copier(); });
  }
  threads_.emplace_back([this] { run_writer(); });
  threads_.emplace_back([this] { run_teller(); });
  if (options_.external && options_.rank == 0) threads_.emplace_back([this] { run_sender(); });
  if (options_.rank != 0 && ranks_bring()) threads_.emplace_back([this] { run_bringer(); });
  return {};
}

void Checkpointer::Impl::say(LevelNote::Kind kind, const Version& version, std::uint64_t step, Level level,
                             std::optional<Error> error) {
  group_->note(0,
               encode(LevelNote{
                   .kind = kind, .version = version.number, .step = step, .level = level, .error = std::move(error)}));
}

void Checkpointer::Impl::on_note(group::Rank from, Bytes bytes) {
  const Result<LevelNote> note = levels::decode_level_note(bytes);
  if (!note) return;
  if (note->kind == LevelNote::Kind::captured || note->kind == LevelNote::Kind::done) {
    if (!board_) return;
    for (const LevelNote& said : board_->on_note(from, *note)) {
      for (group::Rank to = 0; to < options_.ranks; ++to) group_->note(to, encode(said));
    }
    return;
  }
  const MutexLock lock(mutex_);
  if (note->kind == LevelNote::Kind::brought) {
    if (bringing_ && bringing_->version == note->version && bringing_->waits_for.erase(from) != 0) {
      if (note->error && !bringing_->error) {
        bringing_->error = Error(*note->error).with_context(format("rank {}", from));
      }
      changed_.notify_all();
    }
    return;
  }
  if (from != 0) return;
  if (note->kind == LevelNote::Kind::begin) {
    const auto at = versions_.find(note->version);
    if (at == versions_.end()) return;
    if (note->level == Level::local) to_write_.push_back(note->version);
    if (note->level == Level::group) to_copy_.push_back(version_of(note->version));
    if (note->level == Level::external) {
      sending_ = note->version;
      sending_step_ = note->step;
      if (options_.rank == 0) to_send_.push_back(version_of(note->version));
    }
  } else {
    take_note(*note);
    to_tell_.push_back({.note = *note, .at = system_clock().now()});
  }
  changed_.notify_all();
}

void Checkpointer::Impl::on_end(const std::vector<group::Rank>& lost, const Error& why) {
  const MutexLock lock(mutex_);
  over_ = why;
  if (!lost.empty()) to_tell_.push_back({.lost = lost, .error = why, .at = system_clock().now()});
  changed_.notify_all();
}

Result<VersionNumber> Checkpointer::Impl::begin(std::uint64_t step) {
  if (!restored_) return fail(Code::failed_precondition, "call restore() first, also to begin anew");
  if (capturing_ != nullptr) return fail(Code::failed_precondition, "the version before was not ended");
  const Time began = system_clock().now();
  Version version = named_;
  version.number = next_number_++;
  version.id.sequence = ++sequence_;
  // A number is promised before it is used, so that no later life uses it again.
  const auto is_promised = [&]() FRESHET_REQUIRES(mutex_) {
    return version.number <= promises_.number_max || promise_error_;
  };
  wait_in_loop(is_promised, capture_error_);
  {
    const MutexLock lock(mutex_);
    if (is_over()) return fail(over_ ? *over_ : Error(Code::cancelled, "the checkpointer is closed"));
    VersionState& state = versions_[version.number];
    state.step = step;
    state.captured_at = began;
    for (const Level level : levels_) state.levels[level] = LevelState::open;
    constexpr std::size_t kVersionsKnown = 4096;  // For poll() and wait().
    while (versions_.size() > kVersionsKnown && !is_open(versions_.begin()->second)) {
      if (versions_.begin()->second.share != nullptr) break;
      versions_.erase(versions_.begin());
    }
    if (version.number > promises_.number_max && !capture_error_) {
      capture_error_ =
          Error(Code::out_of_space,
                format("the folder does not take the record of the versions' numbers: this step has no checkpoint{}{}",
                       promise_error_ ? ": " : "", promise_error_ ? promise_error_->message() : ""));
    }
  }
  std::optional<Error> why = capture_error_;
  if (!why) capturing_ = free_share(why);
  blocked_ = system_clock().now() - began;
  if (capturing_ == nullptr) {
    capture_error_.reset();
    say(LevelNote::Kind::captured, version, step, Level::memory, why);
    return fail(*why);
  }
  capturing_->version = version;
  capturing_->step = step;
  capturing_->digests.resize(cut_->first_chunks.back());
  capturing_->writers.assign(cut_->pieces.size(), version);
  captured_.assign(own_.size(), false);
  return version.number;
}

Status Checkpointer::Impl::capture(std::size_t tensor, Bytes held, bool beside) {
  const Time began = system_clock().now();
  if (capturing_ == nullptr) return fail(Code::failed_precondition, "no version was begun");
  const auto check = [&]() -> Status {
    if (tensor >= own_.size())
      return refuse(format("there is no tensor {}; the number of tensors is {}", tensor, own_.size()));
    const OwnTensor& own = own_[tensor];
    if (held.size() != own.bytes) {
      return refuse(
          format("tensor {}: {} bytes came, this rank holds {}", tensors_[tensor].spec.name, held.size(), own.bytes));
    }
    if (captured_[tensor]) return refuse(format("tensor {} was captured already", tensors_[tensor].spec.name));
    return {};
  };
  if (Status checked = check(); !checked) {
    if (!capture_error_) capture_error_ = checked.error();
    return checked;
  }
  captured_[tensor] = true;
  const OwnTensor& own = own_[tensor];
  if (own.piece) {
    const Bytes stored = held.subspan(own.offset, cut_->pieces[*own.piece].piece.bytes());
    if (beside) {
      if (!copies_) copies_.emplace(*cut_);
      copies_->add(*capturing_, *own.piece, stored);
    } else {
      capture_piece(*cut_, *capturing_, *own.piece, stored);
    }
  }
  blocked_ += system_clock().now() - began;
  return {};
}

Status Checkpointer::Impl::wait_for_copy(std::size_t tensor) {
  if (tensor >= own_.size())
    return refuse(format("there is no tensor {}; the number of tensors is {}", tensor, own_.size()));
  if (!copies_ || !own_[tensor].piece) return {};
  const Time began = system_clock().now();
  copies_->finish(*own_[tensor].piece);
  blocked_ += system_clock().now() - began;
  return {};
}

Result<Checkpointer::Captured> Checkpointer::Impl::end() {
  const Time began = system_clock().now();
  if (capturing_ == nullptr) return fail(Code::failed_precondition, "no version was begun");
  if (copies_) copies_->finish_all();
  const std::shared_ptr<Share> share = std::exchange(capturing_, nullptr);
  std::optional<Error> error = std::exchange(capture_error_, {});
  if (!error) {
    const auto missing = std::ranges::find(captured_, false);
    if (missing != captured_.end()) {
      error = Error(Code::failed_precondition,
                    format("tensor {} was not captured",
                           tensors_[static_cast<std::size_t>(missing - captured_.begin())].spec.name));
    }
  }
  Captured captured{.version = share->version.number};
  if (!error) {
    for (std::size_t piece = 0; piece < cut_->pieces.size(); ++piece) {
      if (baseline_.known[piece] && is_equal_piece(*cut_, piece, share->digests, baseline_.digests)) {
        share->writers[piece] = baseline_.writers[piece];
      } else {
        captured.bytes += cut_->pieces[piece].piece.bytes();
      }
    }
    baseline_.digests = share->digests;
    baseline_.writers = share->writers;
    baseline_.known.assign(cut_->pieces.size(), true);
  }
  {
    const MutexLock lock(mutex_);
    VersionState& state = versions_[share->version.number];
    state.captured_at = system_clock().now();
    if (error) {
      --share->users;
    } else {
      state.share = share;
    }
    changed_.notify_all();
  }
  blocked_ += system_clock().now() - began;
  captured.blocked = blocked_;
  if (!error) point("captured", share->step);
  say(LevelNote::Kind::captured, share->version, share->step, Level::memory, error);
  if (error) return fail(*error);
  return captured;
}

Result<bool> Checkpointer::Impl::poll(VersionNumber version, Level level) const {
  const MutexLock lock(mutex_);
  const auto at = versions_.find(version);
  if (at == versions_.end() || !at->second.levels.contains(level)) {
    return fail(Code::not_found,
                format("no version {} was begun here, or it has no level {}", version, name_of(level)));
  }
  const LevelState state = at->second.levels.at(level);
  if (state == LevelState::failed) return fail(*at->second.error);
  if (state == LevelState::open && over_) return fail(*over_);
  return state == LevelState::reached;
}

Status Checkpointer::Impl::wait(VersionNumber version, Level level, Duration at_most,
                                const std::stop_token& stop) const {
  const Time deadline = deadline_in(at_most);
  const StopWakes wakes(stop, mutex_, changed_);
  for (;;) {
    FRESHET_ASSIGN(const bool reached, poll(version, level));
    if (reached) return {};
    const MutexLock lock(mutex_);
    if (stop.stop_requested()) {
      return fail(Code::cancelled,
                  format("the wait for version {} at {} was stopped by its caller", version, name_of(level)));
    }
    if (over_ || versions_.at(version).levels.at(level) != LevelState::open) continue;
    if (!changed_.wait_until(mutex_, deadline)) {
      return fail(Code::timed_out, format("version {} did not reach {} in time", version, name_of(level)));
    }
  }
}

Status Checkpointer::Impl::settle_all(Duration at_most, const std::stop_token& stop) const {
  const Time deadline = deadline_in(at_most);
  const StopWakes wakes(stop, mutex_, changed_);
  const MutexLock lock(mutex_);
  for (;;) {
    if (over_) return fail(*over_);
    const bool open = std::ranges::any_of(versions_, [&](const auto& entry) { return is_open(entry.second); });
    if (to_tell_.empty() && !open) return {};
    if (stop.stop_requested()) return fail(Code::cancelled, "the wait for every level was stopped by its caller");
    if (!changed_.wait_until(mutex_, deadline)) return fail(Code::timed_out, "not every level ended in time");
  }
}

Status Checkpointer::Impl::finish(Duration at_most, const std::stop_token& stop) {
  const Time deadline = deadline_in(at_most);
  FRESHET_TRY(settle_all(at_most, stop));
  if (!restored_) {  // Nothing was promised in this life, and what an earlier one did stands.
    return group_->leave(std::max<Duration>(deadline - system_clock().now(), std::chrono::seconds(1)));
  }
  levels::Promises promises;
  {
    const MutexLock lock(mutex_);
    finished_ = true;
    promises_.number_max = next_number_ - 1;
    promises = promises_;
  }
  // Numbers that were promised and not used are free again. Where the folder does not take that, they are left out.
  if (const Status written = folders_->write_promises(promises); !written) {
    log_line(LogLevel::warning, format("checkpoints of {}: {}", options_.model, written.error().message()));
  }
  return group_->leave(std::max<Duration>(deadline - system_clock().now(), std::chrono::seconds(1)));
}

}  // namespace freshet
