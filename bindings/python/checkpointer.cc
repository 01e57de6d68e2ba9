// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/checkpointer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <typeinfo>
#include <utility>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/host_gpus.h"
#include "bindings/python/stream/records.h"
#include "bindings/python/tensors.h"
#include "bindings/runtime/checkpoint_place.h"
#include "core/base/deadline.h"
#include "core/base/format.h"
#include "transport/group/launcher.h"

namespace freshet::python {

namespace nb = nanobind;

void CheckpointNews::add(const CheckpointEvent& event) {
  const MutexLock lock(mutex_);
  if (events_.size() == kKeptMax) events_.pop_front();
  events_.push_back(event);
  if (!calls_ || event.kind != CheckpointEvent::Kind::reached) return;
  if (reached_.size() == kKeptMax) reached_.pop_front();
  reached_.push_back(event);
  came_.notify_all();
}

Result<std::optional<CheckpointEvent>> CheckpointNews::next_reached(Duration at_most) {
  const Time deadline = deadline_in(at_most);
  const MutexLock lock(mutex_);
  while (reached_.empty() && !ended_) {
    if (!came_.wait_until(mutex_, deadline) && reached_.empty() && !ended_) return fail(Code::timed_out, "");
  }
  if (reached_.empty()) return std::optional<CheckpointEvent>();
  CheckpointEvent event = std::move(reached_.front());
  reached_.pop_front();
  return std::optional(std::move(event));
}

void CheckpointNews::end() {
  const MutexLock lock(mutex_);
  ended_ = true;
  came_.notify_all();
}

std::deque<CheckpointEvent> CheckpointNews::take() {
  const MutexLock lock(mutex_);
  return std::exchange(events_, {});
}

std::shared_ptr<Checkpointer> CheckpointerHandle::get() const {
  if (open_ == nullptr) raise(Code::failed_precondition, "the checkpointer was closed");
  take(check_not_inherited(mark_, "the checkpointer"));
  return open_;
}

CheckpointNews& CheckpointerHandle::news() const {
  take(check_not_inherited(mark_, "the checkpointer"));
  return *news_;
}

void CheckpointerHandle::end_news() const {
  if (!mark_.is_inherited()) news_->end();
}

void CheckpointerHandle::close() {
  if (open_ == nullptr) return;
  std::shared_ptr<Checkpointer> open = std::exchange(open_, nullptr);
  if (mark_.is_inherited()) {
    // Its threads are the parent's: there is nothing here to end.
    new std::shared_ptr<Checkpointer>(std::move(open));
    return;
  }
  closing_.request_stop();
  const bool ends_here = open.use_count() == 1;
  Share<Checkpointer>::drop(open);
  // A call of another thread may keep the checkpointer for a while, and its copies: the arrays live as long as this.
  if (ends_here) copied_.clear();
}

namespace {

/// The value of a call that waits, or its error thrown.
template <typename T>
T take_from(const CheckpointerHandle& handle, Result<T> result) {
  if (!result && result.error().code() == Code::cancelled && handle.closing().stop_requested()) {
    raise(Code::cancelled, "the checkpointer was closed during the call");
  }
  return take(std::move(result));
}

/// (name, dtype, shape, role, layout) of a whole tensor.
using GivenTensor = std::tuple<std::string, std::string, std::vector<std::uint64_t>, std::string, std::string>;

LaidTensor laid_from(const GivenTensor& given) {
  const auto& [name, dtype, shape, role, layout] = given;
  LaidTensor laid;
  laid.spec.name = name;
  const auto known = dtype_named(dtype);
  if (!known) raise(Code::invalid_argument, format("tensor {}: dtype {} is unknown", name, dtype));
  laid.spec.dtype = *known;
  laid.spec.shape = shape;
  laid.spec.role = role_named(name, role);
  auto parsed = Layout::parse(layout);
  if (!parsed) throw Raised(std::move(parsed).error().with_context(format("tensor {}", name)));
  laid.layout = *parsed;
  return laid;
}

/// The keywords of a call with many of them. freshet/checkpointer.py gives each.
class Keywords {
 public:
  explicit Keywords(const nb::kwargs& given) : given_(given) {}

  template <typename T = std::string>
  T get(const char* name) const {
    try {
      return nb::cast<T>(given_[name]);
    } catch (const std::bad_cast&) {
      throw nb::type_error(format("{} is of a type that it cannot have", name).c_str());
    }
  }

