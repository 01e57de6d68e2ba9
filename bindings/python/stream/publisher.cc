// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream/publisher.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/host_gpus.h"
#include "bindings/python/stream/records.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "repo/repository.h"
#include "transport/option_text.h"
#include "transport/zmq/hub/stat_fields.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

constexpr double kGpuCloseSeconds = 30;  // A device that hangs ends no copy.

using python::to_python;

nb::dict to_python(const SubscriberStat& stat) {
  nb::dict answer;
  const auto write = [&answer](const char* name, const auto& value) { answer[name] = nb::cast(value); };
  each_subscriber_field(stat, write);
  answer["staleness"] = stat.staleness ? nb::cast(seconds(*stat.staleness)) : nb::none();
  return answer;
}

nb::dict to_python(const PublisherStat& stat) {
  nb::dict answer;
  const auto write = [&answer](const char* name, const auto& value) { answer[name] = nb::cast(value); };
  each_publisher_field(stat, write);
  answer["current"] = to_python(stat.current);
  answer["current_kept"] = stat.current_kept;
  answer["mixed"] = seconds(stat.mixed);
  nb::list versions;
  for (const VersionStat& version : stat.versions) {
    nb::dict of;
    each_version_field(version, [&of](const char* name, const auto& value) { of[name] = nb::cast(value); });
    nb::dict metrics;
    for (const auto& [name, value] : version.metrics) metrics[name.c_str()] = value;
    of["metrics"] = metrics;
    versions.append(of);
  }
  answer["versions"] = versions;
  nb::list subscribers;
  for (const SubscriberStat& subscriber : stat.subscribers) subscribers.append(to_python(subscriber));
  answer["subscribers"] = subscribers;
  return answer;
}

struct ReceiptGiven {
  std::optional<VersionNumber> version;  ///< Not set: there was no room for one, and `skipped` says why.
  double blocked = 0;
  std::uint64_t captured_tensors = 0;
  std::uint64_t captured_bytes = 0;
  std::optional<std::string> skipped;
};

Changed changed_of(PublishGiven& how) {
  if (how.all_changed) return Changed::all();
  return how.changed ? Changed::only(std::move(*how.changed)) : Changed::find();
}

PublishOptions options_of(PublishGiven& how) {
  return {.step = how.step,
          .metrics = std::move(how.metrics),
          .changed = changed_of(how),
          .tags = std::move(how.tags),
          .new_architecture = how.graph ? how.graph->architecture : nullptr};
}

Result<CommitReport> wait_committed_in(OpenPublisher& open, VersionNumber version,
                                       std::optional<double> timeout_seconds) {
  return wait_in_slices(timeout_seconds, [&](Duration at_most) -> Result<CommitReport> {
    if (open.closed)
      return fail(Code::failed_precondition, "the publisher was closed while its version was waited for");
    return open.publisher->wait_committed(version, at_most);
  });
}

PublisherHandle* open_publisher(PublisherOptions options, const std::optional<Graph>& graph,
                                const VersionRecord* resumed) {
  if (graph) options.architecture = graph->architecture;
  if (resumed != nullptr) options.resume_from = std::make_shared<const Manifest>(resumed->manifest);
  std::string model = options.model;
  auto opened = call_unlocked([&] { return Publisher::open(std::move(options)); });
  return new PublisherHandle(take(std::move(opened)), std::move(model));
}

}  // namespace

BoundHandle::BoundHandle(const std::shared_ptr<OpenPublisher>& open, Tensors& tensors)
    : open_(open),
      arrays_(tensors.take_arrays()),
      kept_(tensors.take_kept()),
      tensors_(std::make_shared<BoundTensors>(open->publisher->bind(tensors.take_views()))) {}

const std::shared_ptr<BoundTensors>& BoundHandle::of(const OpenPublisher& open) const {
  if (open_.lock().get() != &open) raise(Code::failed_precondition, "these tensors were bound to another publisher");
  return tensors_;
}

void BoundHandle::set_stream(std::int32_t device, std::uintptr_t stream) const {
  const std::shared_ptr<OpenPublisher> open = open_.lock();
  if (open == nullptr) return;  // A closed publisher says so itself.
  const Share<OpenPublisher> share(open);
  const Unlocked unlocked;
  const MutexLock lock(share->publishing);
  tensors_->set_stream(device, stream);
}

PublisherHandle::PublisherHandle(std::unique_ptr<Publisher> publisher, std::string model)
    : open_(std::make_shared<OpenPublisher>()), model_(std::move(model)) {
  open_->publisher = std::move(publisher);
}

PublisherHandle::~PublisherHandle() { Share<OpenPublisher>::drop(open_); }

std::shared_ptr<OpenPublisher> PublisherHandle::get() const {
  if (open_ == nullptr) raise(Code::failed_precondition, format("the publisher of {} was closed", model_));
  take(check_not_inherited(open_->mark, "the publisher of " + model_));
  return open_;
}

