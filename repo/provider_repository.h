// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The second interface of a repository, for its server (repo/serve/) and for the other providers of a cluster
/// (repo/cluster/). A controller needs only repository.h.
///
/// A repository in a backend implements this interface. The client of a server does too, and passes each call on.
/// Several providers together do not: each of these calls goes to one provider.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "core/model/tensor.h"
#include "repo/backend/backend.h"
#include "repo/part_puts.h"
#include "repo/pins/pin_terms.h"
#include "repo/repository.h"
#include "repo/retirement.h"

namespace freshet {

/// A small record that the providers of one repository share (repo/cluster/). No value: the record does not exist.
struct SharedRecord {
  std::string key;
  std::optional<std::string> value;
  bool operator==(const SharedRecord&) const = default;
};
inline constexpr std::size_t kSharedKeyBytesMax = 256;
inline constexpr std::size_t kSharedValueBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kSharedRecordsMax = 1024;  ///< Changed in one call, or expected.
/// The limit of the keys and values that one call changes or expects.
inline constexpr std::size_t kSharedChangeBytesMax = std::size_t{16} << 20;

/// A tensor of a put whose bytes its caller brought into the repository's medium itself.
struct BroughtTensor {
  std::uint32_t tensor = 0;
  std::vector<BroughtPart> parts;
};

/// Computes the digests that were given as zeros (Repository::put()), for the tensors that the version itself writes. A
/// repository in another process needs digests before bytes.
Status fill_digests(Manifest& manifest, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                    const Repository::PutOptions& options);

/// Any thread, as Repository.
class ProviderRepository : public Repository {
 public:
  /// As Repository::open().
  static Result<std::unique_ptr<ProviderRepository>> open(std::unique_ptr<Backend> backend, Options options);

  // For a server.

  /// The tensors that a put of this manifest would ask bytes for now, ascending. Errors: those of put() before it asks
  /// for bytes.
  virtual Result<std::vector<std::uint32_t>> wanted(const Manifest& manifest, const PutOptions& options) const = 0;
  /// For a server that lends bytes. While the returned object lives, gc() leaves the bytes of these segments, even if
  /// their version is retired. The object may outlive the repository. It is not durable, and no retirement waits for
  /// it. A segment that is kept as a difference may still become unreadable when its version is retired. not_found if a
  /// segment is not stored (any more). The client of a server returns null: no promise.
  virtual Result<std::shared_ptr<const void>> keep_readable(std::span<const SegmentName> segments) const;
  /// For a server whose clients read from the medium itself: for each of the version's tensors in `tensors`, requests
  /// that read it, for `life` from now. Empty: the tensor is to be read through this repository. unsupported: all are.
  virtual Result<std::vector<std::vector<SignedPart>>> sign_reads(const VersionRecord& record,
                                                                  std::span<const std::uint32_t> tensors,
                                                                  Duration life) const;
  /// For a server whose clients bring tensors into the medium itself: Backend::sign_uploads(), and a put of such
  /// tensors. put_brought() asks `bytes_of` for the tensors whose objects are not there as they should be.
  virtual Result<SignedUploads> sign_uploads(std::span<const PartToBring> parts, Duration life);
  virtual Result<VersionName> put_brought(const Manifest& manifest,
                                          const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                          PutOptions options, std::span<const BroughtTensor> brought);
  /// Renews a client's lease: its pins hold for kPinLease from now on. A repository object renews its own lease
  /// automatically; a server passes its clients' leases on.
  virtual Status renew_pins(const PinLease& lease) = 0;
  /// PartPuts::begin_put() for a server: out_of_space, too, if this owner, a client's key, has kPartPutsOfOneMax open.
  virtual Result<PutToken> begin_put_for(const std::string& owner, const std::string& model, const VersionId& id,
                                         std::shared_ptr<const Architecture> architecture);
  /// For a server that receives parts. While the returned object lives, the put by parts does not end by time. Errors
  /// of PartPuts. The client of a server returns null: no promise.
  virtual Result<std::shared_ptr<const void>> keep_open(const PutToken& token);
  /// Drops the parts of puts that ended by time. Each call of PartPuts does so too; a server calls this each second.
  virtual void drop_ended_puts() {}
  /// For a server that is to run for long: makes what the first match() would make, so that no client waits for it.
  virtual void prepare_match() {}

  // For the other providers: references of versions elsewhere to segments here, and segments by their names.

  /// Records durably that a version of another provider names segments here. The segments stay until drop_referrer(). A
  /// second call changes nothing, or adds segments. not_found, and nothing done, if one of the segments is not stored.
  virtual Status add_referrer(const ExternalReferrer& referrer) = 0;
  /// Removes the references of that attempt. No error if there are none.
  virtual Status drop_referrer(const VersionId& version, std::uint64_t attempt) = 0;
  virtual Result<std::vector<ExternalReferrer>> referrers() const = 0;

  /// Reads whole segments by their names, and checks each against its digest; any version may name them. The message of
  /// not_found names the first segment that is not here.
  struct SegmentRead {
    SegmentName segment;
    Digest digest;
    MutableBytes out;  ///< As long as the segment.
  };
  virtual Status read_segments(std::span<const SegmentRead> reads) const = 0;
  /// Some bytes of one segment as they are stored, *not* checked against a digest.
  virtual Status read_segment_range(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const = 0;
  /// For a repair. A version elsewhere needs these segments, but their records were lost. If gc() has not erased their
  /// bytes yet, and the bytes have the given digests, the segments are stored again. Returns the number of segments
  /// stored again; no version here names them yet.
  struct SegmentContent {
    SegmentName segment;
    std::uint64_t bytes = 0;
    Digest digest;
  };
  virtual Result<std::uint64_t> revive_segments(std::span<const SegmentContent> segments) = 0;

  // For the other providers: common decisions.

  /// True: the version is stored, by that attempt. False: that attempt did not store the version. This is recorded
  /// durably, so that attempt cannot store it later.
  virtual Result<bool> settle_put(const VersionId& id, std::uint64_t attempt) = 0;
  virtual Result<SharedRecord> shared_record(const std::string& key) const = 0;
  /// The records with keys that begin with `prefix` and come after the key `after`, by key. If there are many, the
  /// first of them. Empty: there are no more.
  virtual Result<std::vector<SharedRecord>> shared_records(const std::string& prefix,
                                                           const std::string& after) const = 0;
  /// If every record of `expected` has the given value, makes all `changes` durably. Otherwise changes nothing, and the
  /// message of failed_precondition names one different record. invalid_argument above the limits of shared records.
  virtual Status change_shared_records(std::span<const SharedRecord> expected,
                                       std::span<const SharedRecord> changes) = 0;
  /// Repository::set_alias() for a caller that moves an alias for all providers together. This provider then keeps the
  /// new version for the alias, and releases the old one.
  virtual Status keep_for_alias(const std::string& model, const std::string& alias,
                                std::optional<VersionNumber> expected, VersionNumber desired) = 0;
};

}  // namespace freshet
