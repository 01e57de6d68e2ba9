// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a hub and the owner of one of its models are to each other: what the hub asks of the owner, and how the model
/// stands, as the hub tells.

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/manifest.h"
#include "transport/protocol/publisher/publisher_machine.h"
#include "transport/publisher.h"

namespace freshet {

/// The owner of one model of a hub: whoever has an arena. Called on the hub's thread, but for what is marked; must not
/// block.
class HubModel {
 public:
  virtual ~HubModel() = default;
  /// These segments may be written again. Any thread.
  virtual void on_free(std::span<const SegmentIndex> segments) = 0;
  /// The memory of these segments, of a version that was committed. It stays until remove() has returned.
  virtual std::vector<Bytes> bytes_of(std::span<const SegmentIndex> segments) const = 0;
  /// The next version must be numbered above this.
  virtual void on_number_floor(VersionNumber floor) = 0;
  /// What is current of the model is to be swapped in the directory; PublisherHub::current_swapped() takes the answer.
  /// One that follows another publisher is never asked.
  virtual void swap_current(const protocol::Current& /*expected*/, const protocol::Current& /*desired*/) {}
  /// What the directory was last seen to have, if somebody else can change it there; all zero otherwise. Cheap.
  virtual protocol::Current recorded() const { return {}; }
  /// Directory::Claim::tend(), for one that has a claim. Reads and writes small files of this host.
  virtual Result<bool> tend() { return false; }
  virtual PublisherStat stat(const std::vector<SubscriberStat>& sessions) const = 0;
  /// How many bytes should be free and are not, so that the next version finds room: asked after each commit.
  virtual std::uint64_t room_wanted() const { return 0; }
};

/// Tells of a version in the state of its publisher or relay.
void note_version(PublisherStat& stat, const Manifest& manifest, const std::string& source);

/// How a model stood when its hub's thread last looked, which is when something last happened, or 50 ms later where
/// there are many subscribers.
struct ModelStanding {
  Time at{};  ///< When that was.
  std::vector<SubscriberStat> sessions;
  CurrentVersion current;
  bool current_kept = true;
  VersionNumber candidate = 0;
  std::string activation_failure;
  Duration mixed{};

  /// What went stale goes on doing so since then.
  void put_into(PublisherStat& stat, Time now) const {
    for (SubscriberStat& one : stat.subscribers) {
      if (one.staleness > Duration(0)) *one.staleness += std::max(now - at, Duration(0));
    }
    stat.current = current;
    stat.current_kept = current_kept;
    stat.candidate = candidate;
    stat.activation_failure = activation_failure;
    stat.mixed = mixed;
  }
};

/// The standings of a hub's models, for those who must not wait for its thread. Any thread.
class Standings {
 public:
  /// Never null: a model that is not there any more was lost to another publisher.
  std::shared_ptr<const ModelStanding> of(const std::string& model) const FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto at = standings_.find(model);
    return at == standings_.end() ? std::make_shared<const ModelStanding>() : at->second;
  }
  void tell(const std::string& model, std::shared_ptr<const ModelStanding> standing) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    standings_[model].swap(standing);  // The one before goes when the lock is free.
  }
  void forget(const std::string& model) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    standings_.erase(model);
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<const ModelStanding>> standings_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