BoundHandle PublisherHandle::bind(Tensors& tensors) const {
  const auto is_on_gpu = [](const TensorView& view) { return view.place.memory == MemoryKind::device; };
  if (std::ranges::any_of(tensors.views(), is_on_gpu)) get()->has_gpus = true;
  return BoundHandle(get(), tensors);
}

nb::object PublisherHandle::publish(const BoundHandle& bound, PublishGiven how) {
  const Share<OpenPublisher> open(get());
  const std::shared_ptr<BoundTensors> tensors = bound.of(*open);
  PublishOptions options = options_of(how);
  const Time started = system_clock().now();
  auto published = [&]() -> Result<PublishReceipt> {
    const Unlocked unlocked;
    const MutexLock lock(open->publishing);
    return tensors->publish(std::move(options));
  }();
  return receive(open, how.sync, started, std::move(published));
}

void PublisherHandle::begin(const BoundHandle& bound) {
  const Share<OpenPublisher> open(get());
  const std::shared_ptr<BoundTensors> tensors = bound.of(*open);
  take([&]() -> Status {
    const Unlocked unlocked;
    const MutexLock lock(open->publishing);
    FRESHET_TRY(tensors->begin());
    open->begun = tensors;
    return {};
  }());
}

void PublisherHandle::capture(const std::vector<std::uint32_t>& tensors) {
  const Share<OpenPublisher> open(get());
  take([&]() -> Status {
    const Unlocked unlocked;
    const MutexLock lock(open->publishing);
    if (!open->begun) return fail(Code::failed_precondition, "capture() without begin()");
    return open->begun->capture(tensors);
  }());
}

nb::object PublisherHandle::end(PublishGiven how) {
  const Share<OpenPublisher> open(get());
  PublishOptions options = options_of(how);
  const Time started = system_clock().now();
  auto published = [&]() -> Result<PublishReceipt> {
    const Unlocked unlocked;
    const MutexLock lock(open->publishing);
    if (!open->begun) return fail(Code::failed_precondition, "end() without begin()");
    return open->begun->end(std::move(options));
  }();
  return receive(open, how.sync, started, std::move(published));
}

void PublisherHandle::abandon() {
  const Share<OpenPublisher> open(get());
  const Unlocked unlocked;
  const MutexLock lock(open->publishing);
  if (open->begun) open->begun->abandon();
  open->begun.reset();
}

nb::object PublisherHandle::receive(const Share<OpenPublisher>& open, bool sync, Time started,
                                    Result<PublishReceipt> published) {
  PublishReceipt receipt = take(std::move(published));
  last_ = std::max(last_, receipt.version);
  if (sync) {
    const Time waits_from = system_clock().now();
    take(wait_committed_in(*open, receipt.version, std::nullopt));
    const Time now = system_clock().now();
    // Of a publish by layers the receipt has the earlier calls' time, too.
    receipt.blocked = std::max(receipt.blocked + (now - waits_from), now - started);
  }
  return nb::cast(ReceiptGiven{.version = receipt.version,
                               .blocked = seconds(receipt.blocked),
                               .captured_tensors = receipt.captured_tensors,
                               .captured_bytes = receipt.captured_bytes});
}

nb::dict PublisherHandle::wait_committed(VersionNumber version, std::optional<double> timeout_seconds) const {
  const Share<OpenPublisher> open(get());
  const CommitReport report = take(wait_committed_in(*open, version, timeout_seconds));
  nb::dict answer;
  answer["version"] = report.version;
  answer["tensors"] = report.tensors;
  answer["changed_tensors"] = report.changed_tensors;
  answer["changed_bytes"] = report.changed_bytes;
  answer["capture_to_commit"] = seconds(report.capture_to_commit);
  answer["digest"] = to_hex(report.digest);
  return answer;
}

nb::dict PublisherHandle::activate(VersionNumber version, bool hold) const {
  const Share<OpenPublisher> open(get());
  const ActivationReport report =
      take(call_unlocked([&] { return hold ? open->publisher->rollback(version) : open->publisher->release(); }));
  nb::dict answer;
  answer["current"] = to_python(report.current);
  answer["members"] = report.members;
  answer["mixed"] = seconds(report.mixed);
  answer["behind"] = report.behind;
  return answer;
}

nb::dict PublisherHandle::stat() const {
  const Share<OpenPublisher> open(get());
  const PublisherStat stat = [&] {
    const Unlocked unlocked;
    return open->publisher->stat();
  }();
  return to_python(stat);
}

std::string PublisherHandle::address() const { return get()->publisher->address(); }

void PublisherHandle::close() {
  if (open_ == nullptr) return;
  if (!open_->mark.is_inherited() && last_ != 0) {
    const Share<OpenPublisher> open(open_);
    const auto at_most = open->has_gpus ? std::optional(kGpuCloseSeconds) : std::nullopt;
    const auto committed = wait_committed_in(*open, last_, at_most);
    if (!committed && committed.error().code() == Code::timed_out) {
      log_line(LogLevel::warning, format("publish {}@{}: not sealed half a minute after close(), and given up: {}",
                                         model_, last_, committed.error().message()));
    }
  }
  if (open_ == nullptr) return;  // Another thread was quicker.
  std::shared_ptr<OpenPublisher> open = std::exchange(open_, nullptr);
  open->closed = true;
  Share<OpenPublisher>::drop(open);
}

