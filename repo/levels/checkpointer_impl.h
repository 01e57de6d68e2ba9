// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of a Checkpointer. The caller's thread captures, with a CopyThread where it says so; the group's loop
/// keeps rank 0's board and hands on what is said; up to four threads of its own carry it out:
///
///   writer    writes shards to this rank's folder
///   copier    level group: copies another rank's shards to this rank's folder, or makes parity there; at low priority
///   sender    at rank 0: brings versions to the repository; at low priority
///   bringer   at another rank, where each can open the repository: brings its part of them; at low priority
///   teller    records promises, calls on_event, removes what is not kept

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "repo/levels/checkpointer.h"
#include "repo/levels/external_level.h"
#include "repo/levels/level_board.h"
#include "repo/levels/parity/parity_maker.h"
#include "repo/levels/part_bringer.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/restart/question.h"
#include "repo/levels/restart/restart_plan.h"
#include "repo/levels/shards/copy_thread.h"
#include "repo/levels/shards/shard_folders.h"
#include "repo/levels/shards/share.h"
#include "repo/levels/terms/ring.h"
#include "transport/group/group.h"

namespace freshet {
namespace levels {
class RepositoryOpening;
}

class Checkpointer::Impl {
 public:
  using Level = levels::Level;
  using Version = levels::Version;
  using Share = levels::Share;
  using LevelNote = levels::LevelNote;

  Impl(Options options, std::vector<LaidTensor> tensors);
  ~Impl();
  Status open();

  Result<std::optional<Restored>> restore(std::span<const MutableBytes> held, levels::RestartChoice choice);
  Result<VersionNumber> begin(std::uint64_t step);
  Status capture(std::size_t tensor, Bytes held, bool beside);
  Status wait_for_copy(std::size_t tensor);
  Result<Captured> end();
  Result<bool> poll(VersionNumber version, Level level) const FRESHET_EXCLUDES(mutex_);
  Status wait(VersionNumber version, Level level, Duration at_most, const std::stop_token& stop) const
      FRESHET_EXCLUDES(mutex_);
  Status settle_all(Duration at_most, const std::stop_token& stop) const FRESHET_EXCLUDES(mutex_);
  Status finish(Duration at_most, const std::stop_token& stop);
  const std::vector<Level>& level_list() const { return levels_; }

 private:
  /// One tensor of the program's list at this rank.
  struct OwnTensor {
    std::uint32_t whole = 0;           ///< Index among the version's tensors.
    std::uint64_t bytes = 0;           ///< Of what it holds.
    std::optional<std::size_t> piece;  ///< What it stores of that.
    std::uint64_t offset = 0;          ///< Where that begins in what it holds.
  };
  /// Numbers that are promised ahead, so that begin() does not wait for the folder.
  static constexpr VersionNumber kNumbersAhead = 16;

  enum class LevelState : std::uint8_t { open, reached, failed };
  struct VersionState {
    std::uint64_t step = 0;
    Time captured_at{};
    std::shared_ptr<Share> share;  ///< While it is in memory.
    std::map<Level, LevelState> levels;
    // As rank 0 said; `levels` follows when it was recorded and told, which may take a slow disk long.
    bool is_captured = false;    ///< By all ranks.
    bool needs_share = true;     ///< Until it reached or failed `local`.
    bool was_written = false;    ///< Its shard, by this rank's writer; perhaps in vain.
    std::optional<Error> error;  ///< Of the first level that failed.
  };
  /// What the next version is compared with.
  struct Baseline {
    std::vector<Digest> digests;
    std::vector<Version> writers;
    std::vector<bool> known;  ///< By piece.
  };
  /// Where this rank's newest shard has its pieces.
  struct Stored {
    std::vector<Digest> digests;
    std::vector<Version> stores;
    std::vector<std::uint64_t> offsets;
  };
  struct Told {
    std::optional<LevelNote> note;
    std::vector<std::uint32_t> lost;
    std::optional<Error> error;
    Time at{};
  };

