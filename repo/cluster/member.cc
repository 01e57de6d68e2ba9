// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/member.h"

#include <algorithm>
#include <stop_token>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"

namespace freshet {

bool is_away(const Error& error) { return error.code() == Code::unavailable || error.code() == Code::timed_out; }

}  // namespace freshet

namespace freshet::cluster {

bool Member::is_away() const {
  const MutexLock lock(mutex_);
  return absence_.has_value();
}

bool Member::is_to_be_avoided() const {
  const Time now = clock_.now();
  const MutexLock lock(mutex_);
  return absence_ && now < absence_->avoid_until;
}

Status Member::reach() const {
  const Result<std::shared_ptr<ProviderRepository>> repository = reached();
  return repository ? Status() : fail(named(repository.error()));
}

Result<std::shared_ptr<ProviderRepository>> Member::reached() const {
  const Time begun = clock_.now();
  {
    const MutexLock lock(mutex_);
    if (repository_ != nullptr) return repository_;
    if (absence_ && absence_->fail_until) {
      if (begun < *absence_->fail_until) return fail(absence_->why);
      // This call tries. The others need not wait with it.
      absence_->fail_until = begun + kFailAtOnce;
    }
  }
  // Two threads may connect at once; one of the connections is then used and the other one closed.
  Result<std::shared_ptr<ProviderRepository>> repository = connect_(provider_);
  const Time now = clock_.now();
  const MutexLock lock(mutex_);
  if (!repository) {
    note_absence(repository.error(), begun, now);
    return repository;
  }
  absence_.reset();
  if (repository_ == nullptr) repository_ = *std::move(repository);
  return repository_;
}

void Member::note_absence(const Error& why, Time begun, Time now) const {
  // Somebody else may have reached it meanwhile.
  if (!::freshet::is_away(why) || repository_ != nullptr) return;
  if (!absence_) absence_.emplace();
  const std::uint64_t doublings = std::min<std::uint64_t>(absence_->times++, 16);
  absence_->why = why;
  absence_->avoid_until = now + std::min<Duration>(kAvoidMax, kAvoidMin * (std::int64_t{1} << doublings));
  if (now - begun >= kLongWait) {
    absence_->fail_until = now + kFailAtOnce;
  } else {
    absence_->fail_until.reset();
  }
}

void Member::lost(const std::shared_ptr<ProviderRepository>& repository) const {
  std::shared_ptr<ProviderRepository> gone;  // Closed without the lock.
  const MutexLock lock(mutex_);
  if (repository_ == repository) gone.swap(repository_);
}

std::string Member::label() const {
  const std::string& address = provider_.address;
  return address.empty() ? format("provider {}", provider_.id) : format("provider {} ({})", provider_.id, address);
}

Error Member::named(Error error) const { return std::move(error).with_context(label()); }

namespace {

/// The threads of at_once().
class Crowd {
 public:
  void leave() {
    const MutexLock lock(mutex_);
    ++left_;
    changed_.notify_all();
  }
  bool have_left(std::size_t count, Time until) {
    const MutexLock lock(mutex_);
    while (left_ < count) {
      if (!changed_.wait_until(mutex_, until)) return left_ >= count;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::size_t left_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace

void at_once(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::stop_source stop;
  const std::stop_token token = Interruption::is_possible() ? stop.get_token() : std::stop_token();
  Crowd crowd;
  std::vector<std::jthread> others;
  std::size_t next = 1;
  try {
    for (; next < count; ++next) {
      others.emplace_back([&work, &crowd, &token, i = next] {
        const StopInterrupts stops(token);
        work(i);
        crowd.leave();
      });
    }
  } catch (const std::system_error&) {
    // No more threads are to be had: what is left is done here, one after the other.
  }
  if (count != 0) work(0);
  for (; next < count; ++next) work(next);
  // Only this thread can ask its Interruption, for all of them.
  while (Interruption::is_possible() && !crowd.have_left(others.size(), Interruption::next_look(Time::max()))) {
    if (Interruption::is_wanted()) stop.request_stop();
  }
}

}  // namespace freshet::cluster
