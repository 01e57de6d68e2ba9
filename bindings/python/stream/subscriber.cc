// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream/subscriber.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/graph.h"
#include "bindings/python/stream/records.h"
#include "core/base/format.h"
#include "transport/directory/directory.h"
#include "transport/option_text.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

/// Also where the directory does not answer.
bool is_published(const std::string& model, const std::string& directory) {
  const auto opened = open_directory(directory);
  if (!opened) return true;
  const auto entry = (*opened)->lookup(model);
  return entry || entry.error().code() != Code::not_found;
}

}  // namespace

PinnedVersion::PinnedVersion(std::shared_ptr<OpenSubscriber> owner, Snapshot snapshot)
    : owner_(std::move(owner)), snapshot_(std::move(snapshot)), pages_(owner_->pages) {
  owner_->pages->keep_only(snapshot_.pieces());
}

PinnedVersion::~PinnedVersion() {
  if (mark_.is_inherited()) static_cast<void>(new Snapshot(std::move(snapshot_)));
}

VersionNumber PinnedVersion::newest_known(std::int64_t unix_ns) const {
  constexpr std::int64_t kAgeMax = 1'000'000;
  const std::int64_t age = unix_ns - newest_known_unix_ns_;
  if (age < 0 || age > kAgeMax) {
    newest_known_ = owner_->subscriber->status().newest_known;
    newest_known_unix_ns_ = unix_ns;
  }
  return newest_known_;
}

Pin::~Pin() {
  if (pinned_ == nullptr || pinned_.use_count() != 1 || !pinned_->is_last_share()) return;
  const Unlocked unlocked;  // The subscriber's thread ends with it.
  pinned_.reset();
}

const PinnedVersion& Pin::get() const {
  take(pinned_->check_here());
  return *pinned_;
}

std::shared_ptr<const PinnedVersion> Pin::share() const {
  take(pinned_->check_here());
  return pinned_;
}

SubscriberHandle::~SubscriberHandle() { close(); }

std::shared_ptr<OpenSubscriber> SubscriberHandle::get() const {
  if (open_ == nullptr) raise(Code::failed_precondition, format("the subscriber of {} was closed", model_));
  if (open_->mark.is_inherited()) take(check_not_inherited(open_->mark, "the subscriber of " + model_));
  return open_;
}

void SubscriberHandle::close() {
  if (open_ == nullptr) return;
  newest_.reset();
  std::shared_ptr<OpenSubscriber> open = std::exchange(open_, nullptr);
  open->closed = true;
  if (!open->mark.is_inherited()) open->news->close();
  Share<OpenSubscriber>::drop(open);
}

VersionNumber SubscriberHandle::wait_for(VersionNumber version, std::optional<double> timeout_seconds) const {
  const Share<OpenSubscriber> open(get());
  take(wait_in_slices(timeout_seconds, [&](Duration at_most) -> Status {
    if (open->closed) return fail(Code::failed_precondition, format("the subscriber of {} was closed", model_));
    return open->subscriber->wait_for(version, at_most);
  }));
  return std::max(version, open->subscriber->status().serving);
}

Pin SubscriberHandle::share(const std::shared_ptr<OpenSubscriber>& open, Snapshot snapshot) {
  std::shared_ptr<PinnedVersion> newest = newest_.lock();
  if (newest != nullptr && &newest->manifest() == &snapshot.manifest() &&
      newest->snapshot().stale() == snapshot.stale()) {
    return Pin(std::move(newest));
  }
  newest = std::make_shared<PinnedVersion>(open, std::move(snapshot));
  newest_ = newest;
  return Pin(std::move(newest));
}

Pin SubscriberHandle::snapshot() {
  const std::shared_ptr<OpenSubscriber> open = get();
  Snapshot snapshot = open->subscriber->snapshot();
  if (snapshot) return share(open, std::move(snapshot));
  const SubscriberStatus status = open->subscriber->status();
  if (status.serving == 0) {
    const std::string why = status.last_error.empty() ? "" : ": " + status.last_error;
    raise(Code::unavailable, format("no version of {} has come yet{}", model_, why));
  }
  if (status.stale) {
    raise(Code::unavailable, format("this member of {}'s group does not know what was decided, and refuses", model_));
  }
  raise(Code::out_of_space,
        format("all pins of the subscriber of {} are in use: drop views of older versions", model_));
}

