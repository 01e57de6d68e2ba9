// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Publishing versions that somebody wants: unlike a training loop, which skips a version rather than wait, a command
/// waits for room, and for the seal. One thread at a time.

#include <span>
#include <string>

#include "bindings/cli/frame/program.h"
#include "transport/publisher.h"

namespace freshet::cli {

/// Publisher::open(); unavailable, to be tried again, when somebody else has the name now. Waits for a directory of
/// many hosts that is away: its server may start later. cancelled when interrupted meanwhile.
Result<std::unique_ptr<Publisher>> open_patiently(Program& program, const PublisherOptions& options);

class PatientPublisher {
 public:
  /// Both are borrowed.
  PatientPublisher(Program& program, Publisher& publisher, std::string model)
      : program_(program), publisher_(publisher), model_(std::move(model)) {}

  /// Publishes, waits for the seal, prints the line, with `more` in it at the end. cancelled when interrupted.
  Status publish(std::span<const TensorView> tensors, const PublishOptions& options, const Json& more = Json::object());

 private:
  Result<PublishReceipt> publish_patiently(std::span<const TensorView> tensors, const PublishOptions& options);
  Result<CommitReport> wait_sealed(VersionNumber version);
  Status print(const CommitReport& report, const PublishReceipt& receipt, const Json& more);

  Program& program_;
  Publisher& publisher_;
  std::string model_;
};

}  // namespace freshet::cli
