// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The tensors of a server in a GPU's memory, which copies from snapshots keep fresh. The tensors belong to the server
/// (a framework's parameters); their addresses stay, so a captured graph of the framework goes on with the new values.
///
///     FRESHET_ASSIGN(auto tensors, DeviceTensors::bind(device, {{.spec = …, .address = …}, …}));
///     …                                                      // Between two forwards:
///     tensors->refresh(subscriber->snapshot(), stream);       // queues copies of what changed
///     tensors->use(stream);                                   // the next forward comes after the copies
///
/// What is copied. A tensor is copied if another segment has its bytes than those that the device holds: the owner maps
/// say so. A tensor of 64 KiB or less goes by a launch that copies many; a larger one by a copy of its own. Where a
/// larger tensor came from another host by a delta, and the device holds the delta's base, the delta is copied, and
/// applied there in place. The delta's sum tells whether the elements that it changes are right; a wrong one is known
/// when the device has run: the log says so, and is_mixed() is true until the next refresh has copied the tensor. Of
/// the other elements it tells nothing: they stay as somebody else wrote them, until the tensor is copied. So no tensor
/// gets more than Deltas::in_a_row_max deltas in a row; the next time it is copied.
///
/// What deltas take. One table, made by the first refresh that has a delta: of half the tensors' bytes, and of
/// Deltas::bytes_max at most, on the device, and of as much host memory that the driver knows. Deltas beyond it, and
/// all deltas where the table of the refresh before is still in use or cannot be made, are left: these tensors are
/// copied.
///
/// Order. refresh() queues its copies after all work of the streams that use() named since the refresh before. A stream
/// that use() names waits, on the device, for the last refresh. So any number of streams may compute with the tensors.
/// The host waits for none of them. It does copy the deltas' bytes into their table.
///
/// Pins. The snapshot stays pinned until the device has done its copies; the next call of any function sees that. So a
/// publisher may write the segments again only then, and a publisher that dies meanwhile takes no byte away.
///
/// Where the publisher's copy lies in this device's memory too (Subscriber::take_device_memory), it is copied from
/// there, within the device.
///
/// The host does wait twice. The first refresh from a slab registers the slab with the driver, about 0.2 ms a MiB;
/// prepare() does it earlier. The first refresh that has a delta makes the table, and registers its host memory
/// likewise. A slab that cannot be registered is copied through the driver's own pages; refresh() then takes as long as
/// these copies, and the log says so once.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "core/gpu/device.h"
#include "core/model/ids.h"
#include "transport/subscribe/device/copy_table.h"
#include "transport/subscribe/device/delta_table.h"
#include "transport/subscribe/device/slab_registrations.h"
#include "transport/subscriber.h"

namespace freshet {

/// One tensor of the server's: what it is, and where it lies.
struct DeviceTensor {
  TensorSpec spec;          ///< Name, type and shape as the model has them; the role is not looked at.
  void* address = nullptr;  ///< Of spec.bytes() bytes of the device's memory, aligned or not.
};

/// What a refresh queued.
struct DeviceRefresh {
  VersionNumber version = 0;
  std::uint64_t tensors = 0;  ///< Those that are copied.
  std::uint64_t bytes = 0;    ///< Of these tensors.
  std::uint64_t deltas = 0;   ///< Tensors among them to which deltas are applied.
};

/// One thread at a time; the threads that queue a forward between use() and the next refresh() are the caller's to keep
/// from refreshing meanwhile. REQUIRES: the tensors' memory stays until this ends, and a stream that use() named
/// until the refresh() after it has copied something; no stream captures a graph during a call. Other writers of the
/// tensors call forget().
class DeviceTensors {
 public:
  static constexpr std::size_t kUsersMax = 1024;
  /// Limits of what comes by delta.
  struct Deltas {
    std::uint64_t bytes_max = detail::kReceivedDeltasBytesMax;  ///< Of a refresh; 0: each tensor is copied.
    std::uint32_t in_a_row_max = 64;                            ///< Of a tensor, until it is copied.
  };

  /// invalid_argument names the tensor that is wrong: two of one name, a spec that fails check(), an address that is
  /// not this device's memory from its first byte to its last, memory that another tensor has too.
  static Result<std::unique_ptr<DeviceTensors>> bind(std::shared_ptr<gpu::Device> device,
                                                     std::vector<DeviceTensor> tensors) {
    return bind(std::move(device), std::move(tensors), Deltas());
  }
  static Result<std::unique_ptr<DeviceTensors>> bind(std::shared_ptr<gpu::Device> device,
                                                     std::vector<DeviceTensor> tensors, const Deltas& deltas);
  /// As end().
  ~DeviceTensors();
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;

  /// Queues copies on `stream`, after which the tensors hold the snapshot's version. Errors:
  ///   failed_precondition: the model lacks a tensor, or has it in another type or shape, and the message names it; the
  ///     device is lost; or another part of the program registered a slab with the driver. Nothing was queued.
  ///   invalid_argument: the snapshot is empty.
  ///   what the driver says: some tensors have the version, and is_mixed() is true. The next refresh, of any version,
  ///     completes it.
  Result<DeviceRefresh> refresh(std::shared_ptr<const Snapshot> snapshot, gpu::StreamHandle stream);
  Result<DeviceRefresh> refresh(Snapshot snapshot, gpu::StreamHandle stream) {
    return refresh(std::make_shared<const Snapshot>(std::move(snapshot)), stream);
  }

