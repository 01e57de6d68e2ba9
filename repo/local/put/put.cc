// SPDX-License-Identifier: Apache-2.0
/// Storing a version, in this order (repo/FORMAT.md, "The order of a put"):
///   1. The manifest is checked against what is stored: its identity is new, inherited segments have the same digests.
///      Its segments are marked as being written.
///   2. The bytes of segments that are not stored are asked for and written aside; the digest of what was written
///      proves them.
///   3. The blobs are committed: durable, and named by nobody. Or their bytes are, where a batch of records takes them.
///   4. One batch makes the version, and its segments, exist (repo/local/put/commit.cc).
/// A crash before 4 leaves blobs that load() removes; after it, a whole version. Step 4 holds the writers' turn, 1 its
/// mutex.

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/local/local_repository.h"
#include "repo/registrar/registrar_records.h"

namespace freshet {
namespace {

constexpr int kPutTriesMax = 8;  ///< Each one is lost to a retirement.

// The segments of the owner map that are not stored yet, in their order.
Result<std::vector<NewSegment>> segments_to_store(const Backend& backend, const Manifest& manifest,
                                                  const std::optional<Placed>& placed) {
  std::vector<NewSegment> missing;
  std::unordered_map<SegmentName, SegmentRow> seen;
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    if (placed && is_elsewhere(*placed, tensor)) continue;
    const SegmentName& name = manifest.owners[tensor];
    const SegmentRow row{.bytes = manifest.architecture->tensors()[tensor].bytes(), .digest = manifest.digests[tensor]};
    const bool has_digest = row.digest != Digest{};
    const auto [before, first] = seen.try_emplace(name, row);
    Status same;
    if (!has_digest && name.writer != manifest.id) {
      same = fail(Code::invalid_argument, "it has no digest, and another version wrote it");
    } else if (!first) {
      same = check_same(before->second, row);
    } else if (const Result<std::string> stored = backend.get(segment_record_key(name))) {
      FRESHET_ASSIGN(const SegmentRow there, decode_segment_row(*stored));
      same = has_digest ? check_same(there, row)
                        : fail(Code::invalid_argument, "it has no digest, and its bytes are stored already");
    } else if (stored.error().code() == Code::not_found) {
      missing.push_back({.name = name, .tensor = tensor, .bytes = row.bytes});
    } else {
      same = fail(stored.error());
    }
    if (!same)
      return fail(std::move(same).error().with_context(tensor_label(manifest.name, *manifest.architecture, tensor)));
  }
  std::sort(missing.begin(), missing.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return missing;
}

VersionRow row_of(const Manifest& manifest, const Repository::PutOptions& options, const Clock& clock) {
  VersionRow row{.id = manifest.id,
                 .ancestor = manifest.ancestor,
                 .ancestor_name = manifest.ancestor_name,
                 .architecture = manifest.architecture->digest(),
                 .quality = options.quality,
                 .has_weights = options.has_weights,
                 .stored_unix_ns = clock.unix_ns(),
                 .placed = options.placed};
  for (const auto& [key, value] : manifest.tags) row.tags.push_back(tag_digest(key, value));
  if (!options.has_weights) return row;
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const std::uint64_t bytes = manifest.architecture->tensors()[tensor].bytes();
    (manifest.owners[tensor].writer == manifest.id ? row.own_bytes : row.inherited_bytes) += bytes;
  }
  return row;
}

bool seeks_equal(const Repository::PutOptions& options) {
  return options.has_weights && options.dedup && !options.placed;
}

/// Cut as digests are, and with the manifest's digest.
bool is_whole(const BroughtTensor& brought, const NewSegment& segment, const Digest& digest) {
  std::vector<Digest> digests;
  std::uint64_t left = segment.bytes;
  for (const BroughtPart& part : brought.parts) {
    if (part.bytes == 0 || part.bytes != std::min(left, kDigestPartBytes)) return false;
    left -= part.bytes;
    digests.push_back(part.digest);
  }
  return left == 0 && !digests.empty() && digest_of_parts(digests) == digest;
}

/// The tensors that are in the medium as their put says.
std::map<std::uint32_t, const BroughtTensor*> brought_of(const PutInProgress& put, const Backend& backend) {
  std::map<std::uint32_t, const BroughtTensor*> all;
  for (const BroughtTensor& one : put.brought) all.emplace(one.tensor, &one);
  std::map<std::uint32_t, const BroughtTensor*> whole;
  std::vector<BroughtPart> parts;
  for (const NewSegment& segment : put.segments) {
    const auto one = all.find(segment.tensor);
    if (one == all.end() || !is_whole(*one->second, segment, put.manifest.digests[segment.tensor])) continue;
    whole.insert(*one);
    parts.insert(parts.end(), one->second->parts.begin(), one->second->parts.end());
  }
  if (whole.empty()) return {};
  const Result<std::vector<bool>> found = backend.find_brought(parts);
  if (!found) return {};  // The bytes are asked for; their way into the medium says more.
  std::size_t at = 0;
  for (const NewSegment& segment : put.segments) {
    const auto one = whole.find(segment.tensor);
    if (one == whole.end()) continue;
    bool is_there = true;
    for (std::size_t i = 0; i < one->second->parts.size(); ++i) is_there = (*found)[at++] && is_there;
    if (!is_there) whole.erase(one);
  }
  return whole;
}

Status check_circle(const LockedCatalog& known, const Manifest& manifest) {
  const MutexLock lock(known.mutex);
  if (!known.catalog.forest()->closes_circle(manifest.id, *manifest.ancestor)) return {};
  return fail(Code::invalid_argument, "the version would descend from itself");
}

// Among several providers, the registrar gave the number, and looked at what was asked for.
Status check_given_number(const LocalRepository::Impl& impl, const Manifest& manifest,
                          const Repository::PutOptions& options) {
  const VersionName& name = manifest.name;
  if (name.number <= kGivenNumberMax) return {};
  FRESHET_ASSIGN(const bool is_shared, impl.is_one_of_several());
  if (options.placed && is_shared && name.number <= kVersionNumberMax) return {};
  return fail(Code::invalid_argument, format("number {} of {} is above {}", name.number, name.model, kGivenNumberMax));
}

}  // namespace

