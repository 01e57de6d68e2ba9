#pragma once

/// Tells the other providers where this one is now, and what it hears of others, as long as it lives. A provider that
/// belongs to nobody yet tells nothing.

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
  };
  /// `own`, whose id is `self`, outlives it. `address` empty: it only passes on what others say.
  static Result<std::unique_ptr<AddressKeeper>> start(Repository& own, std::string self, std::string address,
                                                      std::shared_ptr<ProviderFinder> finder, Options options);
  virtual ~AddressKeeper() = default;
};

}  // namespace freshet::cluster