  /// Registers the slabs that a refresh from this snapshot would copy from. The host waits for it. Errors as refresh(),
  /// before it queues anything.
  Status prepare(const Snapshot& snapshot);

  /// What `stream` gets from now on runs after the copies of the last refresh, and the next refresh's copies run after
  /// it. After an error `stream` is ordered with nothing. out_of_space: kUsersMax streams were named since the last
  /// refresh that copied something.
  Status use(gpu::StreamHandle stream);

  /// Somebody else wrote the tensors, or this one: the next refresh copies them again. not_found: no such tensor.
  void forget();
  Status forget(std::string_view name);

  /// Waits up to half a minute for the copies, whatever an Interruption wants. False: that was too short. Their
  /// versions then stay pinned until the process ends, the log says so, and the tensors' memory must stay as long.
  bool end();

  /// Waits in the calling thread for the copies of all refreshes, and lets go of their versions. timed_out, cancelled.
  /// corrupt: a delta led elsewhere, as is_mixed() says; refresh again.
  Status wait(Duration at_most);

  /// The version whose copies were all queued; 0: none, or is_mixed().
  VersionNumber version() const { return version_; }
  /// True: a refresh failed amid its copies, or a delta led elsewhere, so the tensors are of several versions. Do not
  /// compute with them.
  bool is_mixed() const { return is_mixed_; }
  /// The segment whose bytes the tensor holds once the copies are done; nothing: not known. REQUIRES: < size().
  const std::optional<SegmentName>& holds(std::size_t tensor) const { return rows_[tensor].owner; }
  std::size_t size() const { return rows_.size(); }
  /// Refreshes whose copies were not seen done: each pins a version.
  std::size_t pins();

 private:
  struct Row {
    DeviceTensor tensor;
    std::optional<SegmentName> owner;
    std::uint32_t deltas_in_a_row = 0;
  };
  /// A row to be copied.
  struct Change {
    std::size_t row = 0;
    std::uint32_t tensor = 0;  ///< In the model.
    Bytes from;
    bool is_on_device = false;                     ///< Where `from` lies.
    const detail::ReceivedDelta* delta = nullptr;  ///< From what the row holds; null: it is copied.
  };
  /// What one refresh has on its way.
  struct Flight {
    std::shared_ptr<const Snapshot> snapshot;
    gpu::Event done;
    gpu::StreamHandle stream;
    bool is_recorded = false;  ///< An event that was never recorded counts as done.
    std::unique_ptr<detail::CopyTable> table;
    std::unique_ptr<detail::DeltaTable> deltas;
    std::vector<std::size_t> delta_rows;  ///< Of this, in the order of `deltas`.
  };
  struct Plan {
    std::vector<Change> by_delta;
    std::vector<Change> alone;     ///< Each by a copy of its own.
    std::vector<Change> together;  ///< By one launch.
  };

  DeviceTensors(std::shared_ptr<gpu::Device> device, const Deltas& deltas);
  Status check_memory();
  Status find_tensors(const Manifest& manifest);
  Result<std::vector<Change>> changes_in(const Snapshot& snapshot);
  Result<std::vector<bool>> registered(const Snapshot& snapshot, std::span<const Change> changes);
  Result<Plan> plan(const Snapshot& snapshot, std::vector<Change> changes);
  std::uint64_t room_for_deltas();
  std::unique_ptr<detail::CopyTable> table_for(std::size_t rows);
  Status wait_for_users(gpu::StreamHandle stream);
  Result<bool> queue_deltas(std::span<const Change> changes, const Manifest& manifest, Flight& flight);
  Status queue(const Plan& plan, const Manifest& manifest, Flight& flight);
  Status queue_alone(std::span<const Change> changes, const Manifest& manifest, gpu::StreamHandle stream);
  bool has_landed(Flight& flight);
  void check_deltas(const Flight& flight);
  void collect();

  const std::shared_ptr<gpu::Device> device_;
  const Deltas deltas_;
  const std::shared_ptr<detail::SlabRegistrations> registrations_;
  std::vector<Row> rows_;
  /// For which `places_` has each row's index in the model.
  std::shared_ptr<const Architecture> architecture_;
  std::vector<std::uint32_t> places_;

  VersionNumber version_ = 0;
  bool is_mixed_ = false;
  bool has_kernels_ = true;  ///< Until a launch says otherwise.

  gpu::Event user_done_;
  gpu::Event refreshed_;
  std::set<void*> users_;  ///< Streams that may have work with the tensors.
  std::vector<Flight> flights_;
  std::unique_ptr<detail::CopyTable> spare_;
  bool has_delta_table_ = false;                     ///< It was made, or cannot be.
  std::unique_ptr<detail::DeltaTable> delta_table_;  ///< Null while a flight has it.
  std::optional<Error> bad_delta_;                   ///< Until a refresh has copied its tensor.
};

}  // namespace freshet
