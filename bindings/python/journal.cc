// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/journal.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <string_view>

#include "bindings/python/errors.h"
#include "bindings/python/stream/subscriber.h"
#include "bindings/serving/journal.h"
#include "core/base/clock.h"
#include "core/base/format.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

/// The pointer is guarded by the interpreter's lock, which a record() keeps: it is one write to the page cache, and a
/// thread that let the lock go would wait longer to get it back.
class JournalHandle {
 public:
  explicit JournalHandle(std::unique_ptr<serving::Journal> journal)
      : path_(journal->path()), journal_(std::move(journal)) {}

  bool record(std::string_view request, const Pin& pin) const {
    const PinnedVersion& version = pin.get();
    const std::int64_t now = system_clock().unix_ns();
    return take(get().record({.request = request,
                              .manifest = version.manifest(),
                              .newest = version.newest_known(now),
                              .served_unix_ns = now}));
  }
  std::uint64_t lost() const { return get().lost(); }
  void close() { journal_.reset(); }
  bool is_open() const { return journal_ != nullptr; }

 private:
  serving::Journal& get() const {
    if (journal_ == nullptr) raise(Code::failed_precondition, format("the journal {} was closed", path_));
    return *journal_;
  }

  std::string path_;
  std::unique_ptr<serving::Journal> journal_;
};

}  // namespace

void bind_journal(nb::module_& module) {
  nb::class_<JournalHandle>(module, "Journal")
      .def_static(
          "open",
          [](std::string path, std::uint64_t bytes_max, std::size_t files_max) {
            return new JournalHandle(take(
                serving::Journal::open({.path = std::move(path), .bytes_max = bytes_max, .files_max = files_max})));
          },
          nb::arg("path"), nb::arg("bytes_max"), nb::arg("files_max"), nb::rv_policy::take_ownership)
      .def("record",
           [](const JournalHandle& journal, nb::str request, const Pin& pin) {
             Py_ssize_t bytes = 0;
             const char* const text = PyUnicode_AsUTF8AndSize(request.ptr(), &bytes);
             if (text == nullptr) throw nb::python_error();
             return journal.record({text, static_cast<std::size_t>(bytes)}, pin);
           })
      .def("lost", &JournalHandle::lost)
      .def("close", &JournalHandle::close)
      .def("is_open", &JournalHandle::is_open);
}

}  // namespace freshet::python
