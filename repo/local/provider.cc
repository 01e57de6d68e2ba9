// SPDX-License-Identifier: Apache-2.0
/// What a repository does as one provider of several: segments read by name, puts that are settled one way or the
/// other, and the records that providers share.

#include <algorithm>
#include <map>

#include "core/base/format.h"
#include "repo/local/local_repository.h"
#include "repo/registrar/registrar_records.h"

namespace freshet {
namespace {

/// Listed at once: what one record may have.
constexpr std::size_t kSharedPageBytes = kSharedValueBytesMax;

Result<std::optional<std::string>> stored_value(const Backend& backend, const std::string& key) {
  Result<std::string> stored = backend.get(std::string(kSharedPrefix) + key);
  if (stored) return std::optional(*std::move(stored));
  if (stored.error().code() == Code::not_found) return std::optional<std::string>();
  return fail(std::move(stored).error());
}

Status check_shared(const SharedRecord& record) {
  if (record.key.empty() || record.key.size() > kSharedKeyBytesMax) {
    return fail(Code::invalid_argument, format("a shared record's key has 1 to {} bytes", kSharedKeyBytesMax));
  }
  if (record.value && record.value->size() > kSharedValueBytesMax) {
    return fail(Code::invalid_argument, format("the shared record {} has {} bytes, more than {}", record.key,
                                               record.value->size(), kSharedValueBytesMax));
  }
  return {};
}

Status check_shared(std::span<const SharedRecord> records) {
  if (records.size() > kSharedRecordsMax) {
    return fail(Code::invalid_argument, format("more than {} shared records at a time", kSharedRecordsMax));
  }
  std::size_t bytes = 0;
  for (const SharedRecord& record : records) {
    FRESHET_TRY(check_shared(record));
    bytes += record.key.size() + (record.value ? record.value->size() : 0);
  }
  if (bytes <= kSharedChangeBytesMax) return {};
  return fail(Code::invalid_argument,
              format("shared records of {} bytes at a time, more than {}", bytes, kSharedChangeBytesMax));
}

// One above the greatest would leave its model none.
Status check_numbers(std::span<const SharedRecord> changes) {
  for (const SharedRecord& record : changes) {
    if (!record.key.starts_with(kNumberPrefix)) continue;
    const Result<VersionNumber> number = last_number(record);
    if (!number || *number <= kVersionNumberMax) continue;
    return fail(Code::invalid_argument, format("{} is above the greatest number, {}", record.key, kVersionNumberMax));
  }
  return {};
}

}  // namespace

Status LocalRepository::Impl::admit_placed(const Manifest& manifest, const Placed& placed) const {
  if (manifest.architecture == nullptr) return fail(Code::invalid_argument, "the manifest has no architecture");
  FRESHET_TRY(check(placed, manifest.architecture->tensors().size()));
  for (const std::uint32_t tensor : placed.elsewhere) {
    if (tensor < manifest.owners.size() && manifest.owners[tensor].writer == manifest.id) {
      return fail(Code::invalid_argument,
                  format("tensor {} is the version's own, so it cannot be at another provider", tensor));
    }
  }
  const Result<std::string> given_up = backend->get(given_up_key(manifest.id, placed.attempt));
  if (given_up) {
    return fail(Code::failed_precondition,
                format("put {}: the put was given up, because nothing was heard of it for long; put the version again",
                       to_string(manifest.name)));
  }
  return given_up.error().code() == Code::not_found ? Status() : fail(given_up.error());
}

Status LocalRepository::read_segments(std::span<const SegmentRead> reads) const {
  for (const SegmentRead& read : reads) {
    Status status = impl_->segments.read_proved(read.segment, read.digest, read.out);
    if (!status && !impl_->backend->get(segment_record_key(read.segment))) {
      status = fail(Code::not_found, "the segment is not stored here");
    }
    if (!status) return fail(std::move(status).error().with_context("segment " + to_string(read.segment)));
  }
  return {};
}

Status LocalRepository::read_segment_range(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const {
  return impl_->segments.read_part(segment, offset, out);
}

Result<bool> LocalRepository::settle_put(const VersionId& id, std::uint64_t attempt) {
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->ready_to_write());
  {
    const MutexLock lock(impl_->known.mutex);
    const auto row = impl_->known.catalog.row_of(id);
    if (row != nullptr && !row->retired && row->placed && row->placed->attempt == attempt) return true;
  }
  FRESHET_TRY(impl_->apply({Backend::Put{given_up_key(id, attempt), ""}}));
  return false;
}

Result<SharedRecord> LocalRepository::shared_record(const std::string& key) const {
  SharedRecord record{.key = key};
  FRESHET_TRY(check_shared(record));
  FRESHET_ASSIGN(record.value, stored_value(*impl_->backend, key));
  return record;
}

Result<std::vector<SharedRecord>> LocalRepository::shared_records(const std::string& prefix,
                                                                  const std::string& after) const {
  if (prefix.size() > kSharedKeyBytesMax || after.size() > kSharedKeyBytesMax) {
    return fail(Code::invalid_argument, format("a shared record's key has 1 to {} bytes", kSharedKeyBytesMax));
  }
  std::vector<SharedRecord> records;
  std::size_t bytes = 0;
  FRESHET_TRY(
      impl_->backend->scan(std::string(kSharedPrefix) + prefix, [&](std::string_view key, std::string_view value) {
        key.remove_prefix(kSharedPrefix.size());
        if (key <= after) return true;
        bytes += key.size() + value.size();
        if (!records.empty() && bytes > kSharedPageBytes) return false;
        records.push_back({.key = std::string(key), .value = std::string(value)});
        return true;
      }));
  return records;
}

Result<bool> LocalRepository::Impl::is_one_of_several() const {
  FRESHET_ASSIGN(const std::optional<std::string> placement, stored_value(*backend, kPlacementKey));
  return placement.has_value();
}

// What this repository numbered and named as long as it was alone, for whoever is the models' registrar from now on: at
// first itself. One that joins has been given numbers of others already, so the greater one counts.
Status LocalRepository::Impl::add_registrar_records(Backend::Batch& batch) const {
  std::map<std::string, VersionNumber> high_waters;
  {
    const MutexLock lock(known.mutex);
    high_waters = known.catalog.high_waters();
  }
  std::vector<SharedRecord> records;
  for (const auto& [model, last] : high_waters) {
    records.push_back(number_record(model, last));
    FRESHET_ASSIGN(const std::vector<Alias> named, aliases(model));
    if (!named.empty()) records.push_back(aliases_record(model, named));
  }
  for (SharedRecord& record : records) {
    SharedRecord there{.key = record.key};
    FRESHET_ASSIGN(there.value, stored_value(*backend, record.key));
    FRESHET_ASSIGN(const bool is_outrun, is_greater_number(there, record));
    if (is_outrun) continue;
    FRESHET_TRY(check_shared(record));
    batch.push_back(Backend::Put{std::string(kSharedPrefix) + record.key, *std::move(record.value)});
  }
  return {};
}

Status LocalRepository::change_shared_records(std::span<const SharedRecord> expected,
                                              std::span<const SharedRecord> changes) {
  FRESHET_TRY(check_shared(expected));
  FRESHET_TRY(check_shared(changes));
  FRESHET_TRY(check_numbers(changes));
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->ready_to_write());
  for (const SharedRecord& record : expected) {
    FRESHET_ASSIGN(const std::optional<std::string> stored, stored_value(*impl_->backend, record.key));
    if (stored != record.value) {
      return fail(Code::failed_precondition, format("the shared record {} was changed meanwhile", record.key));
    }
  }
  Backend::Batch batch;
  if (std::ranges::find(changes, kPlacementKey, &SharedRecord::key) != changes.end()) {
    FRESHET_ASSIGN(const std::optional<std::string> placed, stored_value(*impl_->backend, kPlacementKey));
    if (!placed) FRESHET_TRY(impl_->add_registrar_records(batch));
  }
  for (const SharedRecord& record : changes) {
    std::string key = std::string(kSharedPrefix) + record.key;
    if (record.value) {
      batch.push_back(Backend::Put{std::move(key), *record.value});
    } else {
      batch.push_back(Backend::Erase{std::move(key)});
    }
  }
  return batch.empty() ? Status() : impl_->apply(batch);
}

}  // namespace freshet
