// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Checkpoints of a job of N ranks. The loop waits for one copy of each rank's share at most: a layer can be copied
/// while the next layer computes. Then the loop goes on, and in the background the version moves from level to level.
/// (DeepFreeze, CCGrid'20, section IV: capture each tensor when its update is done; of replicated tensors, each rank
/// stores an N-th; levels are asynchronous.)
///
///     auto checkpointer = Checkpointer::open({.model = "net", .rank = r, .ranks = n, .meet = "tcp://10.0.0.7:7400",
///                                             .local = {"/scratch/net"}}, tensors);
///     auto restored = (*checkpointer)->restore(memory);        // collective; no version: begin anew
///     for (step = …) {
///       (*checkpointer)->begin(step);
///       for (layer = last … first) { update(layer); (*checkpointer)->capture_beside(layer, bytes); }
///       (*checkpointer)->end();                                // the next step may begin
///     }
///     (*checkpointer)->finish(std::chrono::minutes(5));        // collective
///     (*checkpointer)->check_stored();                         // an error: the last version is not on a disk
///
/// A version consists of whole tensors and has one number at all ranks. The layout (core/layout/layout.h) says which
/// rank holds which bytes, so a job with another number of ranks can restore the version. A version reaches the levels
/// in this order; each level is acknowledged by name for the whole version:
///
///     level     reached when                              survives
///     memory    all ranks captured it                     nothing that ends a process; in the running job, all ranks
///                                                         can go back to the version by another restore()
///     local     each rank's folder has its shard          the death of every process, if hosts keep their disks
///     group     copies or parity of the shards are        the loss of hosts: one of each group of up to 8 ranks with
///               synced at ranks of other hosts            copies or XOR, any F with Reed-Solomon
///     external  the repository has it, durably            all that the repository survives
///
/// A tensor that does not change between two versions is stored once, at each level.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/result.h"
#include "core/layout/layout.h"
#include "repo/levels/terms/checkpoint_copies.h"
#include "repo/levels/terms/terms.h"
#include "repo/repository.h"
#include "transport/security.h"

namespace freshet {

namespace gpu {
class Platform;
}

using CheckpointLevel = levels::Level;

/// An event of a version or of a peer.
struct CheckpointEvent {
  enum class Kind : std::uint8_t { reached, failed, lost };
  Kind kind = Kind::reached;
  VersionNumber version = 0;
  std::uint64_t step = 0;
  CheckpointLevel level = CheckpointLevel::memory;
  Duration after{};                  ///< Since the end of this rank's capture.
  std::optional<Error> error;        ///< For failed and lost.
  std::vector<std::uint32_t> peers;  ///< For lost.
};

/// begin(), capture(), capture_beside(), wait_for_copy(), end(), checkpoint(), restore() and finish(): one thread at a
/// time. The rest: any thread.
/// A call with a stop token ends its wait with `cancelled` when somebody asks for the stop. If the call was collective,
/// the other ranks then wait in vain for this rank: end the job. A forked child cannot use the object.
class Checkpointer {
 public:
  struct Options {
    std::string model;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::string meet;  ///< "tcp://HOST:PORT": rank 0 listens there. Not needed for one rank.
    /// The job's name. Ranks with different names do not meet: open() fails. Empty: the name that mpirun, srun or
    /// torchrun gives the job (transport/group/launcher.h); without these, jobs by hand have no name.
    std::string job;
    std::string host;                ///< The failure domain; empty: this machine's name.
    std::vector<std::string> local;  ///< The first is written, all are read. Ranks may share one.
    levels::GroupScheme group;       ///< Copies or parity at the level `group`; none: there is no such level.
    /// This function opens the repository. The checkpointer calls it on a separate thread, while the ranks meet. A rank
    /// that restores by itself calls the function in restore(). Not set: there is no level `external`. Set it at all
    /// ranks, or at none.
    std::function<Result<std::shared_ptr<Repository>>()> external;
    /// True: any rank can open it (a provider's address). Each rank then brings its own bytes there, and restores from
    /// it by itself. `limit_bytes_per_second` also limits the bytes that a rank brings there. False: rank 0 alone opens
    /// it, and the others ask rank 0.
    bool external_is_shared = false;
    levels::WhenBehind when_behind = levels::WhenBehind::skip;
    /// How many versions each level keeps. A level that is not in the map keeps 1 (memory), 2 (local and group), or all
    /// (external).
    std::map<CheckpointLevel, std::uint32_t> keep;
    std::uint64_t limit_bytes_per_second = 0;  ///< For a rank's sends to group and external; 0: no limit.
    /// The longest wait until all ranks have met, and for a peer's answer in the background. restore() waits an hour.
    Duration patience = std::chrono::seconds(30);
    /// A peer is lost after this time of silence, 0.2 s or more, and at once when its process ends. A rank that
    /// computes on all cores or waits for its disk can be silent for a second, and a lost rank ends the job.
    Duration lost_after = std::chrono::seconds(10);
    /// Names and values that must be equal at all ranks. If a rank differs, open() fails and names the value.
    std::vector<std::pair<std::string, std::string>> alike;
    SecurityOptions security;
    /// Called on a thread of the checkpointer; must not call the checkpointer.
    std::function<void(const CheckpointEvent&)> on_event;
    /// For tests: called at points where a process may die. "captured", "local_half", "local_synced", …; "restoring"
    /// when a rank has its bytes, "rebuilding" before each chunk of a shard that is computed from parity.
    std::function<void(std::string_view point, std::uint64_t step)> at_point;
    Env* env = nullptr;  ///< Null: the machine's.
    /// The GPUs that TensorPlace::device numbers. Null: those of NVIDIA's driver, which the first capture of a tensor
    /// in a GPU's memory opens.
    std::shared_ptr<gpu::Platform> gpus;
  };