 private:
  const nb::kwargs& given_;
};

Checkpointer::Options options_from(const Keywords& given) {
  Checkpointer::Options options{.model = given.get("model")};
  if (const auto* gpus = given.get<const HostGpus*>("gpus"); gpus != nullptr) options.gpus = gpus->platform();
  const auto rank = given.get<std::optional<std::uint32_t>>("rank");
  const auto ranks = given.get<std::optional<std::uint32_t>>("ranks");
  if (!rank || !ranks) {
    const auto launched = take(group::launched(system_env()));
    if (rank.has_value() != ranks.has_value()) raise(Code::invalid_argument, "rank and ranks go together");
    if (launched) {
      options.rank = launched->rank;
      options.ranks = launched->ranks;
      options.meet = launched->meet;
    }
  } else {
    options.rank = *rank;
    options.ranks = *ranks;
  }
  if (std::string meet = given.get("meet"); !meet.empty()) options.meet = std::move(meet);
  options.job = given.get("job");
  options.host = given.get("host");
  options.local = given.get<std::vector<std::string>>("local");
  options.group = take(levels::parse_group_scheme(given.get("group")));
  const std::string when_behind = given.get("when_behind");
  if (when_behind != "skip" && when_behind != "wait") {
    raise(Code::invalid_argument, format("when_behind is \"skip\" or \"wait\", not \"{}\"", when_behind));
  }
  if (when_behind == "wait") options.when_behind = levels::WhenBehind::wait;
  for (const auto& [level, count] : given.get<std::vector<std::pair<std::string, std::uint32_t>>>("keep")) {
    options.keep[take(levels::parse_level(level))] = count;
  }
  const auto limit_mib_s = given.get<double>("limit_mib_s");
  if (!(limit_mib_s >= 0 && limit_mib_s < 1e9)) raise(Code::invalid_argument, "limit_mib_s is 0 or more");
  options.limit_bytes_per_second = static_cast<std::uint64_t>(limit_mib_s * 1024 * 1024);
  const auto patience = given.get<double>("patience");
  if (!(patience > 0 && patience < 1e9)) raise(Code::invalid_argument, "patience is in seconds, over 0");
  options.patience = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(patience));
  const auto lost_after = given.get<double>("lost_after");
  if (!(lost_after >= 0.2 && lost_after <= 3600)) {
    raise(Code::invalid_argument, format("lost_after={}: 0.2 to 3600 seconds", lost_after));
  }
  options.lost_after = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(lost_after));
  options.security = {
      .key_file = given.get("keys"), .allow_file = given.get("allow"), .server_key = given.get("server_key")};
  set_external(options, given.get("external"), given.get("external_server_key"));
  return options;
}

CheckpointerHandle* open_checkpointer(const nb::kwargs& keywords) {
  const Keywords given(keywords);
  std::vector<LaidTensor> tensors;
  for (const auto& one : given.get<std::vector<GivenTensor>>("tensors")) tensors.push_back(laid_from(one));
  Checkpointer::Options options = options_from(given);
  auto news = std::make_shared<CheckpointNews>(given.get<bool>("calls"));
  options.on_event = [news](const CheckpointEvent& event) { news->add(event); };
  const std::uint32_t rank = options.rank;
  const std::uint32_t ranks = options.ranks;
  auto opened = call_unlocked([&] { return Checkpointer::open(std::move(options), std::move(tensors)); });
  if (!opened && opened.error().code() == Code::timed_out) opened = fail(Code::unavailable, opened.error().message());
  return new CheckpointerHandle(take(std::move(opened)), std::move(news), rank, ranks);
}

nb::object restore(const CheckpointerHandle& handle, const std::vector<WritableByteArray>& held,
                   std::optional<std::uint64_t> version, bool anew, bool allow_left) {
  const Share<Checkpointer> checkpointer(handle.get());
  std::vector<MutableBytes> memory;
  for (const WritableByteArray& one : held) {
    memory.emplace_back(reinterpret_cast<std::byte*>(one.data()), one.size());
  }
  levels::RestartChoice choice;
  choice.from_nothing = anew;
  choice.version = version;
  choice.allow_left = allow_left;
  const std::stop_token closing = handle.closing();
  const auto found = take_from(handle, call_unlocked([&] { return checkpointer->restore(memory, choice, closing); }));
  if (!found) return nb::none();
  nb::list from;
  for (const CheckpointLevel level : found->from) from.append(nb::str(levels::name_of(level).data()));
  nb::dict answer;
  answer["version"] = found->version.number;
  answer["step"] = found->step;
  answer["from"] = from;
  answer["rebuilt_bytes"] = found->rebuilt_bytes;
  answer["fresh"] = found->fresh;
  answer["left"] = found->left;
  answer["notes"] = found->notes;
  return answer;
}