  // Setting up.
  Status check_options() const;
  Status open_folders();
  Status meet(levels::RepositoryOpening* repository);
  Status start();
  group::Claims claims() const;
  void point(std::string_view name, std::uint64_t step) const;

  // Restarting (checkpointer_restore.cc).
  levels::Inventory inventory() const FRESHET_EXCLUDES(mutex_);
  Result<levels::RestartPlan> first_plan(std::vector<std::vector<std::byte>> parts, levels::RestartChoice choice);
  Result<levels::RestartPlan> next_plan(std::vector<std::vector<std::byte>> parts, levels::RestartPlan tried);
  levels::RestartOutcome carry_out(const levels::RestartPlan& plan, std::span<const MutableBytes> held,
                                   Restored& restored);
  Result<std::vector<levels::WantedPiece>> wanted_of(const levels::TensorTable& table,
                                                     std::span<const MutableBytes> held, Restored& restored,
                                                     std::vector<std::int64_t>& found);
  Status restore_from_shards(const levels::RestartPlan& plan, std::span<const MutableBytes> held, Restored& restored,
                             std::vector<levels::BadShard>& bad);
  Status restore_from_repository(const levels::RestartPlan& plan, std::span<const MutableBytes> held,
                                 Restored& restored, std::vector<levels::BadShard>& bad);
  group::Rank open_to_read();
  Status rebuild_shards(const levels::RestartPlan& plan, std::vector<levels::BadShard>& bad);
  std::vector<Digest> digests_of(std::span<const MutableBytes> held, const std::vector<std::int64_t>& found) const;
  void set_baseline(std::vector<Digest> digests, const std::vector<std::int64_t>& found,
                    const std::vector<Version>& writers);
  void set_stored(const levels::RestartPlan& plan);

  // On the group's loop.
  void on_note(group::Rank from, Bytes bytes) FRESHET_EXCLUDES(mutex_);
  void on_end(const std::vector<group::Rank>& lost, const Error& why) FRESHET_EXCLUDES(mutex_);
  // On the group's answering thread, and on a caller's that asks this rank itself (checkpointer_answer.cc).
  Result<std::vector<std::byte>> on_ask(Bytes bytes) FRESHET_EXCLUDES(mutex_);
  Result<std::vector<std::byte>> answer_from_memory(const levels::Question& question) FRESHET_EXCLUDES(mutex_);

  void say(LevelNote::Kind kind, const Version& version, std::uint64_t step, Level level, std::optional<Error> error);
  /// `wait`: true until `is_there`, as long as the peers live and nobody interrupts. `skip`: for a pause at most.
  bool wait_in_loop(const std::function<bool()>& is_there, std::optional<Error>& why) FRESHET_EXCLUDES(mutex_);
  std::shared_ptr<Share> free_share(std::optional<Error>& why) FRESHET_EXCLUDES(mutex_);
  bool may_take_share() const FRESHET_REQUIRES(mutex_);
  void take_note(const LevelNote& note) FRESHET_REQUIRES(mutex_);
  void let_go_of_shares() FRESHET_REQUIRES(mutex_);
  bool is_open(const VersionState& state) const;
  bool is_over() const FRESHET_REQUIRES(mutex_) { return over_.has_value() || stopping_; }