  /// Returns when all ranks have met. Errors; also those of the folder and the repository:
  ///   invalid_argument: options, tensors, or ranks with different options.
  ///   already_exists: the folder belongs to another process, or two processes have the same rank.
  ///   timed_out: ranks are missing; the message names them.
  static Result<std::unique_ptr<Checkpointer>> open(Options options, std::vector<LaidTensor> tensors,
                                                    const std::stop_token& stop = {});
  ~Checkpointer();

  struct Restored {
    VersionName version;
    std::uint64_t step = 0;
    std::set<CheckpointLevel> from;   ///< The levels that this rank's bytes came from.
    std::uint64_t rebuilt_bytes = 0;  ///< Of them, those from copies of shards: partners', or computed from parity.
    std::vector<std::string> fresh;   ///< Tensors that the version does not have for this rank; they are unchanged.
    /// Tensors of the version that no rank of this job holds: tensors with layout `own` of ranks that the job no longer
    /// has, or tensors of another program. Later versions do not have them.
    std::vector<std::string> left;
    std::vector<std::string> notes;  ///< Skipped versions and shards, and why.
  };
  /// Collective. Each job calls restore() before the first begin(), also to begin anew. The running job may call it
  /// again later, to go back to a version. Fills `held`: for each tensor, in the order of open(), the part that this
  /// rank holds (held_piece(); empty if it holds none). Result not set: there is no version, and the job begins anew.
  /// corrupt: a version was acknowledged, and no version is restorable; or the version that `choice` asks for is not
  /// restorable. The message names the missing shards.
  /// not_found: nobody has a version that `choice` asks for by its number or step.
  /// failed_precondition, one of four:
  /// - The version's tensors have other shapes or types.
  /// - The version has a tensor that no rank takes, and lacks one that ranks hold: a tensor may have a new name.
  ///   `choice.allow_left` goes on.
  /// - restore() came between begin() and end().
  /// - The tensors are mixed: restore() filled some from a version that it then found damaged, and no other version has
  ///   them. The program has to set its tensors anew, and to choose by `choice`.
  /// unavailable, timed_out: a peer did not answer. restore() does not take an older version then, because the peer may
  /// have a newer one.
  Result<std::optional<Restored>> restore(std::span<const MutableBytes> held, levels::RestartChoice choice = {},
                                          const std::stop_token& stop = {});

