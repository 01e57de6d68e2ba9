// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The repository that this process keeps in a backend. Private to this room; others open it as a Repository.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "repo/local/catalog/locked_catalog.h"
#include "repo/local/match/ancestor_index.h"
#include "repo/local/pin_book.h"
#include "repo/local/readable.h"
#include "repo/local/stored/architectures.h"
#include "repo/local/stored/equal_contents.h"
#include "repo/local/stored/manifests.h"
#include "repo/local/stored/reference_book.h"
#include "repo/local/stored/segments.h"
#include "repo/parts/part_desk.h"
#include "repo/provider_repository.h"

namespace freshet {

/// A segment that a put has to store.
struct NewSegment {
  SegmentName name;
  std::uint32_t tensor = 0;  ///< Of the version that is put.
  std::uint64_t bytes = 0;
  std::optional<SegmentName> base;  ///< It may be, and once it is written is, kept as a delta onto this one.
  std::uint64_t delta_bytes = 0;
  bool is_brought = false;  ///< Its writer brought it into the medium: this process has not seen its bytes.
};
std::string blob_key(const NewSegment& segment);

/// A put from its beginning to its end. Its own thread's until it is queued for commit_queued(); then theirs who hold
/// the turn, until `ended`.
struct PutInProgress {
  Manifest manifest;  ///< Its number is final once it is committed.
  Repository::PutOptions options;
  std::span<const BroughtTensor> brought;  ///< Its caller's.
  std::vector<NewSegment> segments;        ///< Those it writes, in their order; nobody else writes them meanwhile.
  std::unique_ptr<BlobWriter> finished;    ///< Of blobs that come to be with the batch.
  VersionRow row;
  std::uint64_t erasures = 0;        ///< As it was when the inherited segments were found to be there.
  bool brings_architecture = false;  ///< Nobody had it before its batch.
  bool ended = false;
  bool base_lost = false;       ///< It failed for that alone.
  bool inherited_lost = false;  ///< Or for something that it inherits, which was retired while it was written.
  Status status;
};

class LocalRepository final : public ProviderRepository {
 public:
  LocalRepository(std::unique_ptr<Backend> backend, const Clock& clock, std::uint64_t part_bytes_max);
  ~LocalRepository() override;
  /// Checks the format, and reads the catalog from the backend's records.
  Status load();

