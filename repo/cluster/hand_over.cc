#include "repo/cluster/hand_over.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "repo/registrar_records.h"

namespace freshet::cluster {
namespace {

constexpr int kTriesMax = 16;  ///< Each one is lost to somebody else who does the same.
constexpr std::size_t kBytesAtOnce = std::size_t{4} << 20;

using Records = std::map<std::string, std::string>;  ///< By key.

/// Calls back with each record of the prefix, in the order of the keys.
Status for_each_record(const Member& member, const std::string& prefix,
                       const std::function<void(const SharedRecord&)>& each) {
  std::string after;
  for (;;) {
    FRESHET_ASSIGN(const std::vector<SharedRecord> page,
                   member.ask([&](Repository& at) { return at.shared_records(prefix, after); }));
    if (page.empty()) return {};
    for (const SharedRecord& record : page) {
      if (record.key <= after || !record.key.starts_with(prefix) || !record.value) {
        return fail(Code::corrupt, format("{} lists its shared records wrongly", member.label()));
      }
      after = record.key;
      each(record);
    }
  }
}

/// Replaces records of one provider, as many at a time as one call takes.
class Replacing {
 public:
  Replacing(const Member& member, SharedRecord placed) : member_(member), placed_(std::move(placed)) { begin(); }

  Status add(SharedRecord before, const SharedRecord& next) {
    bytes_ += next.value->size() + (before.value ? before.value->size() : 0);
    expected_.push_back(std::move(before));
    changes_.push_back(next);
    return bytes_ >= kBytesAtOnce || expected_.size() == kSharedRecordsMax ? flush() : Status();
  }
  Status flush() {
    if (changes_.empty()) return {};
    FRESHET_TRY(member_.ask([&](Repository& at) { return at.change_shared_records(expected_, changes_); }));
    begin();
    return {};
  }

 private:
  void begin() {
    expected_.assign(1, placed_);
    changes_.clear();
    bytes_ = 0;
  }

  const Member& member_;
  const SharedRecord placed_;
  std::vector<SharedRecord> expected_;
  std::vector<SharedRecord> changes_;
  std::size_t bytes_ = 0;
};

// Whether it was told of the placement that it came with: then somebody else was quicker.
Result<bool> is_told(const SharedRecord& placed, const Provider& provider) {
  if (!placed.value) return false;
  FRESHET_ASSIGN(const Placement known, Placement::decode(*placed.value));
  return known.number() >= provider.since;
}

/// Whom the model's records come from, by index in the placement; nothing when they do not go to `to`.
std::optional<std::size_t> former_registrar(const Placement& placement, std::string_view model, std::size_t to) {
  const std::vector<std::size_t> registrars = placement.registrars(model);
  const auto at = std::ranges::find(registrars, to);
  if (at == registrars.end() || at + 1 == registrars.end()) return std::nullopt;
  return at[1];
}

Status try_once(const Placement& placement, const Provider& to, const Connect& connect, const std::string& prefix) {
  const Member receiver(to, connect);
  const std::size_t index = placement.index_of(to.id);
  FRESHET_ASSIGN(const SharedRecord placed, receiver.ask([](Repository& at) { return at.shared_record(kPlacementKey); }));
  FRESHET_ASSIGN(const bool told, is_told(placed, to));
  if (told) return {};
  Records has;
  FRESHET_TRY(
      for_each_record(receiver, prefix, [&](const SharedRecord& record) { has.emplace(record.key, *record.value); }));
  Replacing replacing(receiver, placed);
  for (std::size_t from = 0; from < placement.providers().size(); ++from) {
    const Provider& giver = placement.providers()[from];
    if (giver.since >= to.since) continue;
    Status written;
    FRESHET_TRY(for_each_record(Member(giver, connect), prefix, [&](const SharedRecord& record) {
      const std::string_view model = std::string_view(record.key).substr(prefix.size());
      if (!written || former_registrar(placement, model, index) != from) return;
      const auto old = has.find(record.key);
      if (old != has.end() && old->second == *record.value) return;
      written = replacing.add({record.key, old == has.end() ? std::nullopt : std::optional(old->second)}, record);
    }));
    FRESHET_TRY(written);
  }
  return replacing.flush();
}

Status hand_over_all(const Placement& placement, const Provider& to, const Connect& connect,
                     const std::string& prefix) {
  Status done;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    done = try_once(placement, to, connect, prefix);
    if (done || done.error().code() != Code::failed_precondition) break;
  }
  return done;
}

}  // namespace

Status hand_over_early(const Placement& placement, const Provider& to, const Connect& connect) {
  return hand_over_all(placement, to, connect, kNumberPrefix);
}

Status hand_over(const Placement& placement, const Provider& to, const Connect& connect) {
  FRESHET_TRY(hand_over_all(placement, to, connect, kNumberPrefix));
  return hand_over_all(placement, to, connect, kAliasesPrefix);
}

Status hand_out(const Placement& placement, const Connect& connect) {
  if (placement.providers().size() == 1) return {};
  const SharedRecord placed{.key = kPlacementKey, .value = placement.encode()};
  for (std::size_t to = 0; to < placement.providers().size(); ++to) {
    const Member receiver(placement.providers()[to], connect);
    Replacing replacing(receiver, placed);
    for (std::size_t from = 0; from < placement.providers().size(); ++from) {
      if (from == to) continue;
      const Member giver(placement.providers()[from], connect);
      for (const std::string prefix : {kNumberPrefix, kAliasesPrefix}) {
        Status written;
        FRESHET_TRY(for_each_record(giver, prefix, [&](const SharedRecord& record) {
          const std::string_view model = std::string_view(record.key).substr(prefix.size());
          if (!written || placement.registrar(model) != to) return;
          written = replacing.add({.key = record.key, .value = std::nullopt}, record);
        }));
        FRESHET_TRY(written);
      }
    }
    FRESHET_TRY(replacing.flush());
  }
  return {};
}

}  // namespace freshet::cluster
