#pragma once

/// Reaches providers wherever they are now: at the address that is known last of them, and when they are not there, at
/// the one that another provider knows. Whoever answers must be the provider that was meant: another one that listens
/// where it used to is not taken for it.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/clock.h"
#include "core/mutex.h"
#include "core/result.h"
#include "repo/cluster/addresses.h"
#include "repo/cluster/placement.h"
#include "repo/repository.h"

namespace freshet::cluster {

/// Any thread.
class ProviderFinder {
 public:
  /// Connects to an address; unavailable when nobody answers there.
  using Dial = std::function<Result<std::shared_ptr<Repository>>(const std::string& address)>;
  /// `own`, if there is one, is a provider in this process, which is asked for what it knows; it outlives the finder.
  explicit ProviderFinder(Dial dial, Repository* own = nullptr) : dial_(std::move(dial)), own_(own) {}

  /// What a ClusterRepository asks for (cluster::Connect). The error is that of the address which is known last.
  Result<std::shared_ptr<Repository>> reach(const Provider& provider) FRESHET_EXCLUDES(mutex_);
  /// Whom to ask where somebody is.
  void know(const Placement& placement) FRESHET_EXCLUDES(mutex_);
  void learn(const AddressBook& book) FRESHET_EXCLUDES(mutex_);
  std::string address_of(const Provider& provider) const FRESHET_EXCLUDES(mutex_);

 private:
  Result<std::shared_ptr<Repository>> reach_at(const std::string& id, const std::string& address)
      FRESHET_EXCLUDES(mutex_);
  /// Asks everybody but that provider where others are.
  void ask_around(const std::string& id) FRESHET_EXCLUDES(mutex_);

  const Dial dial_;
  Repository* const own_;
  mutable Mutex mutex_;
  std::map<std::string, std::string> placed_ FRESHET_GUARDED_BY(mutex_);  ///< Where placements say that they are.
  AddressBook book_ FRESHET_GUARDED_BY(mutex_);
  /// When everybody was asked last for one that is away: not for each call that finds it away.
  std::map<std::string, Time> asked_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::cluster