void bind_publisher(nb::module_& module) {
  nb::class_<ReceiptGiven>(module, "Receipt", "What publish() did by the time it returned.")
      .def_static(
          "without_room",
          [](double blocked, std::string why) { return ReceiptGiven{.blocked = blocked, .skipped = std::move(why)}; },
          nb::arg("blocked"), nb::arg("why"), "For a version that was skipped.")
      .def_ro("version", &ReceiptGiven::version, "The version's number; None: there was no room, and it was skipped.")
      .def_ro("blocked", &ReceiptGiven::blocked, "Seconds in publish().")
      .def_ro("captured_tensors", &ReceiptGiven::captured_tensors, "How many tensors were copied, since they changed.")
      .def_ro("captured_bytes", &ReceiptGiven::captured_bytes, "Their bytes.")
      .def_ro("skipped", &ReceiptGiven::skipped,
              "None; or why there was no room for the version, and which readers hold which versions.")
      .def("__repr__", [](const ReceiptGiven& receipt) {
        const std::string version = receipt.version ? std::to_string(*receipt.version) : "None";
        return format("Receipt(version={}, blocked={:.6f})", version, receipt.blocked);
      });
  nb::class_<BoundHandle>(module, "Bound")
      .def("set_stream", &BoundHandle::set_stream, nb::arg("device"), nb::arg("stream"));
  nb::class_<PublisherHandle>(module, "Publisher")
      .def_static(
          "open",
          [](std::string model, std::string listen, std::string keys, std::string allow, const std::string& channels,
             std::string directory, const std::optional<Graph>& graph, std::size_t keep_versions, bool group_commit,
             double arena_copies, std::uint64_t device_bytes, double device_copies, bool trusted_fabric,
             const VersionRecord* resumed, const HostGpus* gpus) {
            return open_publisher({.model = std::move(model),
                                   .hub_options = {.listen = std::move(listen),
                                                   .directory = std::move(directory),
                                                   .channels = take(parse_channel_choice(channels)),
                                                   .security = {.key_file = std::move(keys),
                                                                .allow_file = std::move(allow),
                                                                .trusted_fabric = trusted_fabric}},
                                   .arena_copies = arena_copies,
                                   .device_memory = {.bytes = device_bytes, .copies = device_copies},
                                   .keep_versions = keep_versions,
                                   .group_commit = group_commit,
                                   .gpus = gpus != nullptr ? gpus->platform() : nullptr},
                                  graph, resumed);
          },
          nb::arg("model"), nb::arg("listen"), nb::arg("keys"), nb::arg("allow"), nb::arg("channels"),
          nb::arg("directory"), nb::arg("graph").none(), nb::arg("keep_versions"), nb::arg("group_commit"),
          nb::arg("arena_copies"), nb::arg("device_bytes"), nb::arg("device_copies"), nb::arg("trusted_fabric"),
          nb::arg("resumed").none(), nb::arg("gpus").none(), nb::rv_policy::take_ownership)
      .def("bind", &PublisherHandle::bind, nb::arg("tensors"))
      .def(
          "publish",
          [](PublisherHandle& self, const BoundHandle& bound, std::uint64_t step, MetricsGiven metrics, TagsGiven tags,
             bool all_changed, std::optional<std::vector<std::uint32_t>> changed, std::optional<Graph> graph,
             bool sync) {
            return self.publish(bound, {.step = step,
                                        .metrics = std::move(metrics),
                                        .tags = std::move(tags),
                                        .all_changed = all_changed,
                                        .changed = std::move(changed),
                                        .graph = std::move(graph),
                                        .sync = sync});
          },
          nb::arg("bound"), nb::arg("step"), nb::arg("metrics"), nb::arg("tags"), nb::arg("all_changed"),
          nb::arg("changed").none(), nb::arg("graph").none(), nb::arg("sync"))
      .def("begin", &PublisherHandle::begin, nb::arg("bound"))
      .def("capture", &PublisherHandle::capture, nb::arg("tensors"))
      .def(
          "end",
          [](PublisherHandle& self, std::uint64_t step, MetricsGiven metrics, TagsGiven tags, bool sync) {
            return self.end({.step = step, .metrics = std::move(metrics), .tags = std::move(tags), .sync = sync});
          },
          nb::arg("step"), nb::arg("metrics"), nb::arg("tags"), nb::arg("sync"))
      .def("abandon", &PublisherHandle::abandon)
      .def("wait_committed", &PublisherHandle::wait_committed, nb::arg("version"), nb::arg("timeout").none())
      .def("activate", &PublisherHandle::activate, nb::arg("version"), nb::arg("hold"))
      .def("stat", &PublisherHandle::stat)
      .def("address", &PublisherHandle::address)
      .def("close", &PublisherHandle::close)
      .def("is_open", &PublisherHandle::is_open);
}

}  // namespace freshet::python
