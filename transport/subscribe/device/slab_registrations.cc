// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/device/slab_registrations.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "core/base/format.h"
#include "core/base/log.h"

namespace freshet::detail {
namespace {

constexpr Duration kEndSlabAtMost = std::chrono::milliseconds(100);

/// How many shares of this process keep each mapping.
struct Shares {
  Mutex mutex;
  std::map<const void*, long> of FRESHET_GUARDED_BY(mutex);
};

Shares& shares() {
  static Shares& all = *new Shares;  // Never destroyed: a table may end after static objects.
  return all;
}

/// Whether shares alone keep the mapping. A share that ends meanwhile lets go of its count before its mapping, so the
/// answer errs towards false.
bool is_unused(const std::shared_ptr<const void>& mapping) {
  MutexLock lock(shares().mutex);
  return mapping.use_count() <= shares().of[mapping.get()];
}

/// What this process' servers registered at an address. One driver serves all devices of a process, so an address has
/// one registration.
struct Place {
  long users = 0;  // None: it ends at this moment, has ended, or stays with a lost device's driver.
  gpu::Registration registration;
  std::weak_ptr<const void> owner;  // The registration's, which lives as long as the driver knows the address.
};

struct Places {
  Mutex mutex;
  std::map<const std::byte*, Place> at FRESHET_GUARDED_BY(mutex);
};

Places& places() {
  static Places& all = *new Places;  // Never destroyed: a table may end after static objects.
  return all;
}

/// The registration, for its last user to end; for others one of nothing.
gpu::Registration let_go(const std::byte* address) {
  MutexLock lock(places().mutex);
  Place& place = places().at[address];
  return --place.users == 0 ? std::move(place.registration) : gpu::Registration();
}

/// As let_go(). False: the registration could not end in that time, and the user keeps it.
bool end(const std::byte* address, Duration at_most) {
  gpu::Registration registration = let_go(address);
  if (registration.end(at_most)) return true;
  MutexLock lock(places().mutex);
  Place& place = places().at[address];  // It stays, since the registration keeps its owner.
  place.registration = std::move(registration);
  ++place.users;
  return false;
}

}  // namespace

SlabRegistrations::Share::Share(std::shared_ptr<const void> mapping) : mapping_(std::move(mapping)) {
  MutexLock lock(shares().mutex);
  ++shares().of[mapping_.get()];
}

SlabRegistrations::Share::~Share() {
  MutexLock lock(shares().mutex);
  if (--shares().of[mapping_.get()] == 0) shares().of.erase(mapping_.get());
}

std::shared_ptr<SlabRegistrations> SlabRegistrations::of(const std::shared_ptr<gpu::Device>& device) {
  // Never destroyed: a table may end after static objects.
  static Mutex& mutex = *new Mutex;
  static auto& all = *new std::map<const gpu::Device*, std::weak_ptr<SlabRegistrations>>;
  MutexLock lock(mutex);
  std::erase_if(all, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<SlabRegistrations>& known = all[device.get()];
  std::shared_ptr<SlabRegistrations> registrations = known.lock();
  if (registrations == nullptr) {
    registrations = std::make_shared<SlabRegistrations>(device);
    known = registrations;
  }
  return registrations;
}

SlabRegistrations::~SlabRegistrations() {
  for (const Entry& entry : entries_) {
    if (entry.is_registered) let_go(entry.memory.data());
  }
}

/// Whether the slab is registered; nothing: it is not known.
std::optional<bool> SlabRegistrations::find(const Snapshot::Piece& slab) {
  MutexLock lock(mutex_);
  for (const Entry& known : entries_) {
    if (known.memory.data() == slab.memory.data()) return known.is_registered;
  }
  return std::nullopt;
}

/// Its address stays, and no thread ends it meanwhile: the caller keeps the slab mapped too.
Result<bool> SlabRegistrations::ensure(const Snapshot::Piece& slab) {
  if (const std::optional<bool> known = find(slab)) return *known;
  Status status;
  {
    // Held while the driver registers the slab: so an address that the driver knows, and that has no place, is somebody
    // else's.
    MutexLock lock(places().mutex);
    if (const std::optional<bool> known = find(slab)) return *known;
    std::erase_if(places().at, [](const auto& one) { return one.second.users == 0 && one.second.owner.expired(); });
    Place& place = places().at[slab.memory.data()];
    if (place.users == 0 && !place.owner.expired()) return false;
    if (place.users == 0) {
      const auto owner = std::make_shared<const Share>(slab.mapping);
      auto registration = register_memory(slab, owner);
      if (!registration && registration.error().code() == Code::failed_precondition) {
        return fail(std::move(registration.error()));
      }
      if (registration) {
        place.registration = *std::move(registration);
        place.owner = owner;
      } else {
        status = fail(std::move(registration.error()));
      }
    }
    if (status) ++place.users;
    MutexLock entries_lock(mutex_);
    entries_.push_back({.memory = slab.memory,
                        .share = std::make_shared<const Share>(slab.mapping),
                        .is_registered = status.has_value()});
  }
  if (!status) say_why_not(slab, status.error());
  return status.has_value();
}

/// `owner` keeps the mapping as long as the driver knows the memory.
Result<gpu::Registration> SlabRegistrations::register_memory(const Snapshot::Piece& slab,
                                                             const std::shared_ptr<const Share>& owner) {
  const Bytes memory = slab.memory;
  auto registration = device_->register_host(memory.data(), memory.size(), gpu::HostAccess::read_only, owner);
  // Such a device may still take memory that this process can write: that of a subscriber that fetches.
  if (!registration && registration.error().code() == Code::unsupported) {
    registration = device_->register_host(memory.data(), memory.size(), gpu::HostAccess::read_write, owner);
  }
  if (registration || registration.error().code() != Code::already_exists) return registration;
  return fail(Code::failed_precondition,
              format("{}, by another part of this process: device {} might read pages that are not the version's; "
                     "unregister that memory, or end the process and start it anew",
                     registration.error().message(), device_->info().uuid.text()));
}

void SlabRegistrations::say_why_not(const Snapshot::Piece& slab, const Error& error) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(said_why_not_, true)) return;
  }
  log_line(LogLevel::warning,
           format("a slab of {} bytes cannot be registered with device {}, so tensors are copied from it slowly, and "
                  "the server's thread waits for them: {}",
                  slab.memory.size(), device_->info().uuid.text(), error.message()));
}

void SlabRegistrations::end_unused() {
  std::list<Entry> unused;
  {
    MutexLock lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (is_unused(entry->share->mapping())) unused.splice(unused.end(), entries_, entry);
      entry = next;
    }
  }
  unused.remove_if([](const Entry& entry) { return !entry.is_registered || end(entry.memory.data(), kEndSlabAtMost); });
  MutexLock lock(mutex_);
  entries_.splice(entries_.end(), unused);
}

std::size_t SlabRegistrations::count() {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.is_registered; }));
}

}  // namespace freshet::detail
