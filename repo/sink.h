// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The repository's subscriber: wants every version, writes each straight from the publisher's memory into a
/// repository, and keeps going when it cannot (a full disk): it says so, and catches up with the next version, whose
/// owner map names all that was missed. The newest version that could not be stored is kept pinned and tried again
/// until a newer one comes, so that the last version of a run is not lost to a disk that had room a minute later.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/clock.h"
#include "core/ids.h"
#include "core/result.h"
#include "repo/repository.h"
#include "transport/security.h"

namespace freshet {

struct SinkOptions {
  std::string model;
  std::string at;
  SecurityOptions security;
  std::string directory;
  std::string label = "repository";
  Duration retry_after = std::chrono::seconds(1);  ///< Between attempts to store a version that could not be.
  bool dedup = false;   ///< As PutOptions has it: tensors that are stored already under another name are inherited.
  bool deltas = false;  ///< As PutOptions has it: what changed a little is kept as lossless differences.
  struct Event {
    VersionName version;  ///< As it is stored, or as the publisher names it when it is not.
    Status status;
    std::uint64_t own_bytes = 0;   ///< Written for it: its own, and those of versions that were never stored here.
    std::uint64_t gap_before = 0;  ///< Versions between the last stored one and this that are not in the repository.
    Duration put_time{};
  };
  /// Called on the sink's thread once for each version that was stored, and once for each that failed to be.
  std::function<void(const Event&)> on_event;
};

struct SinkStatus {
  std::uint64_t stored = 0;
  std::uint64_t gaps = 0;    ///< Versions that will not be in the repository.
  VersionNumber newest = 0;  ///< In the repository.
  bool failing = false;      ///< The last put failed.
  bool connected = false;    ///< A publisher answers.
  std::string last_error;
};

/// Owns a thread. Any thread.
class Sink {
 public:
  /// `repository` must outlive the sink. Goes on after the newest version that it has of the model. Returns at once:
  /// whoever comes first, sink or publisher, waits for the other.
  static Result<std::unique_ptr<Sink>> open(Repository& repository, SinkOptions options);
  ~Sink();
  SinkStatus status() const;

 private:
  class Impl;
  explicit Sink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