Pin SubscriberHandle::snapshot_at_least(VersionNumber version, std::optional<double> timeout_seconds) {
  const std::shared_ptr<OpenSubscriber> open = get();
  return share(open, take(wait_in_slices(timeout_seconds, [&](Duration at_most) -> Result<Snapshot> {
                 if (open->closed) {
                   return fail(Code::failed_precondition, format("the subscriber of {} was closed", model_));
                 }
                 return open->subscriber->snapshot_at_least({.min_version = version, .at_most = at_most});
               })));
}

Pin SubscriberHandle::current_snapshot(std::optional<double> timeout_seconds) {
  const std::shared_ptr<OpenSubscriber> open = get();
  const Time asked = system_clock().now();
  return share(open, take(wait_in_slices(timeout_seconds, [&](Duration at_most) -> Result<Snapshot> {
                 if (open->closed) {
                   return fail(Code::failed_precondition, format("the subscriber of {} was closed", model_));
                 }
                 auto confirmed = open->subscriber->snapshot_at_least(
                     {.max_staleness = system_clock().now() - asked, .at_most = at_most});
                 if (confirmed || confirmed.error().code() != Code::timed_out) return confirmed;
                 // Who has ended confirms nothing. A publisher that began meanwhile stands in the directory before it
                 // publishes.
                 if (open->subscriber->status().connected || is_published(model_, directory_)) return confirmed;
                 Snapshot last = open->subscriber->snapshot();
                 return last ? Result<Snapshot>(std::move(last)) : std::move(confirmed);
               })));
}

Pin SubscriberHandle::next(std::optional<double> timeout_seconds) {
  const std::shared_ptr<OpenSubscriber> open = get();
  auto delivery = take(wait_in_slices(timeout_seconds, [&](Duration at_most) -> Result<Subscriber::Delivery> {
    if (open->closed) return fail(Code::failed_precondition, format("the subscriber of {} was closed", model_));
    return open->subscriber->next(at_most);
  }));
  return Pin(std::make_shared<PinnedVersion>(open, std::move(delivery.snapshot)));
}

VersionNumber SubscriberHandle::version() const { return get()->subscriber->status().serving; }

nb::dict SubscriberHandle::status() const {
  const SubscriberStatus status = get()->subscriber->status();
  nb::dict answer;
  answer["connected"] = status.connected;
  answer["serving"] = status.serving;
  answer["newest_known"] = status.newest_known;
  answer["updates"] = status.updates;
  answer["bytes_fetched"] = status.bytes_fetched;
  answer["gaps"] = status.gaps;
  answer["failures"] = status.failures;
  answer["staleness"] = seconds(status.staleness);
  answer["directory"] = text_to_python(status.directory);
  answer["last_error"] = text_to_python(status.last_error);
  answer["epoch"] = status.epoch;
  answer["current"] = to_python(status.current);
  answer["staged"] = status.staged;
  answer["stale"] = status.stale;
  return answer;
}

void SubscriberHandle::stage(VersionNumber version, std::optional<double> timeout_seconds) const {
  const Share<OpenSubscriber> open(get());
  take(wait_in_slices(timeout_seconds, [&](Duration at_most) -> Status {
    if (open->closed) return fail(Code::failed_precondition, format("the subscriber of {} was closed", model_));
    return open->subscriber->stage(version, at_most);
  }));
}

Pin SubscriberHandle::staged_snapshot() const {
  const std::shared_ptr<OpenSubscriber> open = get();
  return Pin(std::make_shared<PinnedVersion>(open, take(open->subscriber->staged_snapshot())));
}

VersionNumber SubscriberHandle::commit() const {
  const Share<OpenSubscriber> open(get());
  auto committed = call_unlocked([&] { return open->subscriber->commit_staged(); });
  return take(std::move(committed));
}

