#pragma once

/// Tells the other providers where this one is now, and what it hears of others, as long as it lives. A provider that
/// belongs to nobody yet tells nothing. What it cannot write down at first (its disk is full), it tries again.

#include <memory>
#include <string>

#include "core/clock.h"
#include "core/result.h"
#include "repo/cluster/finder.h"
#include "repo/repository.h"

namespace freshet::cluster {

/// Any thread. Destroying it takes as long as a question that is on its way.
class AddressKeeper {
 public:
  struct Options {
    Duration look = std::chrono::seconds(1);   ///< Between looks at what is known here.
    Duration again = std::chrono::seconds(5);  ///< Until one that was away is tried again.
    /// Looks at most so far apart while its own address cannot be written down; they begin at `look`, and double.
    Duration look_max = std::chrono::seconds(30);
  };
  /// `own`, whose id is `self`, outlives it. `address` empty: it only passes on what others say. invalid_argument for
  /// what cannot be an address.
  static Result<std::unique_ptr<AddressKeeper>> start(Repository& own, std::string self, std::string address,
                                                      std::shared_ptr<ProviderFinder> finder, Options options);
  virtual ~AddressKeeper() = default;
};

}  // namespace freshet::cluster
