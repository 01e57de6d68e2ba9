// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The repository that this process keeps in a backend. Private to this room; others open it as a Repository.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "repo/local/catalog.h"
#include "repo/local/kept_graphs.h"
#include "repo/local/late_index.h"
#include "repo/local/readable.h"
#include "repo/local/references.h"
#include "repo/parts/part_desk.h"
#include "repo/pins/pin_leases.h"
#include "repo/provider_repository.h"
#include "repo/records/manifest_group.h"

namespace freshet {

/// Decoded architectures, shared by every version that has one. Remembers the last few; any thread.
class ArchitectureCache {
 public:
  std::shared_ptr<const Architecture> find(const Digest& digest) const;
  void add(std::shared_ptr<const Architecture> architecture);

 private:
  static constexpr std::size_t kKept = 16;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<const Architecture>> recent_ FRESHET_GUARDED_BY(mutex_);
  std::size_t next_ FRESHET_GUARDED_BY(mutex_) = 0;
};

/// What a match looks at of the architectures that were stored or told last. Any thread.
class GraphCache {
 public:
  std::shared_ptr<const MatchGraph> find(const Digest& architecture) const;
  void add(const Digest& architecture, std::shared_ptr<const MatchGraph> graph);

 private:
  static constexpr std::size_t kKept = 64;
  mutable Mutex mutex_;
  std::vector<std::pair<Digest, std::shared_ptr<const MatchGraph>>> recent_ FRESHET_GUARDED_BY(mutex_);
  std::size_t next_ FRESHET_GUARDED_BY(mutex_) = 0;
};

/// A segment that a put has to store.
struct NewSegment {
  SegmentName name;
  std::uint32_t tensor = 0;  ///< Of the version that is put.
  std::uint64_t bytes = 0;
  std::optional<SegmentName> base;  ///< It may be, and once it is written is, kept as a delta onto this one.
  std::uint64_t delta_bytes = 0;
};
std::string blob_key(const NewSegment& segment);

/// A put from its beginning to its end. Its own thread's until it is queued for commit_queued(); then theirs who hold
/// the turn, until `ended`.
struct PutInProgress {
  Manifest manifest;  ///< Its number is final once it is committed.
  Repository::PutOptions options;
  std::vector<NewSegment> segments;  ///< Those it writes, in their order; nobody else writes them meanwhile.
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
                          PutOptions options) override;
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
  Result<std::vector<OwnerRow>> owners(const VersionName& name) const override;
  Result<std::vector<LineageRow>> lineage(const VersionName& name) const override;
  Result<std::optional<VersionName>> mrca(const VersionName& a, const VersionName& b) const override;
  Result<std::vector<LineageRow>> descendants(const VersionName& name) const override;
  Result<std::vector<ContributorRow>> contributors(const VersionName& name) const override;
  Result<VersionDiff> diff(const VersionName& a, const VersionName& b) const override;
  Result<MatchAnswer> match(const MatchQuery& query) override;
  void prepare_match() override;
  Result<std::vector<std::string>> models() const override;
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

  /// What the parts share.
  class Impl;

 private:
  const std::unique_ptr<Impl> impl_;
  PartDesk parts_;
};

class LocalRepository::Impl {
 public:
  Impl(std::unique_ptr<Backend> backend_in, const Clock& clock_in)
      : backend(std::move(backend_in)), clock(clock_in), leases(clock_in.now(), new_pin_lease()) {}
  /// Keeps the sums of the segments for those who open the repository next.
  ~Impl();

  /// Checks the format, and reads the catalog anew from the backend's records. REQUIRES: `turn` is held.
  Status load() FRESHET_REQUIRES(turn);
  /// Brings back a backend that failed in an earlier write. REQUIRES: `turn` is held.
  Status recovered() FRESHET_REQUIRES(turn);
  /// The same, and refuses where records cannot be read: a number could be given twice, or what is needed be let go.
  Status ready_to_write() FRESHET_REQUIRES(turn);
  /// Applies a batch, and remembers when the backend failed, and whether the batch erased a segment's record.
  /// REQUIRES: `turn` is held.
  Status apply(const Backend::Batch& batch) FRESHET_REQUIRES(turn);
  /// Erases the blobs without a segment record that no put is writing. REQUIRES: `turn` is held, all the while: a put
  /// that begins may write a blob of the same name.
  Status remove_leftovers(const Catalog& loaded) FRESHET_REQUIRES(turn);