std::string blob_key(const NewSegment& segment) {
  return segment.base ? delta_key(segment.name) : segment_key(segment.name);
}

Status LocalRepository::Impl::admit(Manifest& manifest, const PutOptions& options) const {
  if (options.placed) {
    FRESHET_TRY(admit_placed(manifest, *options.placed));
  } else {
    FRESHET_ASSIGN(const bool is_shared, is_one_of_several());
    if (is_shared) {
      return fail(Code::failed_precondition,
                  "this is one provider of several: put the version through the repository of all providers");
    }
  }
  if (manifest.ancestor == manifest.id) return fail(Code::invalid_argument, "the version is its own ancestor");
  if (Status said = check_quality(options.quality); !said) {
    return fail(std::move(said).error().with_context("put " + manifest.name.model));
  }
  {
    const MutexLock lock(known.mutex);
    if (const auto stored = known.catalog.find(manifest.id)) {
      const bool retired = known.catalog.row_of(manifest.id) != nullptr && known.catalog.row_of(manifest.id)->retired;
      return fail(Code::already_exists, format("version {} {} {}", to_string(manifest.id),
                                               retired ? "was retired as" : "is stored as", to_string(*stored)));
    }
    const auto ancestor = manifest.ancestor ? known.catalog.row_of(*manifest.ancestor) : nullptr;
    if (ancestor != nullptr && ancestor->retired && !options.ancestor_may_be_retired) {
      return fail(Code::failed_precondition, format("put {}: its ancestor {} was retired", manifest.name.model,
                                                    to_string(*known.catalog.find(*manifest.ancestor))));
    }
    if (options.placed && known.catalog.has_name(manifest.name)) {
      return fail(Code::already_exists, to_string(manifest.name) + " is stored already");
    }
    const VersionNumber high_water = known.catalog.high_water(manifest.name.model);
    if (manifest.name.number <= high_water && !options.placed) {
      FRESHET_ASSIGN(manifest.name.number, number_after(manifest.name.model, high_water));
    }
  }
  if (manifest.ancestor) FRESHET_TRY(check_circle(known, manifest));
  return check(manifest);
}

bool LocalRepository::Impl::is_in_flight(const PutInProgress& put) const {
  if (versions_in_flight.count(put.manifest.id) != 0) return true;
  if (segments_in_flight.empty()) return false;
  for (const NewSegment& segment : put.segments) {
    if (segments_in_flight.count(segment.name) != 0) return true;
  }
  return false;
}

