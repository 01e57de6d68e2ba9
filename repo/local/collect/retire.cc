// SPDX-License-Identifier: Apache-2.0
/// Retiring a version. One batch makes it a tombstone and takes its manifest away, and with that the records of the
/// segments that nobody names any more. Their blobs are garbage from then on, which gc() erases.

#include <algorithm>
#include <chrono>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

constexpr Duration kWaitMax = std::chrono::hours(24);
constexpr std::size_t kHoldersInMessage = 5;
constexpr Duration kLookAgainMin = std::chrono::milliseconds(10);
constexpr Duration kLookAgainMax = std::chrono::seconds(1);

std::string some_of(const std::vector<std::string>& holders) {
  std::string text;
  for (std::size_t i = 0; i < std::min(holders.size(), kHoldersInMessage); ++i) {
    text += (i == 0 ? "" : ", ") + holders[i];
  }
  if (holders.size() > kHoldersInMessage) text += format(" and {} more", holders.size() - kHoldersInMessage);
  return text;
}

}  // namespace

Result<RetireReport> LocalRepository::Impl::retire_now(const Catalog::Found& version) {
  FRESHET_TRY(references.need());
  FRESHET_ASSIGN(const ReferenceBook::Release release, references.release_of(version));
  RetireReport report{.version = version.name};
  Backend::Batch batch;
  std::vector<std::uint64_t> sizes;
  for (const SegmentName& segment : release.unnamed) {
    const std::string key = segment_record_key(segment);
    FRESHET_ASSIGN(const std::optional<std::uint64_t> bytes, segments.bytes_of_record(key));
    if (!bytes) continue;  // It rests on another provider.
    sizes.push_back(*bytes);
    report.released_bytes += *bytes;
    batch.push_back(Backend::Erase{key});
  }
  VersionRow tombstone = *version.row;
  tombstone.retired = true;
  tombstone.later_tags.clear();  // Their digests stay with the others'.
  batch.push_back(Backend::Put{version_key(version.name), encode(tombstone)});
  FRESHET_TRY(manifests.erase(batch, *version.row));
  // Pins whose leases have ended hold nobody up, and are nobody's any more.
  FRESHET_TRY(backend->scan(pin_prefix(version.name), [&](std::string_view key, std::string_view) {
    batch.push_back(Backend::Erase{std::string(key)});
    return true;
  }));
  const bool last_of_architecture = references.counts()->of(tombstone.architecture) == 1;
  if (last_of_architecture) batch.push_back(Backend::Erase{architecture_key(tombstone.architecture)});
  batch.push_back(commit_record(commit + 1));
  FRESHET_TRY(apply(batch));

  const VersionId id = tombstone.id;
  const Digest architecture = tombstone.architecture;
  {
    ancestors.retire(id, ++commit);
    const MutexLock lock(known.mutex);
    for (const std::uint64_t bytes : sizes) known.catalog.drop_segment(bytes);
    known.catalog.retire(version.name, std::move(tombstone));
  }
  ancestors.retire(id, commit);  // An index that is made just now may be of the catalog before that.
  report.released_tensors = sizes.size();
  if (release.known) {
    references.counts()->drop_segments(release.segments);
    references.counts()->drop_architecture(architecture);
  } else {
    references.forget();
  }
  return report;
}

Result<RetireReport> LocalRepository::retire(const VersionName& name, const RetireOptions& options) {
  if (name.number == 0) {
    return fail(Code::invalid_argument, format("name the version of {} to retire, MODEL@V", name.model));
  }
  const StopInterrupts stops(options.stop);
  const Time deadline = system_clock().now() + std::clamp(options.wait, Duration::zero(), kWaitMax);
  while (true) {
    std::vector<PinBook::Holder> holders;
    std::uint64_t taken = 0;
    {
      const WritersTurn turn(*impl_);
      FRESHET_TRY(impl_->ready_to_write());
      FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
      FRESHET_ASSIGN(const std::vector<std::string> aliases, impl_->aliases_of(found.name));
      if (!aliases.empty()) {
        return fail(Code::failed_precondition, format("{} is {}: move that first", to_string(name), some_of(aliases)));
      }
      FRESHET_ASSIGN(holders, impl_->pins.holders_of(found.name));
      if (holders.empty()) {
        Result<RetireReport> report = impl_->retire_now(found);
        if (!report) return fail(std::move(report).error().with_context("retire " + to_string(name)));
        return report;
      }
      taken = impl_->pins.taken();
    }
    if (system_clock().now() >= deadline) {
      std::vector<std::string> names;
      for (const PinBook::Holder& holder : holders) names.push_back(impl_->pins.describe(holder));
      return fail(Code::failed_precondition, format("{} is pinned by {}", to_string(name), some_of(names)));
    }
    // Until somebody unpins, or a lease may have ended that kept the others waiting.
    Time again = deadline;
    for (const PinBook::Holder& holder : holders) {
      if (!holder.until) continue;
      const Duration left = std::clamp<Duration>(*holder.until - impl_->clock.now(), kLookAgainMin, kLookAgainMax);
      again = std::min(again, system_clock().now() + left);
    }
    FRESHET_TRY(impl_->pins.wait_for_take(taken, again, name));
  }
}

}  // namespace freshet