/// (tensor, address, bytes, device, stream) of what a rank holds in a GPU's memory.
using HeldOnGpu = std::tuple<std::size_t, std::uintptr_t, std::uint64_t, std::int32_t, std::uintptr_t>;

void capture_on_gpus(const CheckpointerHandle& handle, const std::vector<HeldOnGpu>& given) {
  const Share<Checkpointer> checkpointer(handle.get());
  std::vector<Checkpointer::Held> held;
  for (const auto& [tensor, address, bytes, device, stream] : given) {
    held.push_back({.tensor = tensor,
                    .bytes = {reinterpret_cast<const std::byte*>(address), bytes},
                    .place = {.memory = MemoryKind::device, .device = device, .stream = stream}});
  }
  auto captured = [&] {
    const Unlocked unlocked;
    return checkpointer->capture(held);
  }();
  take(std::move(captured));
}

/// Does not keep the checkpointer: who waits may do so while the checkpointer is closed.
struct CopiesHandle {
  std::shared_ptr<const CheckpointCopies> copies;

  void wait() const {
    const auto kept = copies;
    take(wait_in_slices(std::nullopt, [&](Duration slice) -> Status {
      if (kept->wait(slice)) return {};
      return fail(Code::timed_out, "copies from a GPU still run");
    }));
  }
};

nb::dict captured_to_python(const Checkpointer::Captured& captured) {
  nb::dict answer;
  answer["version"] = captured.version;
  answer["blocked"] = seconds(captured.blocked);
  answer["bytes"] = captured.bytes;
  return answer;
}

nb::list events(const CheckpointerHandle& handle) {
  nb::list all;
  handle.get();  // It is open.
  for (const CheckpointEvent& event : handle.news().take()) {
    nb::dict one;
    const bool lost = event.kind == CheckpointEvent::Kind::lost;
    one["event"] = lost ? "lost" : event.kind == CheckpointEvent::Kind::reached ? "reached" : "failed";
    if (lost) {
      one["peers"] = event.peers;
    } else {
      one["version"] = event.version;
      one["step"] = event.step;
      one["level"] = nb::str(levels::name_of(event.level).data());
      one["seconds"] = seconds(event.after);
    }
    one["error"] = event.error ? nb::object(text_to_python(event.error->message())) : nb::none();
    all.append(one);
  }
  return all;
}

}  // namespace

