// SPDX-License-Identifier: Apache-2.0
/// Puts that ended undecided and were put again under another identity: what may have come of them is taken back.

#include <utility>

#include "repo/cluster/impl.h"

namespace freshet {
namespace {

constexpr std::size_t kUndecidedMax = 1024;  ///< More are forgotten, as they are when this process ends.

}  // namespace

void ClusterRepository::Impl::note_undecided(Undecided put) const {
  const MutexLock lock(mutex_);
  if (undecided_.size() < kUndecidedMax) undecided_.push_back(std::move(put));
}

bool ClusterRepository::Impl::withdraw(const Undecided& put) const {
  if (put.home->is_to_be_avoided()) return false;
  const std::shared_ptr<const ClusterView> now = view();
  std::vector<std::size_t> inherited_from;
  for (const MemberPointer& member : put.inherited_from) inherited_from.push_back(now->index_of(member));
  cluster::RetireMachine machine(put.id, put.attempt, now->index_of(put.home), std::move(inherited_from),
                                 /*is_withdrawal=*/true);
  drive(machine, [&](const cluster::Call& call) -> cluster::Reply {
    if (call.kind != cluster::Call::Kind::retire) return carry_out(*now, call);
    const auto retired =
        now->members[call.provider]->ask([&](ProviderRepository& at) { return at.retire(put.name, {}); });
    return retired ? cluster::Reply{} : cluster::Reply{.error = retired.error(), .there = false};
  });
  return !machine.error();
}

void ClusterRepository::Impl::withdraw_undecided() const {
  std::vector<Undecided> all;
  {
    const MutexLock lock(mutex_);
    all.swap(undecided_);
  }
  std::erase_if(all, [&](const Undecided& put) { return withdraw(put); });
  if (all.empty()) return;
  const MutexLock lock(mutex_);
  undecided_.insert(undecided_.end(), std::make_move_iterator(all.begin()), std::make_move_iterator(all.end()));
}

}  // namespace freshet