  // The steps of a put, in repo/local/put/put.cc. Only the first and the last hold the turn, so that puts write their
  // blobs side by side.
  Status begin(PutInProgress& put);
  /// All steps but begin() and end().
  Status store(PutInProgress& put, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of_tensor);
  /// Proves the bytes and writes them as they are, or as a delta where the segment has a base and that pays.
  Status write_segment(BlobWriter& writer, NewSegment& segment, const Manifest& manifest, Bytes bytes);
  Status store_blobs(PutInProgress& put, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of_tensor);
  void end(const PutInProgress& put);
  Status check_given_number(const Manifest& manifest, const PutOptions& options) const;
  Status admit(Manifest& manifest, const PutOptions& options) const;
  /// What one provider of several asks of a put besides (repo/local/provider.cc).
  Status admit_placed(const Manifest& manifest, const Placed& placed) const;
  Status add_registrar_records(Backend::Batch& batch) const FRESHET_REQUIRES(turn);
  /// It has been told of a placement: what is numbered and named is decided for all providers together.
  Result<bool> is_one_of_several() const;
  Status set_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                   VersionNumber desired, bool is_decided_elsewhere);
  bool is_in_flight(const PutInProgress& put) const FRESHET_REQUIRES(turn);

  // The last step, in repo/local/put/commit.cc: one batch, and one sync, for all puts that wait for it.
  Status commit_put(PutInProgress& put);
  Status check_circle(const Manifest& manifest) const;
  void commit_queued() FRESHET_REQUIRES(turn);
  /// What the puts of a batch have taken so far.
  struct Taken {
    std::uint64_t commit = 0;
    std::map<std::string, VersionNumber> high_water;  ///< By model.
    std::unordered_set<VersionId> versions;
    std::set<VersionName> names;
  };
  Status add_records(PutInProgress& put, Taken& taken, Backend::Batch& batch) FRESHET_REQUIRES(turn);
  void tell_of(PutInProgress& put) FRESHET_REQUIRES(turn);
  /// Of the architectures that the puts bring.
  void keep_graphs_of(const std::vector<PutInProgress*>& puts) FRESHET_REQUIRES(turn);
  std::shared_ptr<const MatchGraph> graph_of(const Architecture& architecture);
  void forget_blobs(const PutInProgress& put) FRESHET_REQUIRES(turn);

  /// One more pin. REQUIRES: `turn` is held, so that no retirement comes between. In repo/local/pins.cc.
  Status add_pin(const VersionName& name, const std::string& by, const PinTerms& terms) FRESHET_REQUIRES(turn);

  // The match index, in repo/local/match.cc. Whoever changes which versions there are tells it so after the catalog,
  // and before the turn ends; a retirement tells it before as well, so that no answer names what is gone.
  /// Does not wait for the turn.
  void need_index() FRESHET_EXCLUDES(mutex);
  struct StoredVersion {
    VersionName name;
    std::shared_ptr<const VersionRow> row;
  };
  /// In the order of their commits.
  std::vector<StoredVersion> stored_versions() const FRESHET_EXCLUDES(mutex);
  /// After the catalog was read anew, which had these versions before.
  void index_again(const std::vector<StoredVersion>& before) FRESHET_REQUIRES(turn);
  void index_rows(const std::vector<StoredVersion>& rows, StructureIndex& index) FRESHET_EXCLUDES(mutex, keeping);
  /// The record of the architecture is missing, or is not what its digest says.
  bool is_damaged(const Digest& architecture) const;
  /// False: get() would say corrupt for its architecture. Then no version of that architecture is in the index any
  /// more.
  bool is_readable(const MatchRow& row) FRESHET_EXCLUDES(mutex);
  /// A graph that was kept tells nothing of the architecture's record, so that is looked at before its first answer.
  MatchAnswer readable_match(const MatchQuery& query, const std::optional<VersionId>& excluded) FRESHET_EXCLUDES(mutex);
  KeptGraphs kept_graphs() const FRESHET_EXCLUDES(mutex);
  /// The greatest commit number that the records have; at least those of the catalog's rows.
  Result<std::uint64_t> greatest_commit(const Catalog& loaded) const;
  /// What a match looks at of a stored architecture. Its digest shows that it passed all checks when it was put, so
  /// they are not made again: making the index would be mostly that.
  Result<std::shared_ptr<const MatchGraph>> stored_graph(const Digest& digest, ConfigHashes& configs) const;
  /// The kept graphs that somebody needs, those of `live`, when the others take more than half of the room; and with
  /// what had to be made anew.
  using Graphs = std::unordered_map<Digest, std::shared_ptr<const MatchGraph>>;
  void keep_graphs(const KeptGraphs& kept, const Graphs& made, const std::unordered_set<Digest>& live)
      FRESHET_EXCLUDES(keeping);
  void index_version(const VersionName& name, const VersionRow& row, std::shared_ptr<const Architecture> architecture)
      FRESHET_REQUIRES(turn);
  void unindex_version(const VersionId& id, std::uint64_t at_commit) FRESHET_REQUIRES(turn);

  /// The row as it is after what is said of it now, in repo/local/annotate.cc.
  Result<VersionRow> annotated(const Catalog::Found& version, const Annotations& annotations) const
      FRESHET_REQUIRES(turn);

  Result<std::vector<Alias>> aliases(const std::string& model) const;
  /// "net@best" for every alias that means the version: who is to retire it is told these.
  Result<std::vector<std::string>> aliases_of(const VersionName& name) const;
  // Retiring and collecting garbage, in repo/local/collect/retire.cc, repo/local/collect/gc.cc and
  // repo/local/collect/referrers.cc.
  Status need_references() FRESHET_REQUIRES(turn);
  Result<References> count_references() const;
  Result<std::vector<SegmentName>> segments_of(const VersionName& name, const VersionRow& row) const;
  Status scan_referrers(const std::function<void(const ExternalReferrer&)>& each) const;
  /// What retiring a version lets go of.
  struct Release {
    bool known = false;  ///< False where damage hides what versions name.
    std::vector<SegmentName> segments;
    std::vector<SegmentName> unnamed;  ///< Of those, the ones that nobody else names.
  };
  Result<Release> release_of(const Catalog::Found& version) FRESHET_REQUIRES(turn);
  /// Until a pin was removed since `known`, or `until`. cancelled: the caller's Interruption.
  Status wait_for_unpin(std::uint64_t known, Time until, const VersionName& name) FRESHET_EXCLUDES(mutex);
  Result<RetireReport> retire_now(const Catalog::Found& version) FRESHET_REQUIRES(turn);
  /// Nothing when there is no such record.
  Result<std::optional<std::uint64_t>> segment_bytes(const std::string& record_key) const;
  Result<std::vector<GcRow>> inherited_rows() const FRESHET_REQUIRES(turn);
  /// Erases, or says what would go. Answers whether there is space to be given back.
  Result<bool> erase_garbage(const GcOptions& options, const Progress& progress, GcReport& report)
      FRESHET_REQUIRES(turn);
  Status drop_unnamed(const std::vector<SegmentName>& unnamed) FRESHET_REQUIRES(turn);
  Status drop_given_up() FRESHET_REQUIRES(turn);
  struct Holder {
    std::string by;
    std::optional<Time> until;  ///< Nothing for one that stays.
    std::uint64_t count = 0;    ///< 0 where their record is damaged.
  };
  /// What a pin's record says; nothing when all its pins have ended.
  std::optional<Holder> holder_of(std::string by, std::string_view value) const;
  /// Who holds the version now.
  Result<std::vector<Holder>> holders_of(const VersionName& name) const;
  /// "worker7 (for 94 s, unless it is renewed)".
  std::string describe(const Holder& holder) const;

  /// Reads the segments' records, unless that was done. An owner's are read when he opens the repository.
  Status need_segments() FRESHET_EXCLUDES(mutex);
  struct SegmentSums {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };
  /// Where nobody has read the records, what the last owner kept is believed if nothing was written since.
  Result<SegmentSums> segment_sums() FRESHET_EXCLUDES(mutex);
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
  Result<std::shared_ptr<const Architecture>> architecture_of(const Digest& digest) const;

  // Manifests on the disk, in repo/local/manifests.cc. How they share their equal parts is known there alone, so nobody
  // else reads or writes their records.
  /// Adds to the batch what stores the manifest, and notes in `row` where it is found and how it is proved.
  Status store_manifest(Backend::Batch& batch, const Manifest& manifest, VersionRow& row) const FRESHET_REQUIRES(turn);
  /// Adds to the batch what takes the version's manifest away; those that share parts with it stay whole. Sees what the
  /// batch has already, so several can go in one.
  Status erase_manifest(Backend::Batch& batch, const VersionRow& row) const FRESHET_REQUIRES(turn);
  /// Reads and proves. corrupt names the version.
  Result<Manifest> manifest_of(const VersionName& name, const VersionRow& row) const;
  using EachManifest =
      std::function<Status(const VersionName& name, const VersionRow& row, const Result<Manifest>& manifest)>;
  /// Calls back for every version that has one (not: tombstones and damaged rows), in the order that reads cheapest.
  /// Ends with the first error that the callback gives. Not under `mutex`.
  Status for_each_manifest(const EachManifest& each) const;
  /// As for_each_manifest, without their architectures, which need not be read then.
  Status for_each_owner_map(const EachManifest& each) const;
  /// That the manifest is the one that the row names. It has no architecture yet.
  using Prove =
      std::function<Result<Manifest>(const VersionName& name, const VersionRow& row, const UnprovedManifest&)>;
  Status for_each_decoded(const Prove& prove, const EachManifest& each) const;
  static Result<Manifest> proved_alone(const VersionName& name, const VersionRow& row, const UnprovedManifest& decoded);
  Result<Manifest> proved(const VersionName& name, const VersionRow& row, const UnprovedManifest& decoded) const;
  std::shared_ptr<const VersionRow> base_row_for(const Manifest& manifest) const;
  /// The entry's encoded form on another base, or whole.
  Result<std::string> rebased(ManifestGroup& group, std::uint32_t entry, std::optional<std::uint32_t> base) const;
  Result<Manifest> grouped_manifest(const VersionName& name, const VersionRow& row) const;

  // Segments on the disk, in repo/local/segments.cc.
  /// Reads a whole segment into `out`, however it is encoded; the caller proves it against its digest. corrupt when it
  /// is missing or not as long as `out`.
  Status read_segment(const SegmentName& segment, MutableBytes out) const;
  /// The same, and proves it.
  Status read_proved(const SegmentName& segment, const Digest& digest, MutableBytes out) const;
  /// Some of a segment's bytes, unproved. What is kept as a delta is rebuilt for it, and kept until another is asked
  /// for.
  Status read_part(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const;
  Result<SegmentRow> segment_row(const SegmentName& segment) const;
  /// A segment that is not kept as it is.
  Status rebuild(const SegmentName& segment, MutableBytes out) const;
  /// The record of such a one, whose length the blob of its base has shown to be true: before memory is taken for it.
  Result<SegmentRow> rebuildable(const SegmentName& segment) const;
  std::optional<SegmentName> base_of(const SegmentName& segment) const;
  /// The segments, and those that they are deltas onto, each once, ascending: what must stay for them to be read.
  std::vector<SegmentName> with_bases(std::vector<SegmentName> segments) const;

  // Equal tensors without lineage, in repo/local/put/dedup.cc.
  Status need_contents() FRESHET_REQUIRES(turn);
  /// Names stored segments of equal content in the place of those that are not stored.
  Status inherit_equal(Manifest& manifest) FRESHET_REQUIRES(turn);

  // Siblings as deltas, in repo/local/put/sibling_deltas.cc.
  /// Notes for each segment of the put what it may be a delta onto.
  void choose_bases(PutInProgress& put) const;
  /// Nothing when it does not pay.
  std::optional<std::vector<std::byte>> delta_for(const NewSegment& segment, const Manifest& manifest,
                                                  Bytes bytes) const;
  Status check_bases(PutInProgress& put) const FRESHET_REQUIRES(turn);

  const std::unique_ptr<Backend> backend;
  const Clock& clock;
  mutable ArchitectureCache architectures;
  mutable GraphCache graphs;

  /// The writers' turn: one batch of records at a time, and the checks that it rests on. Readers never take it, so that
  /// it may be held across I/O.
  Mutex turn;
  std::atomic<bool> failed{false};  ///< The backend, in a write. Cleared under `turn`.
  /// Counts the batches that erased a segment's record: a put that saw what it inherits looks again when it changed.
  std::uint64_t erasures FRESHET_GUARDED_BY(turn) = 0;
  /// What puts are writing now: their blobs have no record yet, and are not leftovers.
  std::unordered_set<VersionId> versions_in_flight FRESHET_GUARDED_BY(turn);
  std::unordered_set<SegmentName> segments_in_flight FRESHET_GUARDED_BY(turn);
  CondVar put_ended;  ///< With `turn`.

  const std::shared_ptr<ReadableSegments> readable = std::make_shared<ReadableSegments>();

  /// Puts whose blobs are durable and whose records are not. Taken after `turn`, or alone.
  Mutex queue_mutex;
  std::vector<PutInProgress*> queue FRESHET_GUARDED_BY(queue_mutex);

  /// The greatest commit number that is durable. A batch that changes which versions there are, or a quality, has
  /// commit_record(commit + 1) in it, and counts this up when it was applied.
  std::uint64_t commit FRESHET_GUARDED_BY(turn) = 0;
  static Backend::Put commit_record(std::uint64_t number);
  /// Catalog::unread() of the one that was loaded.
  std::string unread FRESHET_GUARDED_BY(turn);

  LateIndex late_index;
  Mutex keeping;  ///< Held while kept graphs are written.
  Mutex proved_mutex;
  /// Whose records had their digests when a match first named a version of them.
  std::unordered_set<Digest> proved_architectures FRESHET_GUARDED_BY(proved_mutex);
  /// Made when somebody first needs it: who never retires pays nothing for it.
  std::optional<References> references FRESHET_GUARDED_BY(turn);

  /// A segment by its content, of each content one; it may have been retired. Made when a put first asks for it.
  std::optional<std::unordered_map<Digest, SegmentName>> contents FRESHET_GUARDED_BY(turn);

  /// The last segment that was rebuilt in whole for a part of it.
  struct Rebuilt {
    SegmentName segment;
    std::vector<std::byte> bytes;
  };
  mutable Mutex rebuilt_mutex;
  mutable std::shared_ptr<const Rebuilt> rebuilt FRESHET_GUARDED_BY(rebuilt_mutex);

  mutable Mutex mutex;
  Catalog catalog FRESHET_GUARDED_BY(mutex);
  /// Grows with each pin that goes; who waits to retire waits for it.
  std::uint64_t unpins FRESHET_GUARDED_BY(mutex) = 0;
  PinLeases leases FRESHET_GUARDED_BY(mutex);
  CondVar unpinned;
};

/// What is stored must be the same bytes wherever a segment is named; corrupt says how they differ.
Status check_same(const SegmentRow& stored, const SegmentRow& named);

/// "demo@17 conv/kernel", for messages.
std::string tensor_label(const VersionName& name, const Architecture& architecture, std::uint32_t tensor);

}  // namespace freshet