// Reads without the turn: many bytes may come from far away. A segment that comes meanwhile is not doubted here, and
// not inherited.
Status LocalRepository::Impl::prove_equal(const Manifest& manifest, const PutOptions& options) {
  if (!seeks_equal(options)) return {};
  std::vector<EqualContents::Doubted> doubted;
  {
    const MutexLock lock(turn);
    FRESHET_ASSIGN(doubted, equal_contents.doubted(manifest));
  }
  for (const EqualContents::Doubted& one : doubted) {
    FRESHET_TRY(Interruption::check());
    FRESHET_ASSIGN(const bool is_same, segments.is_whole(one.segment, one.bytes, one.digest));
    const MutexLock lock(turn);
    equal_contents.prove(one, is_same);
  }
  return {};
}

Status LocalRepository::Impl::begin(PutInProgress& put) {
  const MutexLock lock(turn);
  while (true) {
    // After a batch whose answer was lost, also one of a put that this one waited for, only the records say what is
    // stored.
    if (failed || backend->read_only()) {
      while (committing) committed.wait(turn);
      FRESHET_TRY(ready_to_write());
    }
    FRESHET_TRY(check_readable());
    FRESHET_TRY(admit(put.manifest, put.options));
    if (seeks_equal(put.options)) FRESHET_TRY(equal_contents.inherit(put.manifest));
    if (put.options.has_weights) {
      FRESHET_ASSIGN(put.segments, segments_to_store(*backend, put.manifest, put.options.placed));
    }
    if (!is_in_flight(put)) break;
    // The other put's end says whether there is anything left to write. This one holds nothing that others wait for.
    while (is_in_flight(put)) {
      put_ended.wait_until(turn, Interruption::next_look(Time::max()));
      // Not under the lock: the question may run a program's signal handlers.
      turn.unlock();
      const Status goes_on = Interruption::check();
      turn.lock();
      FRESHET_TRY(goes_on);
    }
  }
  put.erasures = erasures;
  put.row = row_of(put.manifest, put.options, clock);
  versions_in_flight.insert(put.manifest.id);
  for (const NewSegment& segment : put.segments) segments_in_flight.insert(segment.name);
  return {};
}

void LocalRepository::Impl::end(const PutInProgress& put) {
  const MutexLock lock(turn);
  versions_in_flight.erase(put.manifest.id);
  for (const NewSegment& segment : put.segments) segments_in_flight.erase(segment.name);
  put_ended.notify_all();
}

Status LocalRepository::Impl::write_segment(BlobWriter& writer, NewSegment& segment, Manifest& manifest, Bytes bytes) {
  // A digest of zeros: that of the bytes.
  const auto take_digest = [&](const Digest& came) -> Status {
    const Digest said = std::exchange(manifest.digests[segment.tensor], came);
    return said == Digest{} || said == came ? Status() : fail(Code::corrupt, "its bytes do not match its digest");
  };
  if (bytes.size() != segment.bytes) {
    return fail(Code::corrupt, format("{} bytes were given for {}", bytes.size(), segment.bytes));
  }
  std::optional<std::vector<std::byte>> delta;
  if (segment.base) {
    FRESHET_TRY(take_digest(digest_of(bytes)));
    delta = delta_for(segment, manifest, bytes);
  }
  if (!delta) segment.base.reset();
  segment.delta_bytes = delta ? delta->size() : 0;
  if (delta) {
    Status written = writer.write(blob_key(segment), *delta);
    if (!written) failed = true;
    return written;
  }
  const Result<Digest> written = writer.write_and_digest(blob_key(segment), bytes);
  if (!written) failed = true;
  if (!written) return fail(written.error());
  return take_digest(*written);
}

