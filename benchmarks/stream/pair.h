// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A publisher and a subscriber of one model, and updates from one to the other, checked and timed.

#include <memory>
#include <string>

#include "benchmarks/common/statistics.h"
#include "benchmarks/stream/stream_peer.h"

namespace freshet::benchmarks {

/// A folder under the temporary one, removed with everything in it. One thread at a time.
class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> create();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  /// A folder in it for this user alone, as a host directory wants it.
  Result<std::string> folder(const std::string& name) const;

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// How an update came about, in milliseconds from the start of publish().
struct UpdateTimes {
  double blocked_ms = 0;
  double committed_ms = 0;
  double swapped_ms = 0;
  double commit_to_callback_us = 0;
  Published published;
  Swapped swapped;
};

/// Publishes the trainer's model as it is, and waits until that version is served there.
Result<UpdateTimes> update(PublisherPeer& publisher, SubscriberPeer& subscriber, std::uint64_t named_tensors = 0);

/// corrupt when what the subscriber serves is not what the trainer has, byte for byte.
Status check_same(PublisherPeer& publisher, SubscriberPeer& subscriber);

}  // namespace freshet::benchmarks
