#pragma once

/// The repository's subscriber: wants every version, writes each straight from the publisher's memory into a
/// repository, and keeps going when it cannot (a full disk): it says so, records the gap, and catches up with the next
/// version, whose owner map names all that was missed.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/result.h"
#include "repo/repository.h"

namespace freshet {

struct SinkOptions {
  std::string model;
  std::string at;
  std::string directory;
  std::string label = "repository";
  /// Called on the sink's thread after each version that was stored, or failed to be.
  struct Event {
    VersionName version;
    Status status;
    std::uint64_t own_bytes = 0;
    std::uint64_t gap_before = 0;
    Duration put_time{};
  };
  std::function<void(const Event&)> on_event;
};

struct SinkStatus {
  std::uint64_t stored = 0;
  std::uint64_t gaps = 0;
  VersionNumber newest = 0;
  bool failing = false;  ///< The last put failed.
  std::string last_error;
};

/// Owns a thread. Any thread.
class Sink {
 public:
  /// `repository` must outlive the sink.
  static Result<std::unique_ptr<Sink>> open(Repository& repository, SinkOptions options);
  ~Sink();
  SinkStatus status() const;

 private:
  class Impl;
  explicit Sink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
