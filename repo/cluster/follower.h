#pragma once

/// Follows all providers of the repository that this one belongs to, and lets it answer for all of them. A thread for
/// each provider asks for its changes; another one looks whether the placement has changed. A provider that is alone
/// follows nobody.

#include <memory>
#include <string>

#include "core/clock.h"
#include "core/result.h"
#include "repo/cluster/member.h"
#include "repo/cluster/replica.h"
#include "repo/repository.h"

namespace freshet::cluster {

/// Any thread. Destroying it ends the answers for all, and takes as long as a question that is on its way.
class ProviderFollower {
 public:
  struct Options {
    FollowTimes times;
    Duration look = std::chrono::milliseconds(500);  ///< Between looks at the placement.
  };
  /// `own`, whose id among the providers is `self`, outlives it. `connect` is never asked for `self`.
  static Result<std::unique_ptr<ProviderFollower>> start(Repository& own, std::string self, Connect connect,
                                                         Options options);
  static Result<std::unique_ptr<ProviderFollower>> start(Repository& own, std::string self, Connect connect) {
    return start(own, std::move(self), std::move(connect), Options());
  }
  virtual ~ProviderFollower() = default;
  virtual const Replica& replica() const = 0;
};

}  // namespace freshet::cluster
