// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The repository's subscriber. A sink wants every version, and writes each one directly from the publisher's memory
/// into a repository. If it cannot store a version (a full disk), it reports the failure and catches up with the next
/// version: the owner map of that version names all missed segments. The sink keeps the newest failed version pinned,
/// and tries it again until a newer one comes, unless another try cannot help (corrupt bytes, for example). So the last
/// version of a run is not lost if the disk has room a minute later.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "core/model/manifest.h"
#include "repo/repository.h"
#include "transport/security.h"

namespace freshet {

struct SinkOptions {
  std::string model;
  std::vector<std::string> at;  ///< As SubscriberOptions has it.
  SecurityOptions security;
  std::string directory;
  std::string label = "repository";
  Duration retry_after = std::chrono::seconds(1);  ///< Between attempts to store a failed version.
  bool dedup = false;   ///< As in PutOptions: inherits tensors that are stored already under another name.
  bool deltas = false;  ///< As in PutOptions: keeps slightly changed tensors as lossless differences.
  struct Event {
    VersionName version;  ///< The stored name; of a version that is not stored, the publisher's name.
    Status status;
    std::uint64_t own_bytes = 0;  ///< Bytes written for it: its own, and those of versions that were never stored here.
    std::uint64_t gap_before = 0;  ///< Missing versions between the last stored version and this one.
    Duration put_time{};
    VersionNumber published = 0;  ///< The publisher's number; the stored name has another one if numbers began anew.
    std::uint64_t step = 0;       ///< Of the training loop, as the publisher told it; so are the metrics.
    Metrics metrics;
  };
  /// Called on the sink's thread, once for each stored version, and once for each version that could not be stored.
  std::function<void(const Event&)> on_event;
};

struct SinkStatus {
  std::uint64_t stored = 0;
  std::uint64_t gaps = 0;    ///< Versions that will not be in the repository.
  VersionNumber newest = 0;  ///< In the repository.
  bool failing = false;      ///< The last put failed.
  bool connected = false;    ///< A publisher answers.
  std::string last_error;
  /// The publisher's number of the newest stored version. 0: none of the present publisher's numbers is known to be
  /// stored. A program that waits for a version of its publisher compares this number, as `newest` may be another one:
  /// a publisher's numbers may begin anew (SubscriberOptions::after_incarnation).
  VersionNumber published = 0;
  VersionNumber announced = 0;  ///< The publisher's newest number that this sink has heard of.
};

/// Owns a thread. Any thread.
class Sink {
 public:
  /// `repository` must outlive the sink. The sink goes on after the newest version of the model in the repository.
  /// Returns at once. Sink and publisher may start in any order.
  static Result<std::unique_ptr<Sink>> open(Repository& repository, SinkOptions options);
  /// Ends a put that is under way, without an event. Wait for status().published if the version is needed.
  ~Sink();
  SinkStatus status() const;

  /// Stores the versions that the publisher has announced until this call, and then ends: the sink takes no version any
  /// more. Waits up to `at_most`, but not for a publisher that is gone, or for a version that cannot be stored. False:
  /// a version that the sink had is not stored, or the time was over.
  bool finish(Duration at_most);

 private:
  class Impl;
  explicit Sink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
