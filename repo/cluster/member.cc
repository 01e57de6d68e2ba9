#include "repo/cluster/member.h"

#include <system_error>
#include <thread>
#include <vector>

#include "core/format.h"

namespace freshet {

bool is_away(const Error& error) { return error.code() == Code::unavailable || error.code() == Code::timed_out; }

}  // namespace freshet

namespace freshet::cluster {

Result<std::shared_ptr<Repository>> Member::reached() const {
  {
    const MutexLock lock(mutex_);
    if (repository_ != nullptr) return repository_;
  }
  // Two threads may connect at once; one of the connections is then used and the other one closed.
  FRESHET_ASSIGN(std::shared_ptr<Repository> repository, connect_(provider_));
  const MutexLock lock(mutex_);
  if (repository_ == nullptr) repository_ = std::move(repository);
  return repository_;
}

void Member::lost(const std::shared_ptr<Repository>& repository) const {
  std::shared_ptr<Repository> gone;  // Closed without the lock.
  const MutexLock lock(mutex_);
  if (repository_ == repository) gone.swap(repository_);
}

Error Member::named(Error error) const {
  return std::move(error).with_context(provider_.address.empty()
                                           ? format("provider {}", provider_.id)
                                           : format("provider {} ({})", provider_.id, provider_.address));
}

void at_once(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::vector<std::jthread> others;
  std::size_t next = 1;
  try {
    for (; next < count; ++next) others.emplace_back([&work, i = next] { work(i); });
  } catch (const std::system_error&) {
    // No more threads are to be had: what is left is done here, one after the other.
  }
  if (count != 0) work(0);
  for (; next < count; ++next) work(next);
}

}  // namespace freshet::cluster
