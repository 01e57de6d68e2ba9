// SPDX-License-Identifier: Apache-2.0
#include "repo/sink.h"

#include <limits>
#include <optional>
#include <thread>

#include "core/base/deadline.h"
#include "core/base/fork_guard.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "transport/subscriber.h"

namespace freshet {
namespace {

/// How soon the sink notices that it is to stop.
constexpr Duration kRound = std::chrono::milliseconds(100);
/// The last version to store, while nobody has asked for an end.
constexpr VersionNumber kNoLast = std::numeric_limits<VersionNumber>::max();

/// Storing it again later cannot help.
bool is_hopeless(Code code) {
  return code == Code::corrupt || code == Code::invalid_argument || code == Code::failed_precondition;
}

}  // namespace

class Sink::Impl {
 public:
  Impl(Repository& repository, SinkOptions options, std::unique_ptr<Subscriber> subscriber, VersionNumber newest)
      : repository_(repository),
        options_(std::move(options)),
        subscriber_(std::move(subscriber)),
        status_{.newest = newest, .published = newest},
        thread_([this](const std::stop_token& stop) { run(stop); }) {}

  bool is_inherited() const { return mark_.is_inherited(); }

  SinkStatus status() const {
    const SubscriberStatus subscriber = subscriber_->status();
    const MutexLock lock(mutex_);
    SinkStatus status = status_;
    status.connected = subscriber.connected;
    status.announced = subscriber.newest_known;
    const bool is_of_these_numbers = subscriber.numbers_since && published_by_ >= *subscriber.numbers_since;
    if (!is_of_these_numbers) status.published = 0;
    return status;
  }

  bool finish(Duration at_most) {
    const VersionNumber announced = subscriber_->status().newest_known;
    const MutexLock lock(mutex_);
    last_ = announced;
    const Time deadline = deadline_in(at_most);
    while (!ended_) {
      if (!ended_changed_.wait_until(mutex_, deadline)) return false;
    }
    return !status_.failing;
  }