void bind_checkpointer(nb::module_& module) {
  nb::class_<CopiesHandle>(module, "CheckpointCopies").def("wait", &CopiesHandle::wait);
  nb::class_<CheckpointerHandle>(module, "Checkpointer")
      .def_static("open", &open_checkpointer, nb::rv_policy::take_ownership)
      .def("restore", &restore, nb::arg("held"), nb::arg("version").none(), nb::arg("anew"), nb::arg("allow_left"))
      .def("begin",
           [](const CheckpointerHandle& handle, std::uint64_t step) {
             const Share<Checkpointer> checkpointer(handle.get());
             const std::stop_token closing = handle.closing();
             return take_from(handle, call_unlocked([&] { return checkpointer->begin(step, closing); }));
           })
      .def("capture",
           [](const CheckpointerHandle& handle, std::size_t tensor, const ByteArray& bytes) {
             const Share<Checkpointer> checkpointer(handle.get());
             const Bytes held(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
             auto captured = [&] {
               const Unlocked unlocked;
               return checkpointer->capture(tensor, held);
             }();
             take(std::move(captured));
           })
      .def("capture_beside",
           [](CheckpointerHandle& handle, std::size_t tensor, const ByteArray& bytes) {
             const Share<Checkpointer> checkpointer(handle.get());
             const Bytes held(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
             auto captured = [&] {
               const Unlocked unlocked;
               return checkpointer->capture_beside(tensor, held);
             }();
             take(std::move(captured));
             handle.hold(tensor, bytes);
           })
      .def("stored",
           [](const CheckpointerHandle& handle, std::size_t tensor) {
             const Checkpointer::Stored stored = handle.get()->stored(tensor);
             return std::pair(stored.offset, stored.bytes);
           })
      .def("capture_on_gpus", &capture_on_gpus)
      .def("copies",
           [](const CheckpointerHandle& handle) -> std::optional<CopiesHandle> {
             auto copies = handle.get()->copies();
             return copies == nullptr ? std::nullopt : std::optional(CopiesHandle{std::move(copies)});
           })
      .def("wait_for_copy",
           [](CheckpointerHandle& handle, std::size_t tensor) {
             const Share<Checkpointer> checkpointer(handle.get());
             if (!handle.holds(tensor)) return;
             auto waited = [&] {
               const Unlocked unlocked;
               return checkpointer->wait_for_copy(tensor);
             }();
             take(std::move(waited));
             handle.let_go(tensor);
           })
      .def("end",
           [](CheckpointerHandle& handle) {
             const Share<Checkpointer> checkpointer(handle.get());
             auto captured = [&] {
               const Unlocked unlocked;
               return checkpointer->end();
             }();
             handle.let_go_of_all();
             return captured_to_python(take(std::move(captured)));
           })
      .def("poll",
           [](const CheckpointerHandle& handle, std::uint64_t version, const std::string& level) {
             return take(handle.get()->poll(version, take(levels::parse_level(level))));
           })
      .def(
          "wait",
          [](const CheckpointerHandle& handle, std::uint64_t version, const std::string& level,
             std::optional<double> timeout) {
            const Share<Checkpointer> checkpointer(handle.get());
            const CheckpointLevel wanted = take(levels::parse_level(level));
            const std::stop_token closing = handle.closing();
            take_from(handle, wait_in_slices(timeout, [&](Duration slice) {
                        return checkpointer->wait(version, wanted, slice, closing);
                      }));
          },
          nb::arg("version"), nb::arg("level"), nb::arg("timeout").none())
      .def(
          "finish",
          [](const CheckpointerHandle& handle, std::optional<double> timeout) {
            const Share<Checkpointer> checkpointer(handle.get());
            const std::optional<Time> deadline = deadline_of(timeout);
            const std::stop_token closing = handle.closing();
            take_from(handle,
                      wait_in_slices(timeout, [&](Duration slice) { return checkpointer->settle(slice, closing); }));
            take_from(handle, call_unlocked([&] {
                        return checkpointer->finish(
                            deadline ? *deadline - system_clock().now() : std::chrono::hours(24), closing);
                      }));
          },
          nb::arg("timeout").none())
      .def("check_stored", [](const CheckpointerHandle& handle) { take(handle.get()->check_stored()); })
      .def("events", &events)
      .def("next_reached",
           [](const CheckpointerHandle& handle) -> nb::object {
             CheckpointNews& news = handle.news();
             const auto event =
                 take(wait_in_slices(std::nullopt, [&](Duration slice) { return news.next_reached(slice); }));
             if (!event) return nb::none();
             return nb::make_tuple(event->version, event->step, levels::name_of(event->level).data());
           })
      .def("end_news", &CheckpointerHandle::end_news)
      .def("levels",
           [](const CheckpointerHandle& handle) {
             std::vector<std::string> names;
             for (const CheckpointLevel level : handle.get()->levels()) names.emplace_back(levels::name_of(level));
             return names;
           })
      .def("rank", &CheckpointerHandle::rank)
      .def("ranks", &CheckpointerHandle::ranks)
      .def("is_open", &CheckpointerHandle::is_open)
      .def("close", &CheckpointerHandle::close);
  module.def("held_shape", [](const GivenTensor& given, std::uint32_t ranks, std::uint32_t rank) {
    const LaidTensor laid = laid_from(given);
    take(check_layouts(std::span(&laid, 1), ranks));
    if (rank >= ranks) raise(Code::invalid_argument, format("rank {} of {} ranks cannot be", rank, ranks));
    const bool is_elsewhere = laid.layout.cut == Cut::on && laid.layout.argument % ranks != rank;
    return std::pair(held_shape(laid, ranks, rank), is_elsewhere);
  });
}

}  // namespace freshet::python
