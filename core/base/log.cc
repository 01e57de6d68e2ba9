// SPDX-License-Identifier: Apache-2.0
#include "core/base/log.h"

#include <pthread.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "core/base/mutex.h"

namespace freshet {
namespace {

struct LogPlace {
  Mutex mutex;
  std::shared_ptr<const LogHook> hook FRESHET_GUARDED_BY(mutex);
};

/// Never destroyed: threads may log while the process ends.
LogPlace& log_place();

LogPlace* make_log_place() {
  auto* place = new LogPlace();
  // A child that was forked while another thread was in here must not wait for that thread.
  (void)::pthread_atfork([]() FRESHET_NO_THREAD_SAFETY_ANALYSIS { log_place().mutex.lock(); },
                         []() FRESHET_NO_THREAD_SAFETY_ANALYSIS { log_place().mutex.unlock(); },
                         []() FRESHET_NO_THREAD_SAFETY_ANALYSIS { log_place().mutex.unlock(); });
  return place;
}

LogPlace& log_place() {
  static LogPlace& place = *make_log_place();
  return place;
}

}  // namespace

void set_log_hook(LogHook hook) {
  auto kept = hook ? std::make_shared<const LogHook>(std::move(hook)) : nullptr;
  LogPlace& place = log_place();
  const MutexLock lock(place.mutex);
  place.hook.swap(kept);
}

void log_line(LogLevel level, const std::string& line) {
  std::shared_ptr<const LogHook> hook;
  {
    LogPlace& place = log_place();
    const MutexLock lock(place.mutex);
    hook = place.hook;
  }
  if (hook) {
    (*hook)(level, line);
    return;
  }
  const std::string text = "freshet: " + line + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace freshet