 private:
  /// A version that is not stored yet, pinned in the publisher's memory.
  struct Pending {
    Subscriber::Delivery delivery;
    Time tried_at{};
    bool reported = false;  ///< Its failure was.
  };

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      Result<Subscriber::Delivery> next = subscriber_->next(kRound);
      if (next) {
        give_up_pending();
        unstored_ += next->update.gap_before;
        count_gaps(next->update.gap_before);
        pending_ = Pending{.delivery = std::move(*next)};
        store_pending(stop);
      } else if (pending_ && clock().now() >= pending_->tried_at + options_.retry_after) {
        store_pending(stop);
      } else if (next.error().code() != Code::timed_out) {
        note_error(next.error());
        std::this_thread::sleep_for(kRound);
      }
      if (has_finished(next.has_value())) break;
    }
    const MutexLock lock(mutex_);
    ended_ = true;
    ended_changed_.notify_all();
  }

  /// Whether nothing more comes that finish() waits for. A version that could not be stored is not waited for.
  bool has_finished(bool has_come) {
    VersionNumber last = 0;
    {
      const MutexLock lock(mutex_);
      last = last_;
    }
    if (last == kNoLast) return false;
    return pending_ || handled_ >= last || (!has_come && !subscriber_->status().connected);
  }

  void store_pending(const std::stop_token& stop) {
    const Snapshot& snapshot = pending_->delivery.snapshot;
    handled_ = snapshot.manifest().name.number;
    const Time started = clock().now();
    std::uint64_t bytes_written = 0;
    Result<VersionName> name = repository_.put(
        snapshot.manifest(),
        [&](std::uint32_t tensor) -> Result<Bytes> {
          const Bytes bytes = snapshot.bytes(tensor);
          bytes_written += bytes.size();
          return bytes;
        },
        {.dedup = options_.dedup, .deltas = options_.deltas, .ancestor_may_be_retired = true, .stop = stop});
    SinkOptions::Event event{.version = snapshot.manifest().name,
                             .put_time = clock().now() - started,
                             .published = snapshot.manifest().name.number,
                             .step = snapshot.manifest().step,
                             .metrics = snapshot.manifest().metrics};
    if (name) {
      event.version = *name;
      event.own_bytes = bytes_written;
      stored(event);
    } else if (name.error().code() == Code::already_exists) {
      already_stored(event);
    } else if (name.error().code() == Code::cancelled && stop.stop_requested()) {
      pending_.reset();  // Nobody is told: the sink ends, and may have stored it.
    } else {
      event.status = fail(std::move(name).error());
      failed(event);
    }
  }

  void stored(SinkOptions::Event& event) {
    event.gap_before = std::exchange(unstored_, 0);
    {
      const MutexLock lock(mutex_);
      ++status_.stored;
      status_.newest = event.version.number;
      note_published();
      status_.failing = false;
      status_.last_error.clear();
    }
    pending_.reset();
    tell(event);
    if (options_.on_event) options_.on_event(event);
  }

  /// A full disk must be heard of while training goes on: the first failure, each one of another kind, and the end of
  /// it.
  void tell(const SinkOptions::Event& event) {
    const auto failure = event.status ? std::nullopt : std::optional(event.status.error().code());
    if (std::exchange(told_, failure) == failure) return;
    if (event.status) {
      log_line(LogLevel::info, format("the sink stores again, {} first; {} versions before it are missing",
                                      to_string(event.version), event.gap_before));
    } else {
      log_line(LogLevel::warning, format("the sink cannot store {}, and goes on with it or with the next version: {}",
                                         to_string(event.version), event.status.error().message()));
    }
  }

  // From before a restart, and nothing to tell; or by an attempt that seemed to fail.
  void already_stored(SinkOptions::Event& event) {
    if (pending_->reported) {
      // The repository may have given it another number than the publisher.
      const auto name = repository_.find(pending_->delivery.snapshot.manifest().id);
      if (name && *name) event.version = **name;
      return stored(event);
    }
    {
      const MutexLock lock(mutex_);
      note_published();
    }
    pending_.reset();
  }

  /// What is pending is stored.
  void note_published() FRESHET_REQUIRES(mutex_) {
    const Manifest& manifest = pending_->delivery.snapshot.manifest();
    status_.published = manifest.name.number;
    published_by_ = manifest.id.incarnation;
  }

  void failed(const SinkOptions::Event& event) {
    note_error(event.status.error());
    tell(event);
    const bool first = !std::exchange(pending_->reported, true);
    pending_->tried_at = clock().now();
    if (is_hopeless(event.status.error().code())) give_up_pending();
    if (first && options_.on_event) options_.on_event(event);
  }

  void note_error(const Error& error) {
    const MutexLock lock(mutex_);
    status_.failing = true;
    status_.last_error = error.message();
  }

  void give_up_pending() {
    if (!pending_) return;
    pending_.reset();
    ++unstored_;
    count_gaps(1);
  }

  void count_gaps(std::uint64_t versions) {
    const MutexLock lock(mutex_);
    status_.gaps += versions;
  }

  static const Clock& clock() { return system_clock(); }

  const ForkMark mark_;
  Repository& repository_;
  const SinkOptions options_;
  const std::unique_ptr<Subscriber> subscriber_;

  mutable Mutex mutex_;
  SinkStatus status_ FRESHET_GUARDED_BY(mutex_);
  /// The incarnation that gave the number status_.published. 0: the number is the repository's, of a life before. It is
  /// the publisher's too, unless the publisher's numbers began anew.
  std::uint64_t published_by_ FRESHET_GUARDED_BY(mutex_) = 0;

  VersionNumber last_ FRESHET_GUARDED_BY(mutex_) = kNoLast;  ///< That finish() waits for.
  bool ended_ FRESHET_GUARDED_BY(mutex_) = false;            ///< The thread takes no more versions.
  CondVar ended_changed_;

  // The thread's.
  std::optional<Pending> pending_;
  VersionNumber handled_ = 0;   ///< The publisher's number of the last version that came.
  std::optional<Code> told_;    ///< The failure that the log had last; nothing when versions are stored.
  std::uint64_t unstored_ = 0;  ///< Versions since the last stored one that are not.

  std::jthread thread_;  ///< The last member: it is joined before the others go.
};

Sink::Sink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sink::~Sink() {
  // A forked child has not its thread.
  if (impl_->is_inherited()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<Sink>> Sink::open(Repository& repository, SinkOptions options) {
  const Result<VersionNumber> newest = repository.latest(options.model);
  if (!newest && newest.error().code() != Code::not_found) return fail(newest.error());
  std::uint64_t incarnation = 0;
  if (newest) {
    // One whose record is damaged does not keep the next from coming.
    const auto record = repository.get({.model = options.model, .number = *newest});
    if (record) incarnation = record->manifest.id.incarnation;
  }
  FRESHET_ASSIGN(std::unique_ptr<Subscriber> subscriber, Subscriber::open({.model = options.model,
                                                                           .at = options.at,
                                                                           .directory = options.directory,
                                                                           .label = options.label,
                                                                           .every = true,
                                                                           .after = newest.value_or(0),
                                                                           .after_incarnation = incarnation,
                                                                           .whole = true,
                                                                           .security = options.security}));
  return std::unique_ptr<Sink>(
      new Sink(std::make_unique<Impl>(repository, std::move(options), std::move(subscriber), newest.value_or(0))));
}

bool Sink::finish(Duration at_most) { return !impl_->is_inherited() && impl_->finish(at_most); }

SinkStatus Sink::status() const { return impl_->is_inherited() ? SinkStatus{} : impl_->status(); }

}  // namespace freshet
