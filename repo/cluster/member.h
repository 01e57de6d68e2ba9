#pragma once

/// One provider of a repository, as a client sees it: reached when it is first needed, and again after it was lost.
/// Private to this room.

#include <functional>
#include <memory>
#include <string>

#include "core/mutex.h"
#include "core/result.h"
#include "repo/cluster/placement.h"
#include "repo/repository.h"

namespace freshet {

/// Whether a provider did not answer, rather than answered no.
bool is_away(const Error& error);

}  // namespace freshet

namespace freshet::cluster {

/// Reaches a provider. May take as long as reaching a host does; unavailable when it does not answer.
using Connect = std::function<Result<std::shared_ptr<Repository>>(const Provider& provider)>;

/// Any thread.
class Member {
 public:
  Member(Provider provider, Connect connect, std::shared_ptr<SeenPosition> seen = std::make_shared<SeenPosition>())
      : provider_(std::move(provider)), connect_(std::move(connect)), seen_(std::move(seen)) {}

  const Provider& provider() const { return provider_; }
  /// Covers all that its answers told.
  const std::shared_ptr<SeenPosition>& seen() const { return seen_; }

  /// Calls `ask(repository)`, which returns a Result or a Status. Its error names the provider; after one that says
  /// that it did not answer, the next ask connects anew.
  template <typename Ask>
  auto ask(const Ask& ask) const -> decltype(ask(std::declval<Repository&>())) {
    Result<std::shared_ptr<Repository>> repository = reached();
    if (!repository) return fail(named(std::move(repository).error()));
    auto answer = ask(**repository);
    if (const std::optional<HeardPosition> heard = (*repository)->heard()) seen_->note(*heard);
    if (!answer) {
      if (answer.error().code() == Code::unavailable) lost(*repository);
      return fail(named(answer.error()));
    }
    return answer;
  }

 private:
  Result<std::shared_ptr<Repository>> reached() const;
  void lost(const std::shared_ptr<Repository>& repository) const;
  Error named(Error error) const;

  const Provider provider_;
  const Connect connect_;
  const std::shared_ptr<SeenPosition> seen_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<Repository> repository_ FRESHET_GUARDED_BY(mutex_);
};

/// Runs `work(i)` for each i below `count`, at the same time on threads of their own, and returns when all are done.
void at_once(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace freshet::cluster
