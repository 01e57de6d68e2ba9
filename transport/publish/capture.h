// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher's data plane: owns the slabs and the segments in them, copies a training loop's tensors into them,
/// finds what changed, and hands over what a version is made of. It knows no
/// version numbers, manifests or subscribers; the publisher's shell does, and returns segments that nobody names any
/// more.
///
/// A capture goes: segments are acquired, and a TensorCopier copies the tensors into them. When the copies are
/// complete, a worker proves and compares the digests, makes the segments of the changed tensors live, and calls
/// on_sealed, in the order in which the captures were taken. Copies of host memory are complete when capture() returns:
/// the calling thread and a few helpers copy and digest in one pass (core/vector/copy.h tells why that costs the loop
/// no more than the copy), the caller may write its tensors again, and the equal ones' segments are free. Copies that
/// complete later: transport/publish/tensor_copier.h.
///
/// Tensors in a GPU's memory have a copier of their own. A capture that has some neither waits for copies nor for
/// seals: where two captures before it are not sealed yet, it is skipped.
///
/// With Options::device_memory, captured tensors of a GPU's memory have a second segment, in that memory
/// (transport/publish/device_arena.h). It lives and ends with the first one, in the same books. It gets the copy, and
/// the first one gets the bytes, or a delta, when digests have told that they changed. What add() captures has no
/// second segment.
///
/// A copy that fails refuses its version, and each version that was captured since without the same tensors. The next
/// capture takes these tensors again. What is given up before its copies are complete keeps its segments until then.
///
/// `Equal` means equal digests: a tensor's digest is the proof that every later stage goes by, so bytes that it cannot
/// tell apart are the same bytes to the whole system, and comparing them again in memory would cost as much as the
/// copy.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/arena/arena.h"
#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/graph.h"
#include "core/model/tensor.h"
#include "transport/arena/slab_arena.h"
#include "transport/publish/capture_sealer.h"
#include "transport/publish/device_arena.h"
#include "transport/publish/segment_pairs.h"
#include "transport/publish/tensor_copier.h"
#include "transport/publisher.h"

namespace freshet {

/// prepare(), begin(), add(), abandon() and capture(): one thread at a time. The rest: any thread.
class Capture {
 public:
  struct Options {
    std::string name;                     ///< Of the memory, for /proc/PID/maps.
    std::uint64_t arena_limit_bytes = 0;  ///< 0: four times the first architecture, plus 64 MiB.
    double arena_copies = 3.0;      ///< Touched: one by prepare(), the others as far as captures change the model.
    std::size_t kept_versions = 1;  ///< Raise the default limit by a copy each, from the second on.
    bool lock_memory = true;
    bool huge_pages = false;
    DeviceMemory device_memory = {};
    std::size_t helpers = kHelpersByProcessors;        ///< Threads that copy beside the caller's.
    Duration wait_at_most = std::chrono::seconds(30);  ///< For captures before, of which a GPU may not end the copies.
  };
  static constexpr std::size_t kHelpersByProcessors =
      ~std::size_t{0};  ///< One for every four processors, three at most.

  struct Hooks {
    /// Called on the capturing thread, with no lock held, when there is no room for `bytes`: gives up what can be given
    /// up and has called free() by the time it returns. May be empty.
    std::function<void(std::uint64_t bytes)> make_room;
    /// Called on the worker thread, in ticket order, with no lock held. The changed segments are live from then on and
    /// the receiver's: they come back through free() when no version names them. Must not wait for a later capture.
    ///
    /// False refuses the version (its number could not be recorded, say). Its segments then stay the Capture's, and
    /// count as changed in the next one.
    CaptureSealer::OnSealed on_sealed;

    /// Called on the worker thread, in the order of the seals, with no lock held: a copy failed, and the version comes
    /// to nothing. May be empty.
    CaptureSealer::OnFailed on_failed;

    /// Called on the preparing or capturing thread, with no lock held, for each slab before it is used: what it is
    /// to be sent from may want to know it. May be empty.
    std::function<void(Bytes)> on_slab;
  };

  using Kind = Changed::Kind;

  struct Request {
    std::uint64_t ticket = 0;             ///< The caller's, handed back in SealedCapture; grows from call to call.
    std::span<const TensorView> tensors;  ///< All of the architecture's, sizes checked by the caller.
    /// `find`: every tensor is copied, and the copies of those equal to the last version's are dropped again.
    /// `only`: the tensors named, and those that an earlier, failed capture left undone.
    Kind kind = Kind::find;
    std::span<const std::uint32_t> indices;  ///< For `only`: into tensors, any order; duplicates are ignored.
  };

  /// What capture() or add() gave the copiers.
  struct Receipt {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
  };

  /// `copier`: of host memory; null makes one. `device_copier`: of GPUs' memory; null answers `unsupported` for tensors
  /// there.
  static Result<std::unique_ptr<Capture>> open(Options options, Hooks hooks,
                                               std::unique_ptr<TensorCopier> copier = nullptr,
                                               std::unique_ptr<TensorCopier> device_copier = nullptr);
  /// Ends the copiers, seals the captures taken and not dropped (on_sealed or on_failed is called for them), then ends
  /// the worker.
  ~Capture();

  /// Creates and touches the memory for one copy of a model of this architecture. Called again with another one, the
  /// next capture takes every tensor. Waits for the captures taken before: timed_out. out_of_space when the memory or
  /// the limit does not suffice for one copy.
  Status prepare(const Architecture& architecture);

