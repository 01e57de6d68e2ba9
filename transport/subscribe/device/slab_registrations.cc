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

/// One driver serves all devices of a process, so an address has one registration.
class SlabRegistrations::Registered {
 public:
  /// `registration` is begun after this object is made, and ends before it ends: so an address that the driver knows,
  /// and that has no such object, is somebody else's.
  explicit Registered(const std::byte* address) : address_(address) {
    MutexLock lock(known().mutex);
    ++known().at[address_].count;
  }
  ~Registered() {
    registration_ = gpu::Registration();
    MutexLock lock(known().mutex);
    if (--known().at[address_].count == 0) known().at.erase(address_);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  static void share(const std::shared_ptr<Registered>& made, gpu::Registration registration) {
    made->registration_ = std::move(registration);
    MutexLock lock(known().mutex);
    known().at[made->address_].usable = made;
  }
  /// Null: nobody's, that can be used. `is_ours`: this process' servers begin or end it.
  static std::shared_ptr<Registered> find(const std::byte* address, bool& is_ours) {
    MutexLock lock(known().mutex);
    const auto found = known().at.find(address);
    is_ours = found != known().at.end();
    return is_ours ? found->second.usable.lock() : nullptr;
  }
  /// Lets go of it; the last user ends it. An error: it stays, and nobody else gets it.
  static Status let_go(std::shared_ptr<Registered>& registered, Duration at_most) {
    if (registered == nullptr) return {};
    bool is_last = false;
    {
      MutexLock lock(known().mutex);
      is_last = registered.use_count() == 1;
      if (is_last) known().at[registered->address_].usable.reset();
    }
    if (is_last) FRESHET_TRY(registered->registration_.end(at_most));
    registered = nullptr;
    return {};
  }

 private:
  struct Place {
    long count = 0;
    std::weak_ptr<Registered> usable;
  };
  struct Known {
    Mutex mutex;
    std::map<const std::byte*, Place> at FRESHET_GUARDED_BY(mutex);
  };
  static Known& known() {
    static Known& all = *new Known;  // Never destroyed: a table may end after static objects.
    return all;
  }

  const std::byte* const address_;
  gpu::Registration registration_;
};

Result<bool> SlabRegistrations::ensure(const Snapshot::Piece& slab) {
  std::list<Entry>::iterator entry;
  {
    MutexLock lock(mutex_);
    for (const Entry& known : entries_) {
      if (known.memory.data() == slab.memory.data()) return known.registered != nullptr;
    }
    // Another thread finds the entry, and copies without the registration meanwhile.
    entry = entries_.emplace(entries_.end(), slab);
  }
  // Its address stays, and nobody ends it: the caller keeps the slab mapped too.
  auto registered = register_memory(*entry);
  const bool is_refused = !registered && registered.error().code() != Code::failed_precondition;
  if (is_refused) say_why_not(*entry, registered.error());
  MutexLock lock(mutex_);
  if (is_refused) return false;
  if (registered && *registered != nullptr) {
    entry->registered = *std::move(registered);
    return true;
  }
  entries_.erase(entry);  // The next call asks again.
  if (registered) return false;
  return fail(std::move(registered.error()));
}

/// Null: another device's registration begins or ends at this moment.
Result<std::shared_ptr<SlabRegistrations::Registered>> SlabRegistrations::register_memory(const Entry& entry) {
  const Bytes memory = entry.memory;
  auto made = std::make_shared<Registered>(memory.data());
  auto registration = device_->register_host(memory.data(), memory.size(), gpu::HostAccess::read_only, entry.share);
  // Such a device may still take memory that this process can write: that of a subscriber that fetches.
  if (!registration && registration.error().code() == Code::unsupported) {
    registration = device_->register_host(memory.data(), memory.size(), gpu::HostAccess::read_write, entry.share);
  }
  if (registration) {
    Registered::share(made, std::move(*registration));
    return made;
  }
  made = nullptr;
  if (registration.error().code() != Code::already_exists) return fail(std::move(registration.error()));
  bool is_ours = false;
  auto of_other = Registered::find(memory.data(), is_ours);
  if (is_ours) return of_other;
  return fail(Code::failed_precondition,
              format("{}, by another part of this process: device {} might read pages that are not the version's; "
                     "unregister that memory, or end the process and start it anew",
                     registration.error().message(), device_->info().uuid.text()));
}

void SlabRegistrations::say_why_not(const Entry& entry, const Error& error) {
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
  unused.remove_if([](Entry& entry) { return Registered::let_go(entry.registered, kEndSlabAtMost).has_value(); });
  MutexLock lock(mutex_);
  entries_.splice(entries_.end(), unused);
}

std::size_t SlabRegistrations::count() {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.registered != nullptr; }));
}

}  // namespace freshet::detail
