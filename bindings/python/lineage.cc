// SPDX-License-Identifier: Apache-2.0
// Who came from whom, and what may go.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/python/repository.h"
#include "bindings/python/stream/records.h"
#include "repo/lineage/lineage_drawing.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

using RowGiven = std::tuple<std::string, std::string, std::optional<double>, std::uint64_t, std::uint64_t, bool>;

/// Empty where there is none.
std::string text_of(const VersionName& name) { return name.model.empty() ? std::string() : to_string(name); }

nb::list rows_to_python(const std::vector<LineageRow>& rows) {
  nb::list answer;
  for (const LineageRow& row : rows) {
    answer.append(nb::make_tuple(text_of(row.version), text_of(row.ancestor), row.quality, row.own_bytes,
                                 row.inherited_bytes, row.retired));
  }
  return answer;
}

/// A picture of rows as rows_to_python() made them.
std::string svg_of(const std::vector<RowGiven>& given, const std::string& title) {
  std::vector<LineageRow> rows;
  for (const auto& [version, ancestor, quality, own_bytes, inherited_bytes, retired] : given) {
    LineageRow row{.inherited_bytes = inherited_bytes, .own_bytes = own_bytes, .quality = quality, .retired = retired};
    row.version = take(parse_version_name(version));
    if (!ancestor.empty()) row.ancestor = take(parse_version_name(ancestor));
    rows.push_back(std::move(row));
  }
  return lineage_svg(rows, {.title = title, .best = {}});
}

/// Asks about the version that a person wrote.
template <typename Call>
auto ask_of(const RepositoryHandle& self, const std::string& version, Call call) {
  return self.ask([&](Repository& place) -> decltype(call(place, VersionName())) {
    FRESHET_ASSIGN(const VersionName name, place.resolve(version));
    return call(place, name);
  });
}

nb::list owners(const RepositoryHandle& self, const std::string& version) {
  nb::list answer;
  const auto rows =
      ask_of(self, version, [](Repository& place, const VersionName& name) { return place.owners(name); });
  for (const OwnerRow& row : rows) answer.append(nb::make_tuple(row.tensor, text_of(row.owner), row.bytes));
  return answer;
}

std::string mrca(const RepositoryHandle& self, const std::string& a, const std::string& b) {
  const auto found = self.ask([&](Repository& place) -> Result<std::optional<VersionName>> {
    FRESHET_ASSIGN(const VersionName left, place.resolve(a));
    FRESHET_ASSIGN(const VersionName right, place.resolve(b));
    return place.mrca(left, right);
  });
  return found ? to_string(*found) : std::string();
}

nb::dict diff(const RepositoryHandle& self, const std::string& a, const std::string& b) {
  const VersionDiff found = self.ask([&](Repository& place) -> Result<VersionDiff> {
    FRESHET_ASSIGN(const VersionName left, place.resolve(a));
    FRESHET_ASSIGN(const VersionName right, place.resolve(b));
    return place.diff(left, right);
  });
  nb::list changed;
  for (const VersionDiff::Tensor& tensor : found.tensors_changed) changed.append(tensor.name);
  nb::dict answer;
  answer["layers_added"] = nb::cast(found.layers_added);
  answer["layers_removed"] = nb::cast(found.layers_removed);
  answer["tensors_changed"] = changed;
  answer["quality_a"] = nb::cast(found.quality_a);
  answer["quality_b"] = nb::cast(found.quality_b);
  return answer;
}

nb::dict stat(const RepositoryHandle& self) {
  const RepositoryStat stat = self.ask([](Repository& place) { return place.stat(); });
  nb::dict answer;
  answer["models"] = stat.models;
  answer["versions"] = stat.versions;
  answer["retired_versions"] = stat.retired_versions;
  answer["live_tensors"] = stat.live_tensors;
  answer["live_bytes"] = stat.live_bytes;
  answer["disk_bytes"] = stat.disk_bytes;
  answer["metadata_bytes"] = stat.metadata_bytes;
  return answer;
}