  /// The last version's digests, when training resumes: the first capture counts as changed what differs from them.
  /// REQUIRES: prepared, nothing captured yet, one per tensor.
  void resume_from(const std::vector<Digest>& digests) { sealer_.resume_from(digests); }

  /// Opens a capture: from now on add() copies some tensors of the version that the next capture() completes. Waits as
  /// capture() does, or is out_of_space where capture() is. failed_precondition when nothing was prepared, or a capture
  /// is open.
  Status begin(std::span<const TensorView> tensors = {});
  /// Issues these tensors' copies now; capture() then takes these copies. A tensor that is given again is copied again,
  /// when the copies before are complete.
  /// `tensors` are all of the architecture's. Errors as capture(); after out_of_space no capture is open any more, and
  /// the tensors that add() had are captured by the next capture.
  Result<Receipt> add(std::span<const TensorView> tensors, std::span<const std::uint32_t> indices);
  /// Gives up an open capture. Its tensors are captured by the next one.
  void abandon();
  bool is_open() const { return open_.has_value(); }

  /// Issues the copies and returns. The first capture of an architecture takes everything. Waits for the seal of the
  /// capture before the last when the loop is faster than the digests. Completes an open capture: what add() copied is
  /// not copied again, and counts as changed where its bytes are not the last version's. The receipt counts all.
  ///
  /// Errors:
  ///   failed_precondition: not prepared, another number of tensors.
  ///   invalid_argument: an index out of range, a tensor whose size is not the architecture's.
  ///   out_of_space: readers hold too much of the memory; or the two captures before this one are not sealed. capture()
  ///     does not wait for them if tensors lie in a GPU's memory; otherwise it waits up to Options::wait_at_most.
  ///     Nothing was captured, and the next call captures what this one should have.
  ///   those of the copiers: the next call captures what this one should have.
  Result<Receipt> capture(const Request& request);

  /// These segments may be written again.
  void free(std::span<const SegmentIndex> segments) {
    arena_.release(segments);
    device_arena_.slabs().release(segments);
  }

  /// Waits until every capture taken was sealed and on_sealed returned. timed_out otherwise.
  Status wait_idle(Duration at_most) { return sealer_.wait_idle(at_most); }
  /// For the end: captures whose seal has not begun come to nothing. Returns their tickets, ascending. Nothing can be
  /// captured afterwards, and copies that a GPU does not end fail.
  std::vector<std::uint64_t> drop_unbegun();

  /// By slab index; only ever grows. Then those of device memory, likewise. The descriptors stay the Capture's and are
  /// open as long as it lives.
  std::vector<SlabReference> slabs() const;
  std::vector<Bytes> slab_memory() const { return arena_.slab_memory(); }
  SlabArena::Stat stat() const { return arena_.stat(); }
  const DeviceArena& device_arena() const { return device_arena_; }

  /// The memory of a version's segments, for whoever holds that version.
  Bytes bytes(const SegmentPlace& place) const { return arena_.bytes(place); }
  std::vector<Bytes> bytes_of(std::span<const SegmentIndex> segments) const { return arena_.bytes_of(segments); }

 private:
  using Want = SlabArena::Want;

  /// What add() issued.
  struct Open {
    CaptureSealer::Copies copies;
    std::vector<std::optional<SegmentIndex>> segment_of;  ///< By tensor.
    Receipt receipt;
  };

  Capture(Options options, Hooks hooks, std::unique_ptr<TensorCopier> copier,
          std::unique_ptr<TensorCopier> device_copier);
  Status take_turn(std::span<const TensorView> tensors);
  Status wait_for_copies() const;
  void on_slab(const std::shared_ptr<Slab>& slab);
  Status check(std::span<const TensorView> tensors) const;
  Status check_indices(std::span<const std::uint32_t> indices) const;
  std::vector<std::uint32_t> tensors_wanted(const Request& request);
  Status find_segments(std::span<Want> wants);
  void touch_ahead(const Request& request, std::vector<std::uint32_t> captured);
  /// Gives each want to the copier of its tensor's memory. An error: `copies` has what was issued all the same.
  Result<Receipt> issue(std::span<const TensorView> tensors, std::span<const Want> wants,
                        const DeviceArena::Segments& on_device, CaptureSealer::Copies& copies);

  const Options options_;
  const std::function<void(std::uint64_t)> make_room_;
  const std::function<void(Bytes)> tell_of_slab_;
  SlabArena arena_;
  DeviceArena device_arena_;
  SegmentPairs pairs_;  ///< Of both arenas.
  // They write into the arena until they are gone.
  std::unique_ptr<TensorCopier> copier_;
  std::unique_ptr<TensorCopier> device_copier_;

  // The capturing thread's own.
  std::vector<std::uint64_t> tensor_bytes_;  ///< Of the prepared architecture.
  std::vector<bool> missed_;                 ///< Tensors that the next capture takes, whatever is named.
  std::optional<Open> open_;
  bool is_first_ = true;           ///< Nothing was captured of this architecture yet.
  std::uint64_t ahead_bytes_ = 0;  ///< Touched for changes, beside one copy of the model.

  CaptureSealer sealer_;  ///< Last: its thread uses the rest.
};

}  // namespace freshet