  struct Captured {
    VersionNumber version = 0;
    Duration blocked{};
    /// Changed bytes among those that this rank stores; all that it stores, while copies from a GPU run: nobody knows
    /// yet what changed.
    std::uint64_t bytes = 0;
  };
  /// Collective: all ranks checkpoint the same steps. Returns the version's number. With `wait` it returns when the
  /// levels caught up, however long that takes, or when a peer is lost. out_of_space: no memory is free, or two
  /// versions are not copied from a GPU yet (with `skip`), or the folder could not record the version's number. This
  /// step then has no checkpoint. A later step may have one. unavailable: a peer is lost, or a GPU hangs (2048 versions
  /// wait for its copies): the job has ended. failed_precondition: restore() did not come before, or finish() did.
  Result<VersionNumber> begin(std::uint64_t step, const std::stop_token& stop = {});
  /// Copies one tensor: the part that this rank holds. After the return, the program may change the part.
  Status capture(std::size_t tensor, Bytes held);
  /// What this rank stores of the part that it holds: where that begins, and its bytes; 0: nothing. REQUIRES: `tensor`
  /// is one of those that open() got.
  struct Stored {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  Stored stored(std::size_t tensor) const;
  /// The part of a tensor that this rank holds, and where it lies.
  struct Held {
    std::size_t tensor = 0;
    Bytes bytes;
    TensorPlace place = {};
  };
  /// The same of several tensors, in the host's memory and in GPUs'. What lies in a GPU's memory is copied behind the
  /// loop. The version has the values that the tensor's stream had queued at the call. Before the return, this stream
  /// waits for the copy, on the device; so each later write on the stream, and each free in its order, comes after the
  /// copy. Memory that no stream frees in order must stay until copies() have ended, also after an error. A copy that
  /// fails later fails the version at the level `memory`. unavailable: no driver. invalid_argument: an address that is
  /// not that GPU's memory. failed_precondition: a GPU that is lost.
  Status capture(std::span<const Held> held);
  /// Those out of GPUs' memory, of the version that was begun last. Null: there are none.
  std::shared_ptr<const CheckpointCopies> copies() const;
  /// Hands the copy to a thread of the checkpointer, so that the next layer computes beside it. The program must not
  /// change or free `held` before one of these has returned: end(), wait_for_copy() of this tensor, or the destructor.
  Status capture_beside(std::size_t tensor, Bytes held);
  /// Returns when the copy of this tensor is done, for a program that changes the tensor before end(). The calling
  /// thread helps. Returns at once where no such copy is under way.
  Status wait_for_copy(std::size_t tensor);
  /// Waits for the copies of host memory that are left, and helps with them. It does not wait for a GPU.
  /// failed_precondition: a tensor is missing; the version has then failed. After the return, with an error too, the
  /// program may change all tensors.
  Result<Captured> end();
  Result<Captured> checkpoint(std::uint64_t step, std::span<const Bytes> held, const std::stop_token& stop = {});

  /// True: reached. False: not yet. The version's error if it failed; not_found if this version was not begun here.
  Result<bool> poll(VersionNumber version, CheckpointLevel level) const;
  /// timed_out; the version's error. This wait, settle() and finish() last a day at most.
  Status wait(VersionNumber version, CheckpointLevel level, Duration at_most, const std::stop_token& stop = {}) const;
  /// The levels that this job has, ascending.
  const std::vector<CheckpointLevel>& levels() const;

  /// Waits until every version has reached or failed every level. timed_out.
  Status settle(Duration at_most, const std::stop_token& stop = {}) const;
  /// Collective, the last call of a job: settles, then releases the ranks. A version that failed is no error of this
  /// call: check_stored() tells of the last one.
  Status finish(Duration at_most, const std::stop_token& stop = {});
  /// Why no folder has the last version that end() returned, at this rank; a job that ends then lost its last steps. A
  /// version that another rank left out is no error.
  /// REQUIRES: settle() or finish() was called, since versions that are under way are no error.
  Status check_stored() const;

 private:
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
