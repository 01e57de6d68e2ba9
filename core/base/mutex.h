// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Mutex, MutexLock and CondVar that clang's thread-safety analysis can see (it does not see std::mutex). Members that
/// a mutex protects are marked FRESHET_GUARDED_BY(mutex_); functions that need it held, FRESHET_REQUIRES(mutex_).

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define FRESHET_THREAD_ATTRIBUTE_(x) __attribute__((x))
#else
#define FRESHET_THREAD_ATTRIBUTE_(x)
#endif
#define FRESHET_GUARDED_BY(x) FRESHET_THREAD_ATTRIBUTE_(guarded_by(x))
#define FRESHET_REQUIRES(...) FRESHET_THREAD_ATTRIBUTE_(requires_capability(__VA_ARGS__))
#define FRESHET_EXCLUDES(...) FRESHET_THREAD_ATTRIBUTE_(locks_excluded(__VA_ARGS__))
#define FRESHET_NO_THREAD_SAFETY_ANALYSIS FRESHET_THREAD_ATTRIBUTE_(no_thread_safety_analysis)

namespace freshet {

class FRESHET_THREAD_ATTRIBUTE_(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() FRESHET_THREAD_ATTRIBUTE_(acquire_capability()) { mutex_.lock(); }
  void unlock() FRESHET_THREAD_ATTRIBUTE_(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class FRESHET_THREAD_ATTRIBUTE_(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FRESHET_THREAD_ATTRIBUTE_(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() FRESHET_THREAD_ATTRIBUTE_(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// A condition variable for Mutex. Callers loop: `while (!condition) cv.wait_until(mutex_, deadline)`.
class CondVar {
 public:
  /// False when the deadline passed. The mutex is held again either way.
  template <typename Clock, typename Duration>
  bool wait_until(Mutex& mutex, std::chrono::time_point<Clock, Duration> deadline) FRESHET_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  /// For threads that their owner wakes before joining them; everybody else gives a deadline.
  void wait(Mutex& mutex) FRESHET_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace freshet