/// In slices, so that Ctrl-C ends the wait for whoever pins it.
nb::dict retire(const RepositoryHandle& self, const std::string& version, double wait_seconds) {
  const std::optional<Time> deadline = deadline_of(wait_seconds);
  for (;;) {
    const Duration left = deadline ? std::max(*deadline - system_clock().now(), Duration::zero()) : Duration::max();
    const Duration slice = std::min(left, kWaitSlice);
    const Share<OpenPlace> open(self.get());
    auto retired = call_unlocked([&]() -> Result<RetireReport> {
      FRESHET_ASSIGN(const VersionName name, open->repository->resolve(version));
      return open->repository->retire(name, {.wait = slice});
    });
    if (!retired && retired.error().code() == Code::failed_precondition && left > kWaitSlice) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      continue;
    }
    const RetireReport report = take(std::move(retired));
    nb::dict answer;
    answer["version"] = to_string(report.version);
    answer["released_tensors"] = report.released_tensors;
    answer["released_bytes"] = report.released_bytes;
    return answer;
  }
}

nb::dict aliases(const RepositoryHandle& self, const std::string& model) {
  nb::dict answer;
  for (const Alias& alias : self.ask([&](Repository& place) { return place.aliases(model); })) {
    answer[alias.name.c_str()] = alias.number;
  }
  return answer;
}

void set_alias(const RepositoryHandle& self, const std::string& model, const std::string& alias, VersionNumber number,
               std::optional<VersionNumber> expected) {
  self.ask([&](Repository& place) { return place.set_alias(model, alias, expected, number); });
}

nb::dict gc(const RepositoryHandle& self, bool dry_run, const nb::object& progress) {
  const GcReport report =
      self.ask([&](Repository& place) { return place.gc({.dry_run = dry_run}, told_to(progress)); });
  nb::list notes;
  for (const std::string& note : report.notes) notes.append(text_to_python(note));
  nb::dict answer;
  answer["freed_bytes"] = report.freed_bytes;
  answer["live_bytes"] = report.live_bytes;
  answer["notes"] = notes;
  return answer;
}

}  // namespace

void bind_lineage(nb::class_<RepositoryHandle>& repository) {
  repository.def("aliases", &aliases, nb::arg("model"))
      .def("set_alias", &set_alias, nb::arg("model"), nb::arg("alias"), nb::arg("number"), nb::arg("expected").none());
  repository
      .def("lineage",
           [](const RepositoryHandle& self, const std::string& version) {
             return rows_to_python(
                 ask_of(self, version, [](Repository& place, const VersionName& name) { return place.lineage(name); }));
           })
      .def("versions",
           [](const RepositoryHandle& self, const std::string& model) {
             return rows_to_python(self.ask([&](Repository& place) { return place.versions(model); }));
           })
      .def("all_versions",
           [](const RepositoryHandle& self) {
             return rows_to_python(self.ask([](Repository& place) { return all_versions(place); }));
           })
      .def_static("svg", &svg_of)
      .def("models",
           [](const RepositoryHandle& self) { return self.ask([](Repository& place) { return place.models(); }); })
      .def("owners", &owners)
      .def("mrca", &mrca)
      .def("diff", &diff)
      .def("pin",
           [](const RepositoryHandle& self, const std::string& version, const std::string& by, bool stays) {
             ask_of(self, version, [&](Repository& place, const VersionName& name) {
               return place.pin(name, by, {.stays = stays, .lease = {}});
             });
           })
      .def("unpin",
           [](const RepositoryHandle& self, const std::string& version, const std::string& by) {
             ask_of(self, version, [&](Repository& place, const VersionName& name) { return place.unpin(name, by); });
           })
      .def("pins",
           [](const RepositoryHandle& self, const std::string& version) {
             return ask_of(self, version, [](Repository& place, const VersionName& name) { return place.pins(name); });
           })
      .def("retire", &retire)
      .def("gc", &gc, nb::arg(), nb::arg().none())
      .def("stat", &stat);
}

}  // namespace freshet::python
