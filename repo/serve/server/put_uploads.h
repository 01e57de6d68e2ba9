// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A put on the server: which tensors are wanted of its client, and storing them. The wanted tensors may change while
/// they come, if somebody retires a version that the put inherits from: then the put wants another upload. Private to
/// this folder.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/model/manifest.h"
#include "repo/provider_repository.h"
#include "repo/serve/server/answers.h"
#include "repo/serve/server/server_machine.h"

namespace freshet::rpc {

/// The plan of an Upload.
class UploadPlan {
 public:
  virtual ~UploadPlan() = default;
  /// When all its bytes are there.
  virtual Outcome store(ProviderRepository& repository, std::uint64_t request, const Upload& upload) const = 0;
};

/// The parts of a Put that stay while its tensors come.
struct PutPlan final : UploadPlan {
  Outcome store(ProviderRepository& repository, std::uint64_t request, const Upload& upload) const override;

  Manifest manifest;
  Repository::PutOptions options;
  std::vector<BroughtTensor> brought;
  int uploads = 0;  ///< That were asked for.
};

/// The upload that the put needs, or its version's name when it needed none.
struct Stored {
  std::shared_ptr<Upload> upload;
  VersionName name;
};

/// Asks for what is not stored; a put that needs nothing is stored at once.
Result<Stored> upload_or_store(ProviderRepository& repository, PutPlan plan);

/// Parts of a put by parts. `open` keeps the put until they are there. invalid_argument for nonsense, also for so many
/// bytes that their number overflows.
Result<std::shared_ptr<Upload>> upload_of_parts(const PutToken& token, std::vector<TensorPart> parts,
                                                std::shared_ptr<const void> open);

}  // namespace freshet::rpc
