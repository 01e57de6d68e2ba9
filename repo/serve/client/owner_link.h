// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The connection to the server that owns a repository, made anew when it is dead: to the owner, wherever it is by
/// then. Private to this folder.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/serve/client/link.h"
#include "repo/serve/client/owner_search.h"
#include "repo/serve/remote_repository.h"

namespace freshet::rpc {

/// Any thread.
class OwnerLink {
 public:
  /// `options` outlive the object.
  OwnerLink(Link::Options first, const RemoteRepositoryOptions& options)
      : first_(std::move(first)), options_(options) {}

  /// One thread searches for the owner. The others wait for the end of its search. If it fails, a call that has waited
  /// less than `takeover` searches on, and the others get the error.
  Result<std::shared_ptr<Link>> get() FRESHET_EXCLUDES(mutex_);
  /// True: the error of a call says that the connection is of no use any more, and get() may find another one. Either
  /// the connection is dead, or its server does not own the repository any more, as far as its error tells.
  bool is_lost(const Link& link, const Error& error) FRESHET_EXCLUDES(mutex_);
  bool may_move() const FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return known_.moves;
  }

 private:
  struct Known : OwnerSearch::Known {
    std::optional<std::string> repository;  ///< What `known_by` told.
    std::shared_ptr<Link> doubted_link;     ///< Taken again where nobody else owns the repository.
  };
  Result<std::shared_ptr<Link>> search(Known& known) const;
  Result<std::shared_ptr<Link>> open(const ServedOwner& server, Time deadline) const;
  ServedOwner ask_source(Time deadline) const;
  /// Whether the same repository answers as before.
  Status recognize(Link& opened, Known& known, Time deadline) const;

  const Link::Options first_;
  const RemoteRepositoryOptions& options_;
  mutable Mutex mutex_;
  CondVar searched_;
  std::shared_ptr<Link> link_ FRESHET_GUARDED_BY(mutex_);
  Known known_ FRESHET_GUARDED_BY(mutex_);
  bool searching_ FRESHET_GUARDED_BY(mutex_) = false;
  std::uint64_t searches_ FRESHET_GUARDED_BY(mutex_) = 0;   ///< That failed.
  std::optional<Error> failed_ FRESHET_GUARDED_BY(mutex_);  ///< The last one of them.
  Time believed_until_ FRESHET_GUARDED_BY(mutex_){};
};

}  // namespace freshet::rpc