  // The threads (checkpointer_work.cc).
  void run_writer() FRESHET_EXCLUDES(mutex_);
  Status write_local(const Share& share);
  void run_copier() FRESHET_EXCLUDES(mutex_);
  Status copy_shard(const Version& version, std::uint64_t step, levels::Pace& pace);
  Status make_parity(const Version& version, std::uint64_t step, levels::Pace& pace) FRESHET_EXCLUDES(folder_mutex_);
  /// Whether the copy here of `store`'s shard has the bytes that `newest` has there.
  bool has_bytes_for(const levels::ShardHeader& newest, const Version& store,
                     std::span<const StoredPiece> pieces) const;
  Status copy_payload(levels::ShardSource& source, const levels::ShardHeader& newest, const Version& store,
                      std::span<const StoredPiece> pieces, std::uint64_t step, levels::Pace& pace);
  Version version_of(VersionNumber number) const;
  // The level external (checkpointer_external.cc).
  void run_sender() FRESHET_EXCLUDES(mutex_);
  void run_bringer() FRESHET_EXCLUDES(mutex_);
  bool ranks_bring() const { return options_.external && options_.external_is_shared && options_.ranks > 1; }
  /// Opens the repository, the first time.
  Result<levels::PartBringer*> bringer();
  /// Has every rank bring its part, this one included.
  Status bring_from_all(const Version& version, std::uint64_t step, const PutToken& token,
                        std::span<const std::uint32_t> tensors, levels::Pace& pace) FRESHET_EXCLUDES(mutex_);
  Status bring_own(const Version& version, std::uint64_t step, const PutToken& token,
                   std::span<const std::uint32_t> tensors, levels::Pace& pace) FRESHET_EXCLUDES(mutex_);
  void take_request(const levels::Question& question) FRESHET_EXCLUDES(mutex_);
  void run_teller() FRESHET_EXCLUDES(mutex_);
  static void lower_own_priority();
  struct Due {
    Version version;
    std::uint64_t step = 0;
  };
  /// Waits for the next version of a queue. Nothing: the job ends.
  std::optional<Due> next_due(std::deque<Version> Impl::*queue) FRESHET_EXCLUDES(mutex_);
  bool has_ended() const FRESHET_EXCLUDES(mutex_);
  void tell(const Told& told) FRESHET_EXCLUDES(mutex_);
  void settle(const LevelNote& note, const std::optional<Error>& error) FRESHET_EXCLUDES(mutex_);
  void keep_newest(std::set<Version>& kept, VersionNumber number, Level level) const;
  void promise_more() FRESHET_EXCLUDES(mutex_);
  bool is_to_clean(const levels::HeldShard& shard) const;
  /// `only_this_life`: shards of earlier lives stay.
  void clean_folder(std::uint64_t step, bool only_this_life) FRESHET_EXCLUDES(mutex_, folder_mutex_);

  // Constant after open().
  const Options options_;
  const std::vector<LaidTensor> tensors_;
  const std::string host_;
  Env& env_;
  std::vector<Level> levels_;
  std::vector<OwnTensor> own_;
  std::unique_ptr<levels::ShareCut> cut_;
  std::unique_ptr<levels::ShardFolders> folders_;
  std::unique_ptr<levels::ExternalLevel> external_;  ///< Rank 0's.
  std::optional<Error> external_damage_;             ///< At rank 0: why it has no `external_`. The level fails then.
  std::unique_ptr<levels::ExternalLevel> to_read_;   ///< Another rank's, while it restores.
  std::vector<std::vector<std::uint32_t>> groups_;   ///< Where there is a level `group`.
  levels::RingPlace ring_;
  bool shares_folder_ = false;                   ///< With other ranks.
  std::unique_ptr<levels::ParityMaker> parity_;  ///< The copier's.
  std::optional<levels::PartBringer> bringer_;   ///< The sender's or bringer's.
  Version named_;                                ///< Run and incarnation of this life's versions.

  // The caller's.
  bool restored_ = false;
  bool allows_left_ = false;  ///< Of the restore() under way.
  std::optional<levels::RestartPlanner> planner_;
  /// Tensors that restore() has filled so far, by index, and from which version.
  std::map<std::size_t, VersionNumber> filled_;
  std::shared_ptr<Share> capturing_;
  std::vector<bool> captured_;
  std::optional<Error> capture_error_;
  Duration blocked_{};
  Baseline baseline_;
  VersionNumber next_number_ = 1;
  std::uint64_t sequence_ = 0;
  std::optional<levels::CopyThread> copies_;  ///< From the first capture_beside() on.

