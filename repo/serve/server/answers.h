// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Carries a question out on a repository. Blocking; any thread.

#include <functional>
#include <list>
#include <memory>

#include "core/base/mutex.h"
#include "repo/provider_repository.h"
#include "repo/serve/served_owner.h"
#include "repo/serve/server/bulk_service.h"
#include "repo/serve/server/server_machine.h"
#include "repo/serve/wire/questions.h"

namespace freshet::rpc {

/// Records of the versions that were read lately, so that each of the many reads of a version does not decode its
/// manifest again. Any thread.
class RecordCache {
 public:
  Result<std::shared_ptr<const VersionRecord>> get(const ProviderRepository& repository, const VersionName& name,
                                                   const VersionId& id) FRESHET_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kKept = 32;
  Mutex mutex_;
  std::list<std::shared_ptr<const VersionRecord>> recent_ FRESHET_GUARDED_BY(mutex_);
};

/// The outcome: a reply, or the upload that a put needs first.
struct Outcome {
  Encoded reply;
  std::shared_ptr<Upload> upload;
};

struct Answering {
  ProviderRepository& repository;
  RecordCache& records;
  BulkService& bulk;
  std::uint64_t session = 0;  ///< Whose question it is.
  std::string owner;          ///< Its client's key; empty without one.
  /// An encoded Progress of this question; any thread, cheap.
  std::function<void(Encoded progress)> progress;
};

/// The error for a client without the right to a question: "retire: this needs operator rights; …". Where a server has
/// no keys, whoever can connect has all of them.
Error lacking(const Terms& terms);

/// To whoever asks a standby.
Error standby_error(const ServedOwner& owner);

Outcome answer(const Answering& with, const Received<wire::Request>& question);
/// Stores the version of a put whose tensors came. An upload again when others turn out to be
/// needed: what it inherits went away meanwhile.
Outcome store(ProviderRepository& repository, std::uint64_t request, const Upload& upload);

}  // namespace freshet::rpc
