// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The leases of a FetchSource, and how many fetches are open under each: of a publisher's versions (fetch_desk.h), and
/// of what a repository lends (repo/serve/server/read_desk.h). A lease that was closed admits nobody; it is over, and
/// what it names may change, when its last fetch has ended.
///
/// Guarded by its owner's lock. The book hands back leases that are over, so that they are destroyed outside of that
/// lock.

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/result.h"
#include "transport/channel/channel.h"

namespace freshet::source {

/// What each lease has, whatever it is on.
struct Leased {
  protocol::SessionId session = 0;
  Time until = Time::max();  ///< It ends by itself.
  std::size_t readers = 0;
  bool closed = false;
};

template <std::derived_from<Leased> Lease>
class LeaseBook {
 public:
  using LeaseId = protocol::LeaseId;

  void open(LeaseId id, std::shared_ptr<Lease> lease) {
    FRESHET_CHECK(leases_.try_emplace(id, std::move(lease)).second);
  }
  /// failed_precondition, in the same words whatever is wrong: a session that does not know a lease learns nothing.
  Result<std::shared_ptr<Lease>> living(protocol::SessionId session, LeaseId id, Time now) const {
    const auto at = leases_.find(id);
    if (at != leases_.end() && at->second->session == session && !at->second->closed && at->second->until >= now) {
      return at->second;
    }
    return fail(Code::failed_precondition, "the lease does not exist, or it has ended");
  }
  /// The lease, if it is over by this; null otherwise.
  std::shared_ptr<Lease> close(LeaseId id) {
    const auto at = leases_.find(id);
    if (at == leases_.end()) return nullptr;
    at->second->closed = true;
    return take_if_over(at);
  }
  std::shared_ptr<Lease> end_read(LeaseId id) {
    const auto at = leases_.find(id);
    --at->second->readers;
    return take_if_over(at);
  }
  std::vector<LeaseId> ids_of(const std::function<bool(const Lease&)>& is_wanted) const {
    std::vector<LeaseId> ids;
    for (const auto& [id, lease] : leases_) {
      if (is_wanted(*lease)) ids.push_back(id);
    }
    return ids;
  }
  const std::map<LeaseId, std::shared_ptr<Lease>>& all() const { return leases_; }

 private:
  using Leases = std::map<LeaseId, std::shared_ptr<Lease>>;
  std::shared_ptr<Lease> take_if_over(typename Leases::iterator at) {
    if (!at->second->closed || at->second->readers != 0) return nullptr;
    return std::move(leases_.extract(at).mapped());
  }

  Leases leases_;
};

/// Whether pieces lie within the parts of `what`. `bytes_of`: of a part (Piece.tensor), nothing where there is none.
Status check_pieces(const std::vector<channel::Piece>& pieces, std::string_view what,
                    const std::function<std::optional<std::uint64_t>(std::uint32_t part)>& bytes_of);

}  // namespace freshet::source
