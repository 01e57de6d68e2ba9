// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Repository, as Python holds it. Every call that may touch a disk or a peer lets go of the interpreter's lock.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/graph.h"
#include "bindings/python/tensors.h"
#include "bindings/runtime/repository_folder.h"
#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "repo/repository.h"
#include "repo/sink.h"

namespace freshet::python {

/// A forked child leaves it alone: its threads and its database are the parent's.
struct OpenPlace {
  OpenedRepository repository;
  ForkMark mark;
  ~OpenPlace() {
    if (mark.is_inherited()) static_cast<void>(new OpenedRepository(std::move(repository)));
  }
};

/// The pointer is guarded by the interpreter's lock.
class RepositoryHandle {
 public:
  RepositoryHandle(std::shared_ptr<OpenPlace> open, std::string place)
      : open_(std::move(open)), place_(std::move(place)) {}
  ~RepositoryHandle() { close(); }

  /// The answer of `call` on the repository; throws its error.
  template <typename Call>
  auto ask(Call call) const;

  void close() {
    std::shared_ptr<OpenPlace> open = std::exchange(open_, nullptr);
    Share<OpenPlace>::drop(open);
  }
  bool is_open() const { return open_ != nullptr; }
  /// failed_precondition when it was closed, or in a forked child.
  std::shared_ptr<OpenPlace> get() const;

 private:
  std::shared_ptr<OpenPlace> open_;
  std::string place_;
};

/// Wakes the threads that wait for a sink. The sink's thread never enters Python. Any thread.
class SinkNews {
 public:
  /// The sink, which is borrowed until close().
  void watch(const Sink& sink) FRESHET_EXCLUDES(mutex_);
  /// Something was stored, or failed.
  void wake() FRESHET_EXCLUDES(mutex_);
  void close() FRESHET_EXCLUDES(mutex_);
  /// The newest stored version, once the publisher's version of that number is stored, or a later one. timed_out, with
  /// what failed last; failed_precondition once closed.
  Result<VersionNumber> wait_for(VersionNumber published, Duration at_most) FRESHET_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar changed_;
  const Sink* sink_ FRESHET_GUARDED_BY(mutex_) = nullptr;  ///< None before watch(), and once closed.
};

/// The repository must stay open until the sink is closed, so the sink has a share in it.
class SinkHandle {
 public:
  SinkHandle(std::shared_ptr<OpenPlace> place, std::unique_ptr<Sink> sink, std::shared_ptr<SinkNews> news)
      : place_(std::move(place)), sink_(std::move(sink)), news_(std::move(news)) {
    news_->watch(*sink_);
  }
  ~SinkHandle() { close(); }
  nanobind::dict status() const;
  VersionNumber wait_for(VersionNumber version, std::optional<double> timeout_seconds) const;
  void close();
  bool is_open() const { return sink_ != nullptr; }

 private:
  std::shared_ptr<OpenPlace> place_;
  std::unique_ptr<Sink> sink_;
  std::shared_ptr<SinkNews> news_;
};

template <typename Call>
auto RepositoryHandle::ask(Call call) const {
  const Share<OpenPlace> open(get());
  return take(call_unlocked([&] { return call(*open->repository); }));
}

/// For a forked child, once: if a repository was opened before the fork, the child ends without the destructors of
/// objects that its parent made for the process. RocksDB's timer is one, whose destructor waits for ever for threads
/// that only the parent has.
void end_child_without_destructors();

/// Tells Python now and then how far a call is; nothing where `callback`, which it borrows, is None. An Exception that
/// Python raises is its own affair; Ctrl-C ends the call of call_unlocked(). One thread at a time.
Progress told_to(const nanobind::object& callback);

void bind_repository(nanobind::module_& module);
/// The part that asks who came from whom, and that retires and collects.
void bind_lineage(nanobind::class_<RepositoryHandle>& repository);

}  // namespace freshet::python
