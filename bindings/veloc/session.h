// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The work of VELOC's functions, in Freshet's words. A checkpoint's name is a model, its version the step of one of
/// the model's versions; a region of memory is a tensor that each rank has of its own, in bytes.
///
/// Ranks may have other regions, of other sizes, from checkpoint to checkpoint. So the ranks agree before each one on
/// the regions that any of them has and on how large each is at most; a Checkpointer is opened for these, and again
/// when they change. Each rank's regions are listed in one more tensor, `regions` (region_table.h).

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bindings/veloc/communicator.h"
#include "bindings/veloc/config.h"
#include "repo/levels/checkpointer.h"

namespace freshet::veloc {

enum class Selection : std::uint8_t { all = 0, some = 1, rest = 2 };

/// One thread at a time. "Collective" as in veloc.h.
class Session {
 public:
  /// Collective. `suffix` makes names of processes that are alone their own.
  static Result<std::unique_ptr<Session>> open(std::unique_ptr<Communicator> ranks, Config config, std::string suffix);

  void protect(int id, void* memory, std::size_t bytes, const std::string& name) {
    regions_[name][id] = {static_cast<std::byte*>(memory), bytes};
  }
  bool unprotect(int id, const std::string& name);
  void clear(const std::string& name) { regions_.erase(name); }

  Status begin(const std::string& name, int version);
  Status capture(Selection selection, const std::set<int>& ids);
  Status end(bool success);
  Status wait();
  Result<bool> finished() const;
  Status checkpoint(const std::string& name, int version);

  /// Nothing: there is no such version.
  Result<std::optional<int>> newest(const std::string& name, int version_max);
  Status restart_begin(const std::string& name, int version);
  Status recover(Selection selection, const std::set<int>& ids);
  std::optional<std::size_t> recover_size(int id) const;
  Status restart_end();

  /// Where the file of the checkpoint or restart under way is.
  Result<std::string> file() const;
  Status cleanup(const std::string& name);
  Status finalize(bool clean);
  [[noreturn]] void end_job() { ranks_->end_job(); }

 private:
  struct Region {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  /// What a rank has of a version: by id; kFile is the checkpoint's file.
  using Sizes = std::map<std::int64_t, std::uint64_t>;
  static constexpr std::int64_t kFile = INT64_MAX;

  struct Job {
    std::unique_ptr<Checkpointer> checkpointer;
    Sizes most;  ///< Of any rank: what it was opened for.
  };
  struct UnderWay {
    std::string name;
    int version = 0;
    std::map<std::int64_t, std::vector<std::byte>> held;  ///< Captured, or restored.
  };

  Session(std::unique_ptr<Communicator> ranks, Config config, std::string suffix)
      : ranks_(std::move(ranks)), config_(std::move(config)), suffix_(std::move(suffix)) {}
  std::string model_of(const std::string& name) const { return name + suffix_; }
  std::string file_of(const std::string& name, int version) const;
  Status check(const std::string& name, int version) const;
  /// Collective: all or nobody. The first error that any rank has; invalid_argument when the ranks are in different
  /// calls. What one rank does between two of these ends in `own`, whatever happens: no rank leaves while others wait.
  Status agree(const std::string& call, const Status& own);
  Result<std::string> meeting_place();
  /// That a checkpoint goes to.
  CheckpointLevel level_of(const Checkpointer& checkpointer) const;
  /// For the table of so many regions, and for the regions of `most`.
  Result<std::unique_ptr<Checkpointer>> open_checkpointer(const std::string& name, std::size_t regions,
                                                          const Sizes& most);
  /// Memory for its tensors, in their order.
  static std::vector<std::vector<std::byte>> buffers_for(std::size_t regions, const Sizes& most);
  /// The table that the first of these have; it leaves them.
  static std::vector<std::byte> take_table(std::vector<std::vector<std::byte>>& buffers, std::size_t regions);
  /// Ends the name's Checkpointer; what wait() would have told, it still tells. Collective.
  Status close(const std::string& name);
  const std::map<int, Region>& regions_of(const std::string& name) const;
  /// What each rank has of a version.
  struct Table {
    int version = 0;
    std::size_t regions = 0;  ///< How many it is of; `most` and `own` are empty when not all of it was read.
    Sizes most;
    Sizes own;
  };
  Result<Table> table_from(Bytes bytes, const Checkpointer::Restored& restored) const;
  /// Of the newest version of these steps, if it has so many regions or has room in `regions`; nothing: there is none.
  /// Collective.
  Result<std::optional<Table>> read_table(const std::string& name, std::size_t regions, std::uint64_t step_min,
                                          std::uint64_t step_max);
  /// The same, of however many regions.
  Result<std::optional<Table>> table_of(const std::string& name, std::uint64_t step_min, std::uint64_t step_max);
  /// All of that version, proved, and the Checkpointer that goes on from it. Collective.
  Status load(const std::string& name, const Table& table);
  Status capture_all(const UnderWay& ended, const Sizes& most, VersionNumber& version);
  Result<std::set<std::int64_t>> chosen(Selection selection, const std::set<int>& ids,
                                        const std::set<std::int64_t>& all) const;

  const std::unique_ptr<Communicator> ranks_;
  const Config config_;
  const std::string suffix_;
  std::map<std::string, std::map<int, Region>> regions_;  ///< By the checkpoint's name; "" for all.
  std::map<std::string, Job> jobs_;                       ///< By the checkpoint's name.
  std::optional<UnderWay> checkpoint_;
  std::optional<UnderWay> restart_;
  struct Last {
    std::string name;
    VersionNumber version = 0;
    std::optional<Error> error;
  };
  std::optional<Last> last_;        ///< What wait() waits for, until it is there.
  bool last_level_counts_ = true;  ///< False: the persistent repository is damaged, and passed over.
  std::optional<UnderWay> loaded_;  ///< By newest(), for the restart that mostly follows.
  std::set<std::string> names_;
};

}  // namespace freshet::veloc
