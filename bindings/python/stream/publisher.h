// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Publisher, as Python holds it: it may be closed while another thread is inside.

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/python/gil.h"
#include "bindings/python/graph.h"
#include "bindings/python/tensors.h"
#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "transport/publisher.h"

namespace freshet::python {

using MetricsGiven = std::vector<std::pair<std::string, double>>;
using TagsGiven = std::vector<std::pair<std::string, std::string>>;

struct PublishGiven {
  std::uint64_t step = 0;
  MetricsGiven metrics;
  TagsGiven tags;
  bool all_changed = false;
  std::optional<std::vector<std::uint32_t>> changed;
  std::optional<Graph> graph;
  bool sync = false;
};

/// What is shared with the calls that are inside while it is closed.
struct OpenPublisher {
  std::unique_ptr<Publisher> publisher;
  Mutex publishing;  ///< One thread publishes at a time; Python's threads come as they like.
  /// Whose version end() makes; the caller's Bound keeps its arrays.
  std::shared_ptr<BoundTensors> begun FRESHET_GUARDED_BY(publishing);
  ForkMark mark;
  std::atomic<bool> closed{false};    ///< Ends waits.
  std::atomic<bool> has_gpus{false};  ///< Tensors were bound that lie on one.
};

/// Arrays of Python's that were bound to a publisher once: C++ compares their names and shapes at the first publish,
/// and again only when the model has another architecture. A publisher's calls take it; it has none of its own.
class BoundHandle {
 public:
  /// Takes what `tensors` has.
  BoundHandle(const std::shared_ptr<OpenPublisher>& open, Tensors& tensors);
  /// failed_precondition when they were bound to another publisher than `open`.
  const std::shared_ptr<BoundTensors>& of(const OpenPublisher& open) const;
  /// BoundTensors::set_stream().
  void set_stream(std::int32_t device, std::uintptr_t stream) const;

 private:
  std::weak_ptr<OpenPublisher> open_;
  std::vector<ByteArray> arrays_;
  std::vector<nanobind::object> kept_;
  std::shared_ptr<BoundTensors> tensors_;
};

/// The pointer is guarded by the interpreter's lock, which is never held inside of a call that blocks.
class PublisherHandle {
 public:
  PublisherHandle(std::unique_ptr<Publisher> publisher, std::string model);
  ~PublisherHandle();

  BoundHandle bind(Tensors& tensors) const;
  nanobind::object publish(const BoundHandle& bound, PublishGiven how);
  // A version that is captured in parts. `bound` stays as long as it is open: the caller's Bound sees to that.
  void begin(const BoundHandle& bound);
  void capture(const std::vector<std::uint32_t>& tensors);
  nanobind::object end(PublishGiven how);
  void abandon();
  nanobind::dict wait_committed(VersionNumber version, std::optional<double> timeout_seconds) const;
  nanobind::dict activate(VersionNumber version, bool hold) const;
  nanobind::dict stat() const;
  std::string address() const;
  /// Waits until the last version is sealed, but half a minute at most where tensors lay on a GPU, which may hang;
  /// Ctrl-C leaves it open. In a forked child it only forgets.
  void close();
  bool is_open() const { return open_ != nullptr; }

 private:
  std::shared_ptr<OpenPublisher> get() const;
  nanobind::object receive(const Share<OpenPublisher>& open, bool sync, Time started, Result<PublishReceipt> published);

  std::shared_ptr<OpenPublisher> open_;
  std::string model_;
  VersionNumber last_ = 0;
};

void bind_publisher(nanobind::module_& module);

}  // namespace freshet::python
