// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/device/slab_registrations.h"

#include <algorithm>
#include <chrono>
#include <map>
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

Result<bool> SlabRegistrations::ensure(const Snapshot::Piece& slab) {
  std::list<Entry>::iterator entry;
  {
    MutexLock lock(mutex_);
    for (const Entry& known : entries_) {
      if (known.memory.data() == slab.memory.data()) return known.is_registered;
    }
    // Another thread finds the entry, and copies without the registration meanwhile.
    entry = entries_.emplace(entries_.end(), slab);
  }
  // Its address stays, and nobody ends it: the caller keeps the slab mapped too.
  const Status status = register_memory(*entry);
  if (status) {
    MutexLock lock(mutex_);
    return entry->is_registered = true;
  }
  if (status.error().code() != Code::failed_precondition) {
    say_why_not(*entry, status.error());
    return false;
  }
  MutexLock lock(mutex_);
  entries_.erase(entry);
  return fail(status.error());
}

Status SlabRegistrations::register_memory(Entry& entry) {
  const Bytes memory = entry.memory;
  auto registration = device_->register_host(memory.data(), memory.size(), gpu::HostAccess::read_only, entry.share);
  // Such a device may still take memory that this process can write: that of a subscriber that fetches.
  if (!registration && registration.error().code() == Code::unsupported) {
    registration = device_->register_host(memory.data(), memory.size(), gpu::HostAccess::read_write, entry.share);
  }
  if (!registration) return fail(std::move(registration.error()));
  entry.registration = std::move(*registration);
  return {};
}

void SlabRegistrations::say_why_not(const Entry& entry, const Error& error) {
  if (error.code() == Code::already_exists) return;  // The program registered the memory itself: nothing is slow.
  {
    MutexLock lock(mutex_);
    if (std::exchange(said_why_not_, true)) return;
  }
  log_line(LogLevel::warning,
           format("a slab of {} bytes cannot be registered with device {}, so tensors are copied from it slowly, and "
                  "the server's thread waits for them: {}",
                  entry.memory.size(), device_->info().uuid.text(), error.message()));
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
  unused.remove_if([](Entry& entry) { return entry.registration.end(kEndSlabAtMost).has_value(); });
  MutexLock lock(mutex_);
  entries_.splice(entries_.end(), unused);
}

std::size_t SlabRegistrations::count() {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.is_registered; }));
}

}  // namespace freshet::detail
