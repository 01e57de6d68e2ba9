// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A put on the server: which tensors are wanted of its client, and storing them. What is wanted may change while they
/// come, when somebody retires what the put inherits: then an upload is wanted again. Private to this folder.

#include <memory>

#include "core/base/result.h"
#include "core/model/manifest.h"
#include "repo/provider_repository.h"
#include "repo/serve/server/server_machine.h"

namespace freshet::rpc {

/// What stays of a Put while its tensors come.
struct PutPlan {
  Manifest manifest;
  Repository::PutOptions options;
  int uploads = 0;  ///< That were asked for.
};

/// The upload that the put needs, or its version's name when it needed none.
struct Stored {
  std::shared_ptr<Upload> upload;
  VersionName name;
};

/// Asks for what is not stored; a put that needs nothing is stored at once.
Result<Stored> upload_or_store(ProviderRepository& repository, PutPlan plan);

}  // namespace freshet::rpc