  Result<VersionName> put(const Manifest& manifest, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                          PutOptions options) override {
    return put_brought(manifest, bytes_of, std::move(options), {});
  }
  Result<SignedUploads> sign_uploads(std::span<const PartToBring> parts, Duration life) override;
  Result<VersionName> put_brought(const Manifest& manifest,
                                  const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                  PutOptions options, std::span<const BroughtTensor> brought) override;
  PartPuts& part_puts() override { return parts_; }
  Result<PutToken> begin_put_for(const std::string& owner, const std::string& model, const VersionId& id,
                                 std::shared_ptr<const Architecture> architecture) override {
    return parts_.begin_put_for(owner, model, id, std::move(architecture));
  }
  Result<std::shared_ptr<const void>> keep_open(const PutToken& token) override { return parts_.keep_open(token); }
  void drop_ended_puts() override { parts_.drop_ended(); }
  Result<VersionRecord> get(const VersionName& name) const override;
  Status annotate(const VersionName& name, const Annotations& annotations) override;
  Result<VersionNumber> latest(const std::string& model) const override;
  Result<std::optional<VersionName>> find(const VersionId& id) const override;
  Status read(const VersionRecord& record, std::span<const TensorRead> reads) const override;
  Result<std::vector<std::uint32_t>> wanted(const Manifest& manifest, const PutOptions& options) const override;
  Status read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                    MutableBytes out) const override;
  Result<std::shared_ptr<const void>> keep_readable(std::span<const SegmentName> segments) const override;
  Result<std::vector<std::vector<SignedPart>>> sign_reads(const VersionRecord& record,
                                                          std::span<const std::uint32_t> tensors,
                                                          Duration life) const override;
  Result<std::vector<OwnerRow>> owners(const VersionName& name) const override;
  Result<std::vector<LineageRow>> lineage(const VersionName& name) const override;
  Result<std::optional<VersionName>> mrca(const VersionName& a, const VersionName& b) const override;
  Result<std::vector<LineageRow>> descendants(const VersionName& name) const override;
  Result<std::vector<ContributorRow>> contributors(const VersionName& name) const override;
  Result<VersionDiff> diff(const VersionName& a, const VersionName& b) const override;
  Result<MatchAnswer> match(const MatchQuery& query) override;
  void prepare_match() override;
  Result<std::vector<ModelRow>> model_rows() const override;
  Result<std::vector<LineageRow>> versions(const std::string& model) const override;
  Status pin(const VersionName& name, const std::string& by, const PinTerms& terms) override;
  Status unpin(const VersionName& name, const std::string& by, const PinTerms& terms) override;
  Status renew_pins(const PinLease& lease) override;
  Result<std::vector<std::string>> pins(const VersionName& name) const override;
  Result<std::vector<PinnedVersion>> all_pins() const override;
  Status read_segments(std::span<const SegmentRead> reads) const override;
  Status read_segment_range(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const override;
  Result<bool> settle_put(const VersionId& id, std::uint64_t attempt) override;
  Result<std::uint64_t> revive_segments(std::span<const SegmentContent> segments) override;
  Result<SharedRecord> shared_record(const std::string& key) const override;
  Result<std::vector<SharedRecord>> shared_records(const std::string& prefix, const std::string& after) const override;
  Status change_shared_records(std::span<const SharedRecord> expected, std::span<const SharedRecord> changes) override;

  Status set_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                   VersionNumber desired) override;
  Status keep_for_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                        VersionNumber desired) override;
  Result<std::vector<Alias>> aliases(const std::string& model) const override;
  Result<RetireReport> retire(const VersionName& name, const RetireOptions& options) override;
  Result<GcReport> gc(const GcOptions& options, const Progress& progress) override;
  Status add_referrer(const ExternalReferrer& referrer) override;
  Status drop_referrer(const VersionId& version, std::uint64_t attempt) override;
  Result<std::vector<ExternalReferrer>> referrers() const override;
  Result<RepositoryStat> stat() const override;
  Result<VerifyReport> verify(const std::optional<VersionName>& name, const Progress& progress) const override;

  /// The common state of the parts.
  class Impl;
  class WritersTurn;

 private:
  const std::unique_ptr<Impl> impl_;
  PartDesk parts_;
};

class LocalRepository::Impl {
 public:
  Impl(std::unique_ptr<Backend> backend_in, const Clock& clock_in) : backend(std::move(backend_in)), clock(clock_in) {}
  /// Keeps the sums of the segments for those who open the repository next.
  ~Impl();

  /// Checks the format, and reads the catalog anew from the backend's records. REQUIRES: `turn` is held.
  Status load() FRESHET_REQUIRES(turn);
  /// Brings back a backend that failed in an earlier write. REQUIRES: `turn` is held.
  Status recovered() FRESHET_REQUIRES(turn);
  /// The same, and refuses where records cannot be read: a number could be given twice, or what is needed be let go.
  Status ready_to_write() FRESHET_REQUIRES(turn);
  Status check_readable() const FRESHET_REQUIRES(turn);
  /// Applies a batch, and remembers when the backend failed, and whether the batch erased a segment's record.
  /// REQUIRES: `turn` is held.
  Status apply(const Backend::Batch& batch) FRESHET_REQUIRES(turn);
  /// Erases the blobs without a segment record that no put is writing. REQUIRES: `turn` is held, all the while: a put
  /// that begins may write a blob of the same name.
  Status remove_leftovers(const Catalog& loaded) FRESHET_REQUIRES(turn);

