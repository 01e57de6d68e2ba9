// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/repository.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "bindings/python/stream/records.h"
#include "core/base/deadline.h"
#include "core/base/format.h"
#include "repo/files/import.h"
#include "repo/match/explain.h"
#include "transport/option_text.h"

namespace freshet::python {

namespace nb = nanobind;

std::shared_ptr<OpenPlace> RepositoryHandle::get() const {
  if (open_ == nullptr) raise(Code::failed_precondition, format("the repository {} was closed", place_));
  take(check_not_inherited(open_->mark, "the repository " + place_));
  return open_;
}

void SinkNews::watch(const Sink& sink) {
  const MutexLock lock(mutex_);
  sink_ = &sink;
}

void SinkNews::wake() {
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

void SinkNews::close() {
  const MutexLock lock(mutex_);
  sink_ = nullptr;
  changed_.notify_all();
}

Result<VersionNumber> SinkNews::wait_for(VersionNumber published, Duration at_most) {
  const Time deadline = deadline_in(at_most);
  const MutexLock lock(mutex_);
  for (bool is_late = false;; is_late = !changed_.wait_until(mutex_, deadline)) {
    if (sink_ == nullptr) return fail(Code::failed_precondition, "the sink was closed");
    const SinkStatus status = sink_->status();
    if (status.published >= published) return status.newest;
    if (is_late) {
      std::string why = status.connected ? "" : ": no publisher of the model answers";
      if (status.failing) why = ": " + status.last_error;
      return fail(Code::timed_out, format("version {} was not stored in time{}", published, why));
    }
  }
}

VersionNumber SinkHandle::wait_for(VersionNumber version, std::optional<double> timeout_seconds) const {
  if (sink_ == nullptr) raise(Code::failed_precondition, "the sink was closed");
  take(check_not_inherited(place_->mark, "the sink"));
  const std::shared_ptr<SinkNews> news = news_;  // Another thread may close the sink meanwhile.
  return take(wait_in_slices(timeout_seconds, [&](Duration at_most) { return news->wait_for(version, at_most); }));
}

nb::dict SinkHandle::status() const {
  if (sink_ == nullptr) raise(Code::failed_precondition, "the sink was closed");
  take(check_not_inherited(place_->mark, "the sink"));
  const SinkStatus status = sink_->status();
  nb::dict answer;
  answer["stored"] = status.stored;
  answer["gaps"] = status.gaps;
  answer["newest"] = status.newest;
  answer["published"] = status.published;
  answer["failing"] = status.failing;
  answer["connected"] = status.connected;
  answer["last_error"] = text_to_python(status.last_error);
  return answer;
}

void SinkHandle::close() {
  if (sink_ == nullptr) return;
  std::unique_ptr<Sink> sink = std::move(sink_);
  std::shared_ptr<OpenPlace> place = std::exchange(place_, nullptr);
  if (!place->mark.is_inherited()) news_->close();  // A lock of the parent's may be held for ever.
  if (place->mark.is_inherited()) {
    static_cast<void>(sink.release());
  } else {
    const Unlocked unlocked;
    sink.reset();
  }
  Share<OpenPlace>::drop(place);
}

namespace {

bool was_opened = false;  ///< Guarded by the interpreter's lock.

void end_at_once(int status, void*) {
  std::fflush(nullptr);
  ::_exit(status);
}

using Texts = std::vector<std::pair<std::string, std::string>>;

RepositoryHandle* open_place(std::string place, std::string keys, std::string server_key) {
  was_opened = true;
  auto open = std::make_shared<OpenPlace>();
  const SecurityOptions security{.key_file = std::move(keys), .allow_file = {}, .server_key = std::move(server_key)};
  auto opened =
      call_unlocked([&] { return open_repository(place, {.access = RepositoryAccess::create, .security = security}); });
  open->repository = take(std::move(opened));
  return new RepositoryHandle(std::move(open), std::move(place));
}

/// `progress`, of bytes, may be nothing.
Result<VersionName> put(Repository& repository, StageRequest& request, const std::string& ancestor,
                        const Progress& progress) {
  if (!ancestor.empty()) {
    FRESHET_ASSIGN(request.ancestor, repository.resolve(ancestor));
  }
  FRESHET_ASSIGN(const StagedPut staged, stage_put(repository, request));
  if (!progress) return repository.put(staged.manifest, staged.bytes_of(), staged.options);
  const std::uint64_t total = staged.manifest.architecture->bytes();
  return repository.put(
      staged.manifest,
      [&progress, total, bytes_of = staged.bytes_of(),
       done = std::uint64_t{0}](std::uint32_t tensor) mutable -> Result<Bytes> {
        FRESHET_ASSIGN(const Bytes bytes, bytes_of(tensor));
        progress(done, total);
        done += bytes.size();
        return bytes;
      },
      staged.options);
}

Status read_tensors(const Repository& repository, const VersionRecord& record,
                    const std::vector<std::pair<std::uint32_t, MutableBytes>>& into) {
  const std::span<const TensorSpec> specs = record.manifest.architecture->tensors();
  std::vector<Repository::TensorRead> reads;
  for (const auto& [tensor, out] : into) {
    if (tensor >= specs.size() || out.size() != specs[tensor].bytes()) {
      return fail(Code::invalid_argument, format("no tensor {} of {} bytes", tensor, out.size()));
    }
    reads.push_back({.tensor = tensor, .out = out});
  }
  return repository.read(record, reads);
}

/// The query's layers that the version has, with all tensors cut into the same slices, and these tensors; each with its
/// name there.
struct Prefix {
  Texts layers;
  Texts tensors;
};

Prefix prefix_of(const Architecture& query, const Architecture& stored) {
  Prefix prefix;
  for (const MatchStep& step : explain_match(query, stored)) {
    if (!step.counted) continue;
    const Layer& layer = query.layers()[step.layer];
    const Layer& theirs = stored.layers()[*step.stored];
    Texts tensors;
    for (const LayerTensor& tensor : layer.tensors) {
      const auto other = std::ranges::find(theirs.tensors, tensor.name, &LayerTensor::name);
      if (other == theirs.tensors.end()) continue;
      const TensorSpec& ours = query.tensors()[tensor.tensor];
      const TensorSpec& there = stored.tensors()[other->tensor];
      if (same_form(ours, there)) tensors.emplace_back(ours.name, there.name);
    }
    if (tensors.size() != layer.tensors.size()) continue;
    prefix.layers.emplace_back(layer.name, theirs.name);
    prefix.tensors.insert(prefix.tensors.end(), tensors.begin(), tensors.end());
  }
  return prefix;
}

nb::dict row_of(const MatchRow& row) {
  nb::dict answer;
  answer["version"] = to_string(row.version);
  answer["quality"] = nb::cast(row.quality);
  answer["lcp_layers"] = row.lcp.layers;
  answer["lcp_parametric_layers"] = row.lcp.parametric_layers;
  answer["lcp_bytes"] = row.lcp.bytes;
  return answer;
}

nb::object match(const RepositoryHandle& self, const Graph& graph, const std::string& objective, std::uint32_t top,
                 bool any, const std::string& pin, std::optional<double> least_quality, Texts tags,
                 const std::string& exclude) {
  const std::optional<Objective> known = objective_named(objective);
  if (!known) raise(Code::invalid_argument, format("objective {} is none of layers, parametric, bytes", objective));
  struct Found {
    MatchAnswer answer;
    Prefix prefix;
  };
  const Found found = self.ask([&](Repository& repository) -> Result<Found> {
    MatchQuery query{.graph = MatchGraph::of(*graph.architecture),
                     .objective = *known,
                     .top = top,
                     .any = any,
                     .least_quality = least_quality,
                     .tags = std::move(tags),
                     .pin_by = pin};
    if (!exclude.empty()) {
      FRESHET_ASSIGN(query.exclude_lineage, repository.resolve(exclude));
    }
    Found answer;
    FRESHET_ASSIGN(answer.answer, repository.match(query));
    if (answer.answer.top.empty()) return answer;
    FRESHET_ASSIGN(const VersionRecord best, repository.get(answer.answer.top.front().version));
    answer.prefix = prefix_of(*graph.architecture, *best.manifest.architecture);
    return answer;
  });
  if (found.answer.top.empty()) return nb::none();
  nb::list rows;
  for (const MatchRow& row : found.answer.top) rows.append(row_of(row));
  return nb::make_tuple(rows, tags_to_python(found.prefix.layers), tags_to_python(found.prefix.tensors));
}

SinkHandle* open_sink(const RepositoryHandle& self, std::string model, std::string directory, const std::string& at,
                      std::string keys, std::string server_key) {
  std::shared_ptr<OpenPlace> place = self.get();
  auto news = std::make_shared<SinkNews>();
  auto opened = call_unlocked([&] {
    return Sink::open(*place->repository,
                      {.model = std::move(model),
                       .at = parse_addresses(at),
                       .security = {.key_file = std::move(keys), .allow_file = {}, .server_key = std::move(server_key)},
                       .directory = std::move(directory),
                       .on_event = [news](const SinkOptions::Event&) { news->wake(); }});
  });
  return new SinkHandle(std::move(place), take(std::move(opened)), std::move(news));
}

void bind_record(nb::module_& module) {
  nb::class_<VersionRecord>(module, "Record")
      .def("version", [](const VersionRecord& record) { return to_string(record.manifest.name); })
      .def("number", [](const VersionRecord& record) { return record.manifest.name.number; })
      .def("step", [](const VersionRecord& record) { return record.manifest.step; })
      .def("metrics", [](const VersionRecord& record) { return metrics_to_python(record.manifest.metrics); })
      .def("tags", [](const VersionRecord& record) { return tags_to_python(record.manifest.tags); })
      .def("quality", [](const VersionRecord& record) { return record.quality; })
      .def("has_weights", [](const VersionRecord& record) { return record.has_weights; })
      .def("graph", [](const VersionRecord& record) { return Graph{record.manifest.architecture}; })
      .def("specs", [](const VersionRecord& record) {
        nb::list specs;
        for (const TensorSpec& spec : record.manifest.architecture->tensors()) specs.append(to_python(spec));
        return specs;
      });
}

nb::object put_in(const RepositoryHandle& self, std::string model, const Tensors* tensors,
                  const std::optional<Graph>& graph, const std::string& ancestor, std::optional<double> quality,
                  std::uint64_t step, Metrics metrics, Texts tags, bool dedup, bool deltas,
                  const nb::object& progress) {
  StageRequest request{.model = std::move(model),
                       .quality = quality,
                       .step = step,
                       .metrics = std::move(metrics),
                       .tags = std::move(tags),
                       .dedup = dedup,
                       .deltas = deltas};
  if (graph) request.architecture = graph->architecture;
  if (tensors != nullptr) request.tensors = tensors->views();
  const Progress told = told_to(progress);
  return nb::cast(
      to_string(self.ask([&](Repository& repository) { return put(repository, request, ancestor, told); })));
}

void read_in(const RepositoryHandle& self, const VersionRecord& record,
             const std::vector<std::pair<std::uint32_t, WritableByteArray>>& arrays) {
  std::vector<std::pair<std::uint32_t, MutableBytes>> into;
  for (const auto& [tensor, array] : arrays) {
    into.emplace_back(tensor, MutableBytes(reinterpret_cast<std::byte*>(array.data()), array.shape(0)));
  }
  self.ask([&](Repository& repository) { return read_tensors(repository, record, into); });
}

}  // namespace

Progress told_to(const nb::object& callback) {
  if (callback.is_none()) return {};
  return [&callback, thread = std::this_thread::get_id(), told_at = Time()](std::uint64_t done,
                                                                            std::uint64_t total) mutable {
    const Time now = system_clock().now();
    if (now < told_at + kWaitSlice && done != total) return;
    told_at = now;
    const nb::gil_scoped_acquire locked;
    if (PyErr_Occurred() != nullptr) return;  // The call is about to end.
    try {
      callback(done, total);
    } catch (nb::python_error& error) {
      if (error.matches(PyExc_Exception) || std::this_thread::get_id() != thread) {
        error.discard_as_unraisable("the progress of a call");
      } else {
        error.restore();  // call_unlocked() finds it.
      }
    }
  };
}

void end_child_without_destructors() {
  if (was_opened) ::on_exit(end_at_once, nullptr);
}

void bind_repository(nb::module_& module) {
  module.def("end_child_without_destructors", &end_child_without_destructors);
  bind_record(module);
  nb::class_<SinkHandle>(module, "Sink")
      .def("status", &SinkHandle::status)
      .def("wait_for", &SinkHandle::wait_for, nb::arg("version"), nb::arg("timeout").none())
      .def("close", &SinkHandle::close)
      .def("is_open", &SinkHandle::is_open);
  nb::class_<RepositoryHandle> repository(module, "Repository");
  repository
      .def_static("open", &open_place, nb::arg("place"), nb::arg("keys"), nb::arg("server_key"),
                  nb::rv_policy::take_ownership)
      .def("put", &put_in, nb::arg("model"), nb::arg("tensors").none(), nb::arg("graph").none(), nb::arg("ancestor"),
           nb::arg("quality").none(), nb::arg("step"), nb::arg("metrics"), nb::arg("tags"), nb::arg("dedup"),
           nb::arg("deltas"), nb::arg("progress").none())
      .def("record",
           [](const RepositoryHandle& self, const std::string& version) {
             return self.ask([&](Repository& place) -> Result<VersionRecord> {
               FRESHET_ASSIGN(const VersionName name, place.resolve(version));
               return place.get(name);
             });
           })
      .def("read", &read_in, nb::arg("record"), nb::arg("arrays"))
      .def("match", &match, nb::arg("graph"), nb::arg("objective"), nb::arg("top"), nb::arg("any"), nb::arg("pin"),
           nb::arg("least_quality").none(), nb::arg("tags"), nb::arg("exclude"))
      .def("sink", &open_sink, nb::arg("model"), nb::arg("directory"), nb::arg("at"), nb::arg("keys"),
           nb::arg("server_key"), nb::rv_policy::take_ownership)
      .def("close", &RepositoryHandle::close)
      .def("is_open", &RepositoryHandle::is_open);
  bind_lineage(repository);
}

}  // namespace freshet::python
