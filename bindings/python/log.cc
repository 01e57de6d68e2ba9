// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/log.h"

#include <deque>
#include <string>
#include <utility>

#include "bindings/python/gil.h"
#include "bindings/python/stream/records.h"
#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "core/base/mutex.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

constexpr std::size_t kLogLinesMax = 256;
/// How long the thread that logs waits at most before Python may look around.
constexpr Duration kLogWait = std::chrono::seconds(60);

struct LogLine {
  LogLevel level = LogLevel::info;
  std::string text;
};

class LogQueue {
 public:
  void tell(LogLevel level, const std::string& line) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (lines_.size() == kLogLinesMax) {
      ++dropped_;
      return;
    }
    lines_.push_back({level, line});
    changed_.notify_all();
  }

  /// The next line; false when none came in that time, or none will.
  bool next(Duration at_most, LogLine& line) FRESHET_EXCLUDES(mutex_) {
    const Time deadline = deadline_in(at_most);
    const MutexLock lock(mutex_);
    while (lines_.empty() && !ended_) {
      if (!changed_.wait_until(mutex_, deadline)) break;
    }
    if (lines_.empty()) return false;
    line = std::move(lines_.front());
    lines_.pop_front();
    if (dropped_ > 0 && lines_.empty()) {
      lines_.push_back({LogLevel::warning, format("{} more lines were not logged: too many at once", dropped_)});
      dropped_ = 0;
    }
    return true;
  }

  void end() FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  bool ended() FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return ended_ && lines_.empty();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<LogLine> lines_ FRESHET_GUARDED_BY(mutex_);
  std::size_t dropped_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool ended_ FRESHET_GUARDED_BY(mutex_) = false;
};

/// Guarded by the interpreter's lock. Never destroyed: C++'s threads may log while the process ends, and what a child
/// inherited may be locked for ever there.
LogQueue* log_queue = nullptr;

}  // namespace

void bind_log(nb::module_& module) {
  module.def(
      "log_begin",
      [] {
        log_queue = new LogQueue();
        set_log_hook([queue = log_queue](LogLevel level, const std::string& line) { queue->tell(level, line); });
      },
      "Once in each process: from now on lines wait for log_next().");
  module.def(
      "log_next",
      []() -> nb::object {
        LogQueue& queue = *log_queue;
        LogLine line;
        const bool came = [&] {
          const Unlocked unlocked;
          return queue.next(kLogWait, line);
        }();
        if (came) return nb::make_tuple(line.level == LogLevel::warning, text_to_python(line.text));
        return nb::cast(!queue.ended());
      },
      "(is a warning, line), or whether there may be another one; waits for a minute.");
  module.def(
      "log_end",
      [] {
        set_log_hook(nullptr);
        log_queue->end();
      },
      "Lines go to stderr again, and log_next() ends when it has told all that wait.");
  module.def(
      "log_in_child", [] { set_log_hook(nullptr); }, "After a fork: nobody takes from the queue here.");
}

}  // namespace freshet::python