  // The steps of a put, in repo/local/put/put.cc. Only the last one holds the turn, so that puts write their blobs side
  // by side. The first one comes in between while a batch of puts is on its way.
  Status prove_equal(const Manifest& manifest, const PutOptions& options);
  Status begin(PutInProgress& put);
  /// All steps but begin() and end().
  Status store(PutInProgress& put, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of_tensor);
  /// Proves the bytes and writes them as they are, or as a delta where the segment has a base and that pays.
  Status write_segment(BlobWriter& writer, NewSegment& segment, Manifest& manifest, Bytes bytes);
  Status store_blobs(PutInProgress& put, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of_tensor);
  void end(const PutInProgress& put);
  Status admit(Manifest& manifest, const PutOptions& options) const;
  /// The further checks of a put at one provider of several (repo/local/provider.cc).
  Status admit_placed(const Manifest& manifest, const Placed& placed) const;
  Status add_registrar_records(Backend::Batch& batch) const FRESHET_REQUIRES(turn);
  /// It has been told of a placement: what is numbered and named is decided for all providers together.
  Result<bool> is_one_of_several() const;
  Status set_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                   VersionNumber desired, bool is_decided_elsewhere);
  bool is_in_flight(const PutInProgress& put) const FRESHET_REQUIRES(turn);

  // The last step, in repo/local/put/commit.cc: one batch, and one sync, for all puts that wait for it.
  Status commit_put(PutInProgress& put);
  /// REQUIRES: `committing` is true. `turn` is free while the batch is on its way.
  void commit_queued() FRESHET_REQUIRES(turn);
  /// The numbers and names that the puts of a batch have taken so far.
  struct Taken {
    std::uint64_t commit = 0;
    std::map<std::string, VersionNumber> high_water;  ///< By model.
    std::unordered_set<VersionId> versions;
    std::set<VersionName> names;
  };
  Status add_records(PutInProgress& put, Taken& taken, Backend::Batch& batch) FRESHET_REQUIRES(turn);
  void tell_of(PutInProgress& put) FRESHET_REQUIRES(turn);
  void forget_blobs(const PutInProgress& put) FRESHET_REQUIRES(turn);

  /// One more pin. REQUIRES: `turn` is held, so that no retirement comes between. In repo/local/pins.cc.
  Status add_pin(const VersionName& name, const std::string& by, const PinTerms& terms) FRESHET_REQUIRES(turn);

  /// The row as it is after what is said of it now, in repo/local/annotate.cc.
  Result<VersionRow> annotated(const Catalog::Found& version, const Annotations& annotations) const
      FRESHET_REQUIRES(turn);

  Result<std::vector<Alias>> aliases(const std::string& model) const;
  /// "net@best" for every alias that means the version: who is to retire it is told these.
  Result<std::vector<std::string>> aliases_of(const VersionName& name) const;
  // Retiring and collecting garbage, in repo/local/collect/retire.cc, repo/local/collect/gc.cc and
  // repo/local/collect/referrers.cc.
  Result<RetireReport> retire_now(const Catalog::Found& version) FRESHET_REQUIRES(turn);
  Result<std::vector<GcRow>> inherited_rows() const FRESHET_REQUIRES(turn);
  /// Erases, or says what would go. Answers whether there is space to be given back.
  Result<bool> erase_garbage(const GcOptions& options, const Progress& progress, GcReport& report)
      FRESHET_REQUIRES(turn);
  Status drop_unnamed(const std::vector<SegmentName>& unnamed) FRESHET_REQUIRES(turn);
  Status drop_given_up() FRESHET_REQUIRES(turn);
  /// An answer that was made of the catalog alone: told only if the catalog is still the present one.
  template <typename T>
  Result<T> if_current(Result<T> answer) const {
    FRESHET_TRY(backend->check_current());
    return answer;
  }
  template <typename T>
  Result<T> if_current(T answer) const {
    return if_current(Result<T>(std::move(answer)));
  }
  Result<Catalog::Found> find(const VersionName& name) const;

  // Siblings as deltas, in repo/local/put/sibling_deltas.cc.
  /// Notes for each segment of the put what it may be a delta onto.
  void choose_bases(PutInProgress& put) const;
  /// Nothing when it does not pay.
  std::optional<std::vector<std::byte>> delta_for(const NewSegment& segment, const Manifest& manifest,
                                                  Bytes bytes) const;
  Status check_bases(PutInProgress& put) const FRESHET_REQUIRES(turn);

  const std::unique_ptr<Backend> backend;
  const Clock& clock;
  /// Its lock is taken after `turn`, or alone.
  LockedCatalog known;
  const StoredArchitectures architectures{*backend};
  StoredSegments segments{*backend, known};
  const StoredManifests manifests{*backend, known, architectures};
  AncestorIndex ancestors{*backend, known, architectures};
  PinBook pins{*backend, clock};

  /// The writers' turn (WritersTurn): one batch of records at a time, and the checks that it rests on. Readers never
  /// take it, so that it may be held across I/O.
  Mutex turn;
  /// A put has the turn for all that wait. It lets the mutex go while their batch is on its way, so that others begin.
  bool committing FRESHET_GUARDED_BY(turn) = false;
  std::size_t turns_wanted FRESHET_GUARDED_BY(turn) = 0;  ///< By those that wait for the end of the batch.
  bool put_was_last FRESHET_GUARDED_BY(turn) = false;     ///< To have the turn.
  CondVar committed;                ///< With `turn`: `committing` is false, or the turn was given back.
  std::atomic<bool> failed{false};  ///< The backend, in a write. Cleared under `turn`.
  /// Counts the batches that erased a segment's record: a put that saw what it inherits looks again when it changed.
  std::uint64_t erasures FRESHET_GUARDED_BY(turn) = 0;
  /// The segments that puts are writing now: their blobs have no record yet, and are not leftovers.
  std::unordered_set<VersionId> versions_in_flight FRESHET_GUARDED_BY(turn);
  std::unordered_set<SegmentName> segments_in_flight FRESHET_GUARDED_BY(turn);
  CondVar put_ended;  ///< With `turn`.

  const std::shared_ptr<ReadableSegments> readable = std::make_shared<ReadableSegments>();

  /// Puts whose blobs are durable and whose records are not.
  std::vector<PutInProgress*> queue FRESHET_GUARDED_BY(turn);

  /// The greatest commit number that is durable. A batch that changes which versions there are, or a quality, has
  /// commit_record(commit + 1) in it, and counts this up when it was applied.
  std::uint64_t commit FRESHET_GUARDED_BY(turn) = 0;
  /// Catalog::unread() of the one that was loaded.
  std::string unread FRESHET_GUARDED_BY(turn);

  ReferenceBook references FRESHET_GUARDED_BY(turn){*backend, known, manifests, segments};

  EqualContents equal_contents FRESHET_GUARDED_BY(turn){*backend, segments};
};

/// The writers' turn, from the end of the batch that is on its way. The next batch begins after it.
class FRESHET_THREAD_ATTRIBUTE_(scoped_lockable) LocalRepository::WritersTurn {
 public:
  explicit WritersTurn(Impl& impl) FRESHET_THREAD_ATTRIBUTE_(acquire_capability(impl.turn)) : impl_(impl) {
    impl_.turn.lock();
    ++impl_.turns_wanted;
    while (impl_.committing) impl_.committed.wait(impl_.turn);
    --impl_.turns_wanted;
    impl_.put_was_last = false;
  }
  ~WritersTurn() FRESHET_THREAD_ATTRIBUTE_(release_capability()) {
    impl_.committed.notify_all();
    impl_.turn.unlock();
  }
  WritersTurn(const WritersTurn&) = delete;
  WritersTurn& operator=(const WritersTurn&) = delete;

 private:
  Impl& impl_;
};

/// Says that this commit number is the greatest one.
Backend::Put commit_record(std::uint64_t number);

/// "demo@17 conv/kernel", for messages.
std::string tensor_label(const VersionName& name, const Architecture& architecture, std::uint32_t tensor);

}  // namespace freshet
