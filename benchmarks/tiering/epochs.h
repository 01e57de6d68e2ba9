// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Epochs over sets: how long they take, and what they ask of the slow folder, without tiers, with them, and with what
/// else one would do.

#include <map>
#include <memory>
#include <string>

#include "benchmarks/common/report.h"
#include "benchmarks/tiering/job.h"

namespace freshet::benchmarks {

struct Settings {
  std::string folder;  ///< Of this run alone.
  bool quick = false;
  int rounds = 5;
  std::string monarch;       ///< Its library; "" when there is none.
  bool drop_caches = false;  ///< The kernel forgets all pages, names and attributes between epochs. As root.
};

/// A set that was written, and where it is shown.
struct StagedSet {
  TrainingSet set;
  std::string source;    ///< In the slow folder.
  std::string uncached;  ///< The same, past the kernel's cache.
  std::string fast;      ///< On the fast disk, where the tiers are.
  std::string list;
  std::uint64_t sum = 0;
};

/// How a set is read.
struct Reading {
  unsigned readers = 4;
  bool in_python = false;
  std::string suffix;     ///< Of the ratios' names; "" for those that the page is about.
  bool restarts = false;  ///< Also a job that is killed and begins anew.
  int rounds = 0;         ///< 0: as the settings say.
};

/// One thread at a time.
class Epochs {
 public:
  /// unavailable without FUSE.
  static Result<std::unique_ptr<Epochs>> open(const Settings& settings, Report& report);

  Result<StagedSet> stage(TrainingSet set);
  /// Three epochs each way.
  Status compare(const StagedSet& set, const Reading& reading);
  /// An epoch with first_open = "wait", past the kernel's cache.
  Status compare_uncached(const StagedSet& set, const std::string& suffix);
  /// Several processes that each read the whole set.
  Status share_copies(const StagedSet& set);
  /// Room for half of the set.
  Status half_fits(const StagedSet& set);
  /// The tier has room for half of the set; the program tells the keeper its order.
  Status know_order(const StagedSet& set);

 private:
  Epochs(const Settings& settings, Report& report) : settings_(settings), report_(report) {}

  TrainerOptions trainer_of(const StagedSet& set, const Reading& reading, const std::string& folder) const;
  /// The slow folder's cache and the pages of copies go. `copies` may be "", or not there yet.
  Status forget(const std::string& copies);
  /// All else too, where that is asked for.
  Status drop_caches();
  /// The kernel knows nothing of the slow folder, and counting begins.
  Status begin();
  /// Operations at the source count from begin() on.
  Status three_epochs(const std::string& subject, Trainer& trainer, const std::string& copies);
  Status without_tiers(const StagedSet& set, const Reading& reading);
  Status with_tiers(const StagedSet& set, const Reading& reading, const std::string& subject, const std::string& more);
  Status restart(const StagedSet& set, const Reading& reading, const std::string& subject, const Tiers& tiers);
  Status on_fast_disk(const StagedSet& set, const Reading& reading);
  Status after_rsync(const StagedSet& set, const Reading& reading);
  Status with_monarch(const StagedSet& set, const Reading& reading);
  Status report_case(const std::string& name, const Reading& reading);

  const Settings settings_;
  Report& report_;
  std::unique_ptr<SlowFolder> slow_;
  std::unique_ptr<SlowFolder> slow_uncached_;
  std::map<std::string, Samples> samples_;  ///< Of the case that is measured, by subject.
  std::map<std::string, std::string> units_;
  void add(const std::string& subject, const std::string& unit, double value) {
    samples_[subject].add(value);
    units_[subject] = unit;
  }
};

}  // namespace freshet::benchmarks
