#include "repo/cluster/hand_over.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "repo/registrar_records.h"

namespace freshet::cluster {
namespace {

constexpr int kHandOverTriesMax = 16;  ///< Each one is lost to somebody else who does the same.
constexpr std::size_t kBytesAtOnce = std::size_t{4} << 20;

using Records = std::map<std::string, std::string>;  ///< By key.

/// Calls back with each record of the prefix, in the order of the keys, until one call fails.
Status for_each_record(const Member& member, const std::string& prefix,
                       const std::function<Status(const SharedRecord&)>& each) {
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
      FRESHET_TRY(each(record));
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

Result<Records> all_records(const Member& member, const std::string& prefix) {
  Records records;
  FRESHET_TRY(for_each_record(member, prefix, [&](const SharedRecord& record) {
    records.emplace(record.key, *record.value);
    return Status();
  }));
  return records;
}

SharedRecord record_in(const Records& records, const std::string& key) {
  const auto at = records.find(key);
  return {.key = key, .value = at == records.end() ? std::nullopt : std::optional(at->second)};
}

// Whether it was told of the placement that it came with: then somebody else was quicker.
Result<bool> is_told(const SharedRecord& placed, const Provider& provider) {
  if (!placed.value) return false;
  FRESHET_ASSIGN(const Placement known, Placement::decode(*placed.value));
  return known.number() >= provider.since && known.index_of(provider.id) != known.providers().size();
}

Status try_once(const Placement& placement, const Provider& to, const Connect& connect, const std::string& prefix) {
  const Member receiver(to, connect);
  const std::size_t index = placement.index_of(to.id);
  FRESHET_ASSIGN(const SharedRecord placed,
                 receiver.ask([](Repository& at) { return at.shared_record(kPlacementKey); }));
  FRESHET_ASSIGN(const bool told, is_told(placed, to));
  if (told) return {};
  FRESHET_ASSIGN(const Records has, all_records(receiver, prefix));
  Replacing replacing(receiver, placed);
  for (std::size_t from = 0; from < placement.providers().size(); ++from) {
    const Provider& giver = placement.providers()[from];
    if (giver.since >= to.since) continue;
    FRESHET_TRY(for_each_record(Member(giver, connect), prefix, [&](const SharedRecord& record) -> Status {
      SharedRecord old = record_in(has, record.key);
      if (old.value == record.value) return {};
      const std::string_view model = std::string_view(record.key).substr(prefix.size());
      const bool moves =
          placement.registrar(model, to.since) == index && placement.registrar(model, to.since - 1) == from;
      if (!moves) return {};
      // It may have numbered versions of a model of that name itself, which were retired.
      FRESHET_ASSIGN(const bool is_outrun, is_greater_number(old, record));
      return is_outrun ? Status() : replacing.add(std::move(old), record);
    }));
  }
  return replacing.flush();
}

Status hand_over_all(const Placement& placement, const Provider& to, const Connect& connect,
                     const std::string& prefix) {
  Status done;
  for (int tries = 0; tries < kHandOverTriesMax; ++tries) {
    done = try_once(placement, to, connect, prefix);
    if (done || done.error().code() != Code::failed_precondition) break;
  }
  if (done) return {};
  return fail(std::move(done).error().with_context(format("give provider {} what it is to number", to.id)));
}

}  // namespace

Status hand_over_early(const Placement& placement, const Provider& to, const Connect& connect) {
  FRESHET_TRY(hand_over_all(placement, to, connect, kNumberPrefix));
  for (const Provider& giver : placement.providers()) {
    if (giver.since >= to.since) continue;
    FRESHET_TRY(for_each_record(Member(giver, connect), kAliasesPrefix, [](const SharedRecord&) { return Status(); }));
  }
  return {};
}

Status hand_over(const Placement& placement, const Provider& to, const Connect& connect) {
  FRESHET_TRY(hand_over_all(placement, to, connect, kNumberPrefix));
  return hand_over_all(placement, to, connect, kAliasesPrefix);
}

Status hand_out(const Placement& placement, const Connect& connect) {
  const std::span<const Provider> providers = placement.providers();
  if (providers.size() == 1) return {};
  const SharedRecord placed{.key = kPlacementKey, .value = placement.encode()};
  for (const std::string prefix : {kNumberPrefix, kAliasesPrefix}) {
    std::vector<Records> given(providers.size());  // To each.
    for (std::size_t from = 0; from < providers.size(); ++from) {
      FRESHET_TRY(for_each_record(Member(providers[from], connect), prefix, [&](const SharedRecord& record) -> Status {
        Records& to = given[placement.registrar(std::string_view(record.key).substr(prefix.size()))];
        FRESHET_ASSIGN(const bool is_outrun, is_greater_number(record_in(to, record.key), record));
        if (!is_outrun) to[record.key] = *record.value;
        return {};
      }));
    }
    for (std::size_t to = 0; to < providers.size(); ++to) {
      const Member receiver(providers[to], connect);
      FRESHET_ASSIGN(const Records has, all_records(receiver, prefix));
      Replacing replacing(receiver, placed);
      for (const auto& [key, value] : given[to]) {
        SharedRecord old = record_in(has, key);
        const bool stays = old.value && (prefix == kAliasesPrefix || old.value == value);
        if (!stays) FRESHET_TRY(replacing.add(std::move(old), {.key = key, .value = value}));
      }
      FRESHET_TRY(replacing.flush());
    }
  }
  return {};
}

}  // namespace freshet::cluster
