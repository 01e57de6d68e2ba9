// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A version as a subscriber serves it: everything a reader needs, prepared before the swap.

#include <memory>
#include <optional>
#include <vector>

#include "core/arena/slab.h"
#include "core/model/manifest.h"
#include "core/model/tensor.h"
#include "transport/protocol/messages.h"
#include "transport/shm/door_guest.h"
#include "transport/subscribe/fetch/version_fetcher.h"
#include "transport/subscriber.h"

namespace freshet::detail {

/// Immutable while it is served. Made and ended on the subscriber's loop thread.
struct ServedVersion {
  std::shared_ptr<const Manifest> manifest;
  std::vector<Bytes> tensors;                      ///< By tensor index, into the slabs or the fetched memory.
  std::vector<std::shared_ptr<const Slab>> slabs;  ///< Mapped as long as this version is there.
  /// Of a mapped version: by tensor index, its bytes in that GPU's memory too; empty where they are not. Or none at
  /// all.
  std::vector<Bytes> device_tensors;
  std::vector<std::shared_ptr<const Slab>> device_slabs;
  std::optional<gpu::Uuid> device;
  protocol::SessionId session = 0;  ///< Through whose door it came.
  /// That door. Open as long as this version is there, whatever else goes wrong with it: to the publisher, a closed one
  /// means that nobody reads here any more.
  std::shared_ptr<const shm::DoorGuest> door;
  std::shared_ptr<const FetchedMemory> fetched;  ///< Null for one that is mapped.
  Update update;

  VersionNumber number() const { return manifest->name.number; }
};

using Slabs = std::vector<std::shared_ptr<const Slab>>;

/// The slabs of a GPU's memory that came through a door; null is one that could not be mapped.
struct DeviceSlabs {
  Slabs slabs;
  std::optional<gpu::Uuid> device;  ///< None: this process takes none.
};

/// The architectures that this process can decode manifests of, the last few. One thread at a time.
class ArchitectureCache {
 public:
  void add(std::shared_ptr<const Architecture> architecture);
  std::shared_ptr<const Architecture> find(const Digest& digest) const;

 private:
  std::vector<std::shared_ptr<const Architecture>> architectures_;  ///< The latest last.
};

/// The manifest that a grant carries, which is hostile until then: of that model and number. corrupt names what is
/// wrong. An architecture that came along is added to the cache.
Result<std::shared_ptr<const Manifest>> manifest_of(const std::string& model, const protocol::Grant& grant,
                                                    ArchitectureCache& architectures);

/// A version that was fetched and proved.
std::unique_ptr<ServedVersion> make_served_version(std::shared_ptr<const FetchedMemory> fetched);

/// Checks a grant, which is hostile until then, against what it claims and against the slabs that came through the
/// door, and makes a version of it. corrupt names what is wrong. An architecture that came along is added to the cache.
Result<std::unique_ptr<ServedVersion>> make_served_version(const std::string& model, const protocol::Grant& grant,
                                                           const Slabs& slabs, ArchitectureCache& architectures,
                                                           const DeviceSlabs& on_device = {});

/// Takes the tensors that no server needs (Role) out of a mapped version.
void leave_unserved(ServedVersion& version);

}  // namespace freshet::detail