nb::dict SubscriberHandle::activate(VersionNumber version, bool hold, bool as_group, std::uint64_t epoch,
                                    double within_seconds) const {
  static_cast<void>(get());
  const auto within = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(within_seconds));
  const ActivationRequest request = {
      .version = version, .hold = hold, .as_group = as_group, .expected_epoch = epoch, .within = within};
  const ActivationTarget publisher = publisher_;
  const ActivationReport report = take(call_unlocked([&] { return ask_activate(publisher, request); }));
  nb::dict answer;
  answer["current"] = to_python(report.current);
  answer["members"] = report.members;
  answer["behind"] = report.behind;
  return answer;
}

namespace {

SubscriberHandle* open_subscriber(SubscriberOptions options, bool queue_updates) {
  auto open = std::make_shared<OpenSubscriber>();
  open->news = std::make_shared<UpdateNews>(queue_updates);
  options.on_update = [news = open->news](const Update& update) { news->tell(update); };
  ActivationTarget publisher = {.model = options.model,
                                // Relays come first.
                                .at = options.at.empty() ? std::string() : options.at.back(),
                                .directory = options.directory,
                                .security = options.security};
  auto opened = call_unlocked([&] { return Subscriber::open(std::move(options)); });
  open->subscriber = take(std::move(opened));
  return new SubscriberHandle(std::move(open), std::move(publisher));
}

void bind_pin(nb::module_& module) {
  nb::class_<Pin>(module, "Pin")
      .def("model", [](const Pin& pin) { return pin.get().manifest().name.model; })
      .def("version", [](const Pin& pin) { return pin.get().snapshot().version(); })
      .def("step", [](const Pin& pin) { return pin.get().manifest().step; })
      .def("metrics", [](const Pin& pin) { return metrics_to_python(pin.get().manifest().metrics); })
      .def("tags", [](const Pin& pin) { return tags_to_python(pin.get().manifest().tags); })
      .def("graph", [](const Pin& pin) { return Graph{pin.get().manifest().architecture}; })
      .def("stale", [](const Pin& pin) { return pin.get().snapshot().stale(); })
      .def("created_unix_ns", [](const Pin& pin) { return pin.get().manifest().created_unix_ns; })
      // Numbers may begin anew.
      .def("is_of_version",
           [](const Pin& pin, const Pin& other) { return &pin.get().manifest() == &other.get().manifest(); })
      .def("digest", [](const Pin& pin) { return to_hex(plain_xxh3_of(encode(pin.get().manifest()))); })
      .def("changed_since",
           [](const Pin& pin, const Pin& base) {
             const Manifest& now = pin.get().manifest();
             const Manifest& before = base.get().manifest();
             const bool is_alike = now.architecture->digest() == before.architecture->digest();
             std::vector<std::uint32_t> changed = now.owners.changed_since(is_alike ? before.owners : OwnerMap());
             const auto& specs = now.architecture->tensors();
             std::erase_if(changed, [&](std::uint32_t tensor) { return !is_served(specs[tensor].role); });
             return changed;
           })
      .def("size",
           [](const Pin& pin) {
             const auto& specs = pin.get().manifest().architecture->tensors();
             return std::count_if(specs.begin(), specs.end(), [](const auto& spec) { return is_served(spec.role); });
           })
      .def("served",
           [](const Pin& pin) {
             const auto& specs = pin.get().manifest().architecture->tensors();
             std::vector<std::uint32_t> served;
             for (std::uint32_t tensor = 0; tensor < specs.size(); ++tensor) {
               if (is_served(specs[tensor].role)) served.push_back(tensor);
             }
             return served;
           })
      .def("find",
           [](const Pin& pin, const std::string& name) {
             const Architecture& architecture = *pin.get().manifest().architecture;
             const auto tensor = architecture.tensor_named(name);
             return tensor && is_served(architecture.tensors()[*tensor].role) ? tensor : std::nullopt;
           })
      .def("spec", [](const Pin& pin,
                      std::uint32_t tensor) { return to_python(pin.get().manifest().architecture->tensors()[tensor]); })
      .def("bytes", [](nb::handle self, std::uint32_t tensor) {
        const Bytes bytes = nb::cast<const Pin&>(self).get().bytes(tensor);
        return nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()}, self);
      });
}

