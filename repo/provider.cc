/// What a repository does as one provider of several: segments read by name, puts that are settled one way or the
/// other, and the records that providers share.

#include "core/format.h"
#include "repo/local_repository.h"

namespace freshet {
namespace {

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

}  // namespace

Status LocalRepository::Impl::admit_placed(const Manifest& manifest, const Placed& placed) const {
  if (manifest.architecture == nullptr) return fail(Code::invalid_argument, "the manifest has no architecture");
  FRESHET_TRY(check(placed, manifest.architecture->tensors().size()));
  for (const std::uint32_t tensor : placed.elsewhere) {
    if (tensor < manifest.owners.size() && manifest.owners[tensor].writer == manifest.id) {
      return fail(Code::invalid_argument, format("tensor {} is the version's own, and cannot be elsewhere", tensor));
    }
  }
  const Result<std::string> given_up = backend->get(given_up_key(manifest.id, placed.attempt));
  if (given_up) {
    return fail(
        Code::failed_precondition,
        format("put {}: it was given up, since it was not heard of for long; put it again", to_string(manifest.name)));
  }
  return given_up.error().code() == Code::not_found ? Status() : fail(given_up.error());
}

Status LocalRepository::read_segments(std::span<const SegmentRead> reads) const {
  for (const SegmentRead& read : reads) {
    Status status = impl_->read_proved(read.segment, read.digest, read.out);
    if (!status && !impl_->backend->get(segment_record_key(read.segment))) {
      status = fail(Code::not_found, "it is not stored here");
    }
    if (!status) return fail(std::move(status).error().with_context("segment " + to_string(read.segment)));
  }
  return {};
}

Status LocalRepository::read_segment_range(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const {
  return impl_->read_part(segment, offset, out);
}

Result<bool> LocalRepository::settle_put(const VersionId& id, std::uint64_t attempt) {
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  {
    const MutexLock lock(impl_->mutex);
    const auto row = impl_->catalog.row_of(id);
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

Status LocalRepository::change_shared_records(std::span<const SharedRecord> expected,
                                              std::span<const SharedRecord> changes) {
  if (expected.size() > kSharedRecordsMax || changes.size() > kSharedRecordsMax) {
    return fail(Code::invalid_argument, format("more than {} shared records at a time", kSharedRecordsMax));
  }
  for (const SharedRecord& record : expected) FRESHET_TRY(check_shared(record));
  for (const SharedRecord& record : changes) FRESHET_TRY(check_shared(record));
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  for (const SharedRecord& record : expected) {
    FRESHET_ASSIGN(const std::optional<std::string> stored, stored_value(*impl_->backend, record.key));
    if (stored != record.value) {
      return fail(Code::failed_precondition, format("the shared record {} was changed meanwhile", record.key));
    }
  }
  Backend::Batch batch;
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
