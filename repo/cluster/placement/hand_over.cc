// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/placement/hand_over.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "repo/registrar/registrar_records.h"

namespace freshet::cluster {
namespace {

// Whether it was told of the placement that it came with.
Result<bool> is_told(const SharedRecord& placed, const Provider& provider) {
  if (!placed.value) return false;
  FRESHET_ASSIGN(const Placement known, Placement::decode(*placed.value));
  return known.number() >= provider.since && known.index_of(provider.id) != known.providers().size();
}

/// What `from` (an index) keeps of the models that `to` numbers from its placement on, a page of records at a time.
/// Where the receiver has a greater number of its own, that one counts when it is told of its placement
/// (LocalRepository::change_shared_records()).
Status hand_over_from(std::size_t from, const Placement& placement, const SharedRecord& placed, const Provider& to,
                      const Connect& connect, const std::string& prefix) {
  const Member giver(placement.providers()[from], connect);
  const Member receiver(to, connect);
  const std::size_t index = placement.index_of(to.id);
  std::string after;
  for (;;) {
    FRESHET_ASSIGN(std::vector<SharedRecord> page,
                   giver.ask([&](ProviderRepository& at) { return at.shared_records(prefix, after); }));
    if (page.empty()) return {};
    for (const SharedRecord& record : page) {
      if (record.key <= after || !record.key.starts_with(prefix) || !record.value) {
        return fail(Code::corrupt, format("{} lists its shared records wrongly", giver.label()));
      }
      after = record.key;
    }
    std::erase_if(page, [&](const SharedRecord& record) {
      const std::string_view model = std::string_view(record.key).substr(prefix.size());
      return placement.registrar(model, to.since) != index || placement.registrar(model, to.since - 1) != from;
    });
    for (std::span<const SharedRecord> rest = page; !rest.empty();) {
      const auto some = rest.first(std::min(rest.size(), kSharedRecordsMax));
      rest = rest.subspan(some.size());
      FRESHET_TRY(
          receiver.ask([&](ProviderRepository& at) { return at.change_shared_records(std::span(&placed, 1), some); }));
    }
  }
}

}  // namespace

Status hand_over(const Placement& placement, const Provider& to, const Connect& connect) {
  FRESHET_ASSIGN(const SharedRecord placed,
                 Member(to, connect).ask([](ProviderRepository& at) { return at.shared_record(kPlacementKey); }));
  FRESHET_ASSIGN(const bool told, is_told(placed, to));
  if (told) return {};
  for (std::size_t from = 0; from < placement.providers().size(); ++from) {
    if (placement.providers()[from].since >= to.since) continue;
    for (const std::string prefix : {kNumberPrefix, kAliasesPrefix}) {
      Status given = hand_over_from(from, placement, placed, to, connect, prefix);
      if (!given) {
        return fail(
            std::move(given).error().with_context(format("give provider {} the models that it will number", to.id)));
      }
    }
  }
  return {};
}

}  // namespace freshet::cluster