void bind_news(nb::module_& module) {
  nb::class_<UpdateNews>(module, "UpdateNews")
      .def("past",
           [](UpdateNews& news) {
             nb::list past;
             for (const UpdateNews::Past& one : news.past()) {
               past.append(
                   nb::make_tuple(one.version, static_cast<double>(one.served_unix_ns) / 1e9, seconds(one.latency)));
             }
             return past;
           })
      .def("add_descriptor", [](UpdateNews& news) { return take(news.add_descriptor()); })
      .def("remove_descriptor", &UpdateNews::remove_descriptor)
      .def("next", [](UpdateNews& news) -> nb::object {
        const auto next = wait_in_slices(0.2, [&](Duration at_most) { return news.next(at_most); });
        if (!next && next.error().code() == Code::timed_out) return nb::none();
        const Update& update = take(next);
        nb::dict answer;
        answer["version"] = update.version;
        answer["tensors_fetched"] = update.tensors_fetched;
        answer["bytes_fetched"] = update.bytes_fetched;
        answer["gap_before"] = update.gap_before;
        answer["latency"] = seconds(update.latency);
        answer["notify"] = seconds(update.notify);
        answer["channel"] = update.channel;
        answer["tensors_delta"] = update.tensors_delta;
        answer["tensors_dense"] = update.tensors_dense;
        answer["epoch"] = update.epoch;
        return answer;
      });
}

}  // namespace

void bind_subscriber(nb::module_& module) {
  bind_pin(module);
  bind_news(module);
  nb::class_<SubscriberHandle>(module, "Subscriber")
      .def_static(
          "open",
          [](std::string model, const std::string& at, std::string keys, std::string server_key,
             const std::string& channel, std::string directory, bool every, bool staged, std::string label,
             bool queue_updates, bool trusted_fabric) {
            return open_subscriber({.model = std::move(model),
                                    .at = parse_addresses(at),
                                    .directory = std::move(directory),
                                    .label = std::move(label),
                                    .every = every,
                                    .staged = staged,
                                    .security = {.key_file = std::move(keys),
                                                 .allow_file = {},
                                                 .server_key = std::move(server_key),
                                                 .trusted_fabric = trusted_fabric},
                                    .channel = take(parse_channel(channel))},
                                   queue_updates);
          },
          nb::arg("model"), nb::arg("at"), nb::arg("keys"), nb::arg("server_key"), nb::arg("channel"),
          nb::arg("directory"), nb::arg("every"), nb::arg("staged"), nb::arg("label"), nb::arg("queue_updates"),
          nb::arg("trusted_fabric"), nb::rv_policy::take_ownership)
      .def("wait_for", &SubscriberHandle::wait_for, nb::arg("version"), nb::arg("timeout").none())
      .def("snapshot", &SubscriberHandle::snapshot)
      .def("snapshot_at_least", &SubscriberHandle::snapshot_at_least, nb::arg("version"), nb::arg("timeout").none())
      .def("current_snapshot", &SubscriberHandle::current_snapshot, nb::arg("timeout").none())
      .def("next", &SubscriberHandle::next, nb::arg("timeout").none())
      .def("version", &SubscriberHandle::version)
      .def("status", &SubscriberHandle::status)
      .def("stage", &SubscriberHandle::stage, nb::arg("version"), nb::arg("timeout").none())
      .def("staged_snapshot", &SubscriberHandle::staged_snapshot)
      .def("commit", &SubscriberHandle::commit)
      .def("activate", &SubscriberHandle::activate, nb::arg("version"), nb::arg("hold"), nb::arg("as_group"),
           nb::arg("epoch"), nb::arg("within"))
      .def("news", &SubscriberHandle::news)
      .def("close", &SubscriberHandle::close)
      .def("is_open", &SubscriberHandle::is_open);
}

}  // namespace freshet::python