Status LocalRepository::Impl::store_blobs(PutInProgress& put,
                                          const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of_tensor) {
  if (put.segments.empty()) return {};
  Manifest& manifest = put.manifest;
  const std::map<std::uint32_t, const BroughtTensor*> brought = brought_of(put, *backend);
  put.finished.reset();
  FRESHET_ASSIGN(std::unique_ptr<BlobWriter> writer, backend->write_blobs());
  for (NewSegment& segment : put.segments) {
    const auto in_context = [&](Error error) {
      return fail(std::move(error).with_context(tensor_label(manifest.name, *manifest.architecture, segment.tensor)));
    };
    FRESHET_TRY(Interruption::check());
    if (const auto one = brought.find(segment.tensor); one != brought.end()) {
      segment.base.reset();
      segment.delta_bytes = 0;
      segment.is_brought = true;
      if (Status taken = writer->bring(blob_key(segment), one->second->parts); !taken) {
        return in_context(std::move(taken).error());
      }
      continue;
    }
    Result<Bytes> bytes = bytes_of_tensor(segment.tensor);
    if (!bytes) return in_context(std::move(bytes).error());
    if (Status written = write_segment(*writer, segment, manifest, *bytes); !written) {
      return in_context(std::move(written).error());
    }
  }
  const Result<bool> finished = writer->finish();
  if (!finished) failed = true;
  if (!finished) return fail(finished.error());
  if (*finished) put.finished = std::move(writer);
  return {};
}

Status LocalRepository::Impl::store(PutInProgress& put,
                                    const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of_tensor) {
  if (put.options.deltas) choose_bases(put);
  Status stored = store_blobs(put, bytes_of_tensor);
  if (stored) stored = commit_put(put);
  if (stored || !put.base_lost) return stored;
  // Retired meanwhile. What leans on nothing cannot lose it.
  for (NewSegment& segment : put.segments) segment.base.reset();
  put.base_lost = put.ended = false;
  stored = store_blobs(put, bytes_of_tensor);
  return stored ? commit_put(put) : stored;
}

Status fill_digests(Manifest& manifest, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                    const Repository::PutOptions& options) {
  const std::size_t tensors = options.has_weights ? std::min(manifest.digests.size(), manifest.owners.size()) : 0;
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    if (manifest.digests[tensor] != Digest{} || manifest.owners[tensor].writer != manifest.id) continue;
    FRESHET_TRY(Interruption::check());
    FRESHET_ASSIGN(const Bytes bytes, bytes_of(tensor));
    manifest.digests[tensor] = digest_of(bytes);
  }
  return {};
}

Result<SignedUploads> ProviderRepository::sign_uploads(std::span<const PartToBring>, Duration) {
  return fail(Code::unsupported, "the repository's medium signs no requests");
}

Result<VersionName> ProviderRepository::put_brought(const Manifest& manifest,
                                                    const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                                    PutOptions options, std::span<const BroughtTensor>) {
  return put(manifest, bytes_of, std::move(options));
}

Result<SignedUploads> LocalRepository::sign_uploads(std::span<const PartToBring> parts, Duration life) {
  return impl_->backend->sign_uploads(parts, life);
}

Result<VersionName> LocalRepository::put_brought(const Manifest& manifest,
                                                 const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                                 PutOptions options, std::span<const BroughtTensor> brought) {
  const StopInterrupts stops(options.stop);
  FRESHET_TRY(check_given_number(*impl_, manifest, options));
  FRESHET_TRY(impl_->prove_equal(manifest, options));
  for (int tries = 1;; ++tries) {
    PutInProgress put{.manifest = manifest, .options = options, .brought = brought};
    FRESHET_TRY(impl_->begin(put));
    const Status stored = impl_->store(put, bytes_of);
    impl_->end(put);
    if (stored) return put.manifest.name;
    // What it inherits went while it was written: from the beginning, where it is asked for or refused.
    if (put.inherited_lost && tries < kPutTriesMax) continue;
    return fail(Error(stored.error()).with_context("put " + to_string(put.manifest.name)));
  }
}

Result<std::vector<std::uint32_t>> LocalRepository::wanted(const Manifest& given, const PutOptions& options) const {
  Manifest manifest = given;
  FRESHET_TRY(check_given_number(*impl_, manifest, options));
  FRESHET_TRY(impl_->admit(manifest, options));
  std::vector<std::uint32_t> tensors;
  if (!options.has_weights) return tensors;
  FRESHET_TRY(impl_->prove_equal(manifest, options));
  if (seeks_equal(options)) {
    const MutexLock turn(impl_->turn);
    FRESHET_TRY(impl_->equal_contents.inherit(manifest));
  }
  FRESHET_ASSIGN(const std::vector<NewSegment> segments, segments_to_store(*impl_->backend, manifest, options.placed));
  for (const NewSegment& segment : segments) tensors.push_back(segment.tensor);
  std::sort(tensors.begin(), tensors.end());
  return tensors;
}

}  // namespace freshet