  // The group's loop's.
  std::optional<levels::LevelBoard> board_;

  // The writer's, once it runs.
  std::optional<Stored> stored_;

  // The copier's.
  std::optional<Version> newest_copy_;  ///< Of this life.
  /// The newest copy, and what it needs. These have all bytes of them that the next copy needs: if a shard needs
  /// bytes of an older shard, then the shard before it in this life needed the same bytes.
  std::set<Version> copied_;

  Mutex folder_mutex_;  ///< Before mutex_.
  /// Other ranks' payloads that the copy under way needs, until it is there; and the newest copy or parity of this
  /// life, from which the next one inherits.
  std::set<Version> copy_needs_ FRESHET_GUARDED_BY(folder_mutex_);

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<std::shared_ptr<Share>> shares_ FRESHET_GUARDED_BY(mutex_);
  std::map<VersionNumber, VersionState> versions_ FRESHET_GUARDED_BY(mutex_);
  std::deque<VersionNumber> to_write_ FRESHET_GUARDED_BY(mutex_);
  std::deque<Version> to_send_ FRESHET_GUARDED_BY(mutex_);
  std::deque<Version> to_copy_ FRESHET_GUARDED_BY(mutex_);
  /// What rank 0 asked this rank to bring; of two, the newer one counts.
  std::optional<levels::Question> to_bring_ FRESHET_GUARDED_BY(mutex_);
  /// What rank 0 waits for.
  struct Bringing {
    VersionNumber version = 0;
    std::set<group::Rank> waits_for;
    std::optional<Error> error;  ///< Of the first rank that failed.
  };
  std::optional<Bringing> bringing_ FRESHET_GUARDED_BY(mutex_);
  std::deque<Told> to_tell_ FRESHET_GUARDED_BY(mutex_);
  levels::Promises promises_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Error> promise_error_ FRESHET_GUARDED_BY(mutex_);  ///< Of the last try to promise more numbers.
  std::set<Version> kept_ FRESHET_GUARDED_BY(mutex_);         ///< Versions that are whole at `local`, and stay there.
  std::set<Version> kept_copies_ FRESHET_GUARDED_BY(mutex_);  ///< Likewise at `group`.
  std::optional<Version> newest_stored_ FRESHET_GUARDED_BY(mutex_);  ///< stored_'s, for the teller.
  std::optional<Error> over_ FRESHET_GUARDED_BY(mutex_);
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  bool finished_ FRESHET_GUARDED_BY(mutex_) = false;
  VersionNumber sending_ FRESHET_GUARDED_BY(mutex_) = 0;  ///< For points of tests, at other ranks than 0.
  std::uint64_t sending_step_ FRESHET_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<group::Group> group_;
  std::vector<std::thread> threads_;
};

/// Asks the ranks of a group, this one included.
class GroupSource final : public levels::ShardSource {
 public:
  GroupSource(group::Group& group, Duration patience) : group_(group), patience_(patience) {}
  /// Rank `self` reads its own folders without asking itself.
  GroupSource(group::Group& group, Duration patience, const levels::ShardFolders& folders, group::Rank self)
      : group_(group), patience_(patience), folders_(&folders), self_(self) {}
  Bytes head(const levels::Holder& holder, std::uint32_t ranks) override;
  Bytes table(std::uint32_t holder, const Digest& digest) override;
  std::unique_ptr<Pending> read(const levels::Holder& holder, std::uint32_t ranks,
                                std::vector<levels::ByteRange> ranges) override;
  bool read_into(const levels::Holder& holder, std::uint32_t ranks,
                 std::span<const levels::PlacedRange> ranges) override;

 private:
  group::Group& group_;
  const Duration patience_;
  const levels::ShardFolders* const folders_ = nullptr;
  const group::Rank self_ = 0;
};

}  // namespace freshet
