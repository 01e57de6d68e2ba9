// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where versions rest. A repository keeps, for each version, its manifest (owner map, digests, ancestor) and the
/// segments that it owns; a segment is stored once, under the name of the version that wrote it, however many versions
/// inherit it.
///
/// A put is durable and atomic: its segments are written and synced first, then one batch makes the version exist. What
/// a crash leaves are whole versions, and blobs that no version names, which open() removes.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/graph.h"
#include "core/manifest.h"
#include "core/result.h"
#include "core/tensor.h"
#include "repo/backend.h"
#include "repo/match/query.h"
#include "repo/pin_terms.h"
#include "repo/placed.h"
#include "repo/retirement.h"

namespace freshet {

/// A put that wants a greater number is refused.
inline constexpr VersionNumber kVersionNumberMax = VersionNumber{1} << 62;

struct VersionRecord {
  Manifest manifest;
  std::optional<double> quality;
  bool has_weights = true;
  std::uint64_t own_bytes = 0;  ///< Of the tensors that this version wrote.
  std::uint64_t inherited_bytes = 0;
  std::optional<Placed> placed;  ///< Where its bytes are, when this is one provider of several.
};

/// A small record that the providers of one repository share (repo/cluster/); without a value it is not there.
struct SharedRecord {
  std::string key;
  std::optional<std::string> value;
  bool operator==(const SharedRecord&) const = default;
};
inline constexpr std::size_t kSharedKeyBytesMax = 256;
inline constexpr std::size_t kSharedValueBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kSharedRecordsMax = 1024;  ///< Changed in one call, or expected.

struct LineageRow {
  VersionName version;
  VersionName ancestor;  ///< Empty at the root.
  std::uint64_t inherited_bytes = 0;
  std::uint64_t own_bytes = 0;
  std::optional<double> quality;
  bool retired = false;
};

struct OwnerRow {
  std::string tensor;
  VersionName owner;  ///< The version's name where it is stored here; number 0 and model "" otherwise.
  SegmentName segment;
  std::uint64_t bytes = 0;
};

/// A version that wrote tensors which another one has, and which they are.
struct ContributorRow {
  VersionName version;  ///< Number 0 and model "" when it is not known here (a sink that joined late adopts segments).
  VersionId id;
  bool retired = false;      ///< Its bytes live on in whoever inherited them.
  bool is_ancestor = false;  ///< On the line of ancestors, or the version itself.
  std::uint64_t tensor_count = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> tensors;  ///< In the architecture's order.
};

/// What `b` has that `a` has not, and the other way round.
struct VersionDiff {
  struct Tensor {
    std::string name;    ///< In `b`.
    std::string name_a;  ///< In `a`; the same unless its layer was renamed.
    std::uint64_t bytes = 0;
    VersionName owner_a;  ///< Number 0 when the owner is not known here.
    VersionName owner_b;
  };
  std::vector<std::string> layers_added;    ///< Names in `b` of layers whose slot `a` does not have.
  std::vector<std::string> layers_removed;  ///< Names in `a` of layers whose slot `b` does not have.
  /// Tensors of one type and shape in both, whose bytes differ: those of a layer that both have (by slot), and those
  /// that go by the same name. Empty when one has no weights.
  std::vector<Tensor> tensors_changed;
  std::optional<double> quality_a;
  std::optional<double> quality_b;
};

/// A name for a version within its model: `net@best` is 17.
struct Alias {
  std::string name;
  VersionNumber number = 0;
  bool operator==(const Alias&) const = default;
};

/// A letter, then up to 63 of A-Z a-z 0-9 . _ -, so that it is never a number.
Status check_alias(std::string_view alias);

/// "MODEL", "MODEL@V" or "MODEL@ALIAS", not looked up yet.
struct VersionReference {
  VersionName name;   ///< Number 0: the newest, or the alias's.
  std::string alias;  ///< Empty for none.
};
Result<VersionReference> parse_version_reference(std::string_view text);

/// Pins of one holder on one version (see Repository::pin).
struct PinnedVersion {
  VersionName version;
  std::string by;
  std::uint64_t count = 0;  ///< How many unpin() would take away; 0 where their record is damaged.
  /// How long until the last of them ends, unless its client renews it; nothing where one stays until it is taken away.
  std::optional<Duration> left;
};

/// What is said of a version after it was put.
struct Annotations {
  bool sets_quality = false;
  std::optional<double> quality;  ///< With sets_quality; absent: none any more.
  /// Tags by key, no key twice. A tag that is there keeps its place, a new one comes last; without a value it goes.
  std::vector<std::pair<std::string, std::optional<std::string>>> tags;
};
inline constexpr std::size_t kLaterTagsMax = 256;                    ///< Of one version, those that went included.
inline constexpr std::size_t kLaterTagBytesMax = std::size_t{4096};  ///< Of a value.

struct RepositoryStat {
  std::uint64_t models = 0;
  std::uint64_t versions = 0;          ///< Without retired ones.
  std::uint64_t retired_versions = 0;  ///< Whose tombstones keep their line.
  std::uint64_t live_tensors = 0;      ///< Distinct segments.
  std::uint64_t live_bytes = 0;
  std::uint64_t disk_bytes = 0;  ///< All of it, but for the reserve that is laid by for a full disk.
  std::uint64_t metadata_bytes =
      0;  ///< Of disk_bytes, what is not payload. After gc() the rest is live_bytes and < 1 %.
};

/// What was found. Damage is what no sequence of puts, retirements and crashes can have left; what they do leave, for
/// gc() to erase, is told apart from it.
struct VerifyReport {
  std::uint64_t checked_bytes = 0;
  struct Corrupt {
    VersionName version;  ///< Number 0 when no version can be named: `record` then says which record it is.
    std::string tensor;   ///< Empty when it is not about one.
    std::string reason;
    std::string record;
  };
  std::vector<Corrupt> corrupt;
  /// Whole, and needed by nobody. "3 blobs of net@7".
  struct Unneeded {
    std::string what;
    std::uint64_t bytes = 0;
    std::string reason;
  };
  std::vector<Unneeded> unneeded;
};

/// What several providers of one repository were told again that they had lost of each other.
struct RepairReport {
  struct Row {
    VersionName version;
    std::string tensor;  ///< The first one of
    std::uint64_t tensors = 0;
    std::string provider;  ///< Which keeps them, and knows that again.
  };
  std::vector<Row> repaired;
  std::vector<std::string> notes;  ///< What could not be made good now, and why.
};

/// How far long work is: bytes done, of so many in all.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// One that is here (open(), below), or one that another process or other hosts keep. Any thread. Puts
/// write their tensors side by side; what makes a version exist or go is done one at a time, for several puts at once
/// where they wait together.
class Repository {
 public:
  struct Options {
    const Clock* clock = nullptr;  ///< Null: the machine's.
  };
  /// Reads the catalog, and removes the blobs that a crash left (not from a read-only backend). unsupported when the
  /// repository was written in a newer format than this build reads.
  static Result<std::unique_ptr<Repository>> open(std::unique_ptr<Backend> backend, Options options);
  virtual ~Repository() = default;

  /// Stores a version, durably when the backend is. Its manifest's name.number is honoured when it is greater than the
  /// model's newest (a sink keeps the publisher's numbers) and given anew otherwise, 0 included; the number is
  /// returned. `bytes_of` is asked for every segment of the owner map that is not stored yet, in ascending order of
  /// segments; each is checked against its digest before the version exists. It must not call the repository's writing
  /// functions.
  ///
  /// Errors: already_exists (the same version id is stored, or was and is retired; nothing was done);
  /// failed_precondition (its ancestor was retired); corrupt (bytes do not match their
  /// digest, or a stored segment has another one); out_of_space; unavailable (the backend). Nothing is left half-made,
  /// and the next put first tries to bring a backend back that failed.
  struct PutOptions {
    std::optional<double> quality;
    bool has_weights = true;  ///< False: a graph that was never trained. No bytes are asked, digests do not count.
    /// Tensors whose content is stored already, under whatever name, are inherited from there: the owner map then names
    /// those segments in the place of its own. Neither this nor `deltas` counts where several providers keep the
    /// versions.
    bool dedup = false;
    /// What was fine-tuned from the ancestor is kept as lossless differences from its tensors where that saves a
    /// quarter or more. Costs the reading of those tensors, now and whenever this version is read.
    bool deltas = false;
    /// Given by who spreads versions over providers: the manifest's number counts as it stands (already_exists when it
    /// is taken), bytes of segments that rest elsewhere are not asked for, and an attempt that settle_put() gave up is
    /// failed_precondition.
    std::optional<Placed> placed;
    /// The version's identity was drawn for this put alone, and nobody knows it. Several providers may put another one
    /// in its place, so that the version rests with one that answers.
    bool drawn_id = false;
    /// Stores it though its ancestor was retired: for whoever keeps a run's every version, in whatever order others
    /// retire them. Segments that went with the ancestor are asked for again.
    bool ancestor_may_be_retired = false;
  };
  virtual Result<VersionName> put(const Manifest& manifest,
                                  const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                  PutOptions options) = 0;

  /// Number 0: the newest. not_found names what is there instead.
  virtual Result<VersionRecord> get(const VersionName& name) const = 0;
  /// Changes what is said of a version, its bytes and its owner map never: durable, all of it or nothing, and a commit
  /// of its own. From then on get(), match() and its filters go by it. invalid_argument for tags that no version may
  /// have; out_of_space when too much was said later than put().
  virtual Status annotate(const VersionName& name, const Annotations& annotations) = 0;
  virtual Result<VersionNumber> latest(const std::string& model) const = 0;
  /// By identity, also one that was retired; nothing when it was never stored.
  virtual Result<std::optional<VersionName>> find(const VersionId& id) const = 0;

  /// Reads tensors into the caller's memory and checks each against its digest.
  struct TensorRead {
    std::uint32_t tensor = 0;
    MutableBytes out;  ///< As long as the tensor.
  };
  virtual Status read(const VersionRecord& record, std::span<const TensorRead> reads) const = 0;

  /// What a server of this repository needs besides (repo/serve/). wanted(): the tensors whose bytes a put of that
  /// manifest would ask for now, ascending; its errors are those that put() would answer before it asks. read_range():
  /// some bytes of a tensor as they are stored, *not* checked against the digest: whoever puts the ranges together
  /// proves the whole.
  virtual Result<std::vector<std::uint32_t>> wanted(const Manifest& manifest, const PutOptions& options) const = 0;
  /// True when a put (one without `deltas`) may be given bytes that somebody changes meanwhile: it reads each once, and
  /// what it keeps is what it has proved.
  virtual bool proves_what_it_keeps() const { return false; }
  virtual Status read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                            MutableBytes out) const = 0;

  /// For a server that lends bytes: while what is returned lives, which may be longer than the repository does, gc()
  /// leaves these segments' bytes, whoever is retired meanwhile. Nothing durable, and nothing that holds up a
  /// retirement. A segment that is kept as a difference may all the same end as not readable when its version is
  /// retired. not_found when one of them is not stored (any more). Repositories elsewhere promise nothing: null.
  virtual Result<std::shared_ptr<const void>> keep_readable(std::span<const SegmentName> segments) const;

  virtual Result<std::vector<OwnerRow>> owners(const VersionName& name) const = 0;

  // Who came from whom. Retired versions keep their place and can be asked about; all but contributors() and diff(),
  // which read the versions' owner maps, is answered from memory in time that their number's logarithm or the answer's
  // length tells. A line ends where an ancestor was never stored here.

  /// Newest first, along the chain of ancestors.
  virtual Result<std::vector<LineageRow>> lineage(const VersionName& name) const = 0;
  /// The most recent version on both chains of ancestors, each of which begins with the version itself; nothing when
  /// they never meet.
  virtual Result<std::optional<VersionName>> mrca(const VersionName& a, const VersionName& b) const = 0;
  /// All that came from it, children before their children; without the version itself.
  virtual Result<std::vector<LineageRow>> descendants(const VersionName& name) const = 0;
  /// Who wrote the tensors of a version: itself first where it wrote any, then its ancestors from the nearest on, then
  /// others by name. Empty for one without weights.
  virtual Result<std::vector<ContributorRow>> contributors(const VersionName& name) const = 0;
  virtual Result<VersionDiff> diff(const VersionName& a, const VersionName& b) const = 0;

  /// The stored versions that share the longest prefix with the query's graph, best first, and the commit after which
  /// that is so; commits are counted from 1 and grow with every put, retirement and change of a quality (over
  /// several providers from the microseconds since 1970 on, so that they can be compared between them). With
  /// `query.pin_by` the best row is pinned, durably, before anybody can retire it; who got no row holds no pin.
  /// invalid_argument for a query that makes no sense; not_found for an exclude_lineage that is not here.
  virtual Result<MatchAnswer> match(const MatchQuery& query) = 0;

  virtual Result<std::vector<std::string>> models() const = 0;
  virtual Result<std::vector<LineageRow>> versions(const std::string& model) const = 0;  ///< Ascending.

  /// A pinned version cannot be retired. Pins are durable; `by` is whoever will unpin. Counted per (version, by). One
  /// that is not to stay ends with the client that took it: repo/pin_terms.h says when. unpin() takes a pin of the same
  /// client if there is one, or else another of that holder; of `terms` only the lease counts.
  virtual Status pin(const VersionName& name, const std::string& by, const PinTerms& terms = {}) = 0;
  virtual Status unpin(const VersionName& name, const std::string& by, const PinTerms& terms = {}) = 0;
  virtual Result<std::vector<std::string>> pins(const VersionName& name) const = 0;
  /// All pins that hold somebody up, by version and holder.
  virtual Result<std::vector<PinnedVersion>> all_pins() const = 0;
  /// The client of that lease lives: its pins hold for kPinLease from now on. For who passes leases on; a repository
  /// object renews its own lease by itself.
  virtual Status renew_pins(const PinLease& lease) = 0;

  /// Retires a version (its number must be given): its manifest goes at once, with the records of what only it named,
  /// and its name, identity, ancestor, quality and sizes stay as a tombstone in the lineage. One durable step. From
  /// then on get(), pin() and the like answer not_found ("net@3 was retired"), and so does a second retire(); the
  /// number is never given again. One that is pinned is waited for up to options.wait, then failed_precondition names
  /// the holders, and until when they hold it. Its bytes go with the next gc(), if nobody else names them.
  virtual Result<RetireReport> retire(const VersionName& name, const RetireOptions& options) = 0;
  /// Erases the segments that no version names, here or elsewhere, and gives their space back. Writers wait meanwhile,
  /// readers do not. Interrupted at any point, the next gc() goes on.
  virtual Result<GcReport> gc(const GcOptions& options, const Progress& progress) = 0;
  /// Makes it durable that a version of another provider names segments here; they stay until drop_referrer(). Doing
  /// it twice changes nothing, and segments may be added. not_found, and nothing done, when one of them is not stored.
  virtual Status add_referrer(const ExternalReferrer& referrer) = 0;
  /// What that attempt names here. No error when it names nothing.
  virtual Status drop_referrer(const VersionId& version, std::uint64_t attempt) = 0;
  virtual Result<std::vector<ExternalReferrer>> referrers() const = 0;

  // What one provider of several does for the others (repo/cluster/).

  /// Reads whole segments by their names, each checked against its digest, whosever version names them. not_found names
  /// the first one that is not here.
  struct SegmentRead {
    SegmentName segment;
    Digest digest;
    MutableBytes out;  ///< As long as the segment.
  };
  virtual Status read_segments(std::span<const SegmentRead> reads) const = 0;
  /// Some bytes of one segment as they are stored, *not* checked against a digest.
  virtual Status read_segment_range(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const = 0;
  /// For who repairs: segments whose records went though a version elsewhere needs them, and whose bytes gc() has not
  /// taken yet, are stored again if these have the given digests. Answers how many; nobody names them yet.
  struct SegmentContent {
    SegmentName segment;
    std::uint64_t bytes = 0;
    Digest digest;
  };
  virtual Result<std::uint64_t> revive_segments(std::span<const SegmentContent> segments) = 0;
  /// True when the version is there, put by that attempt. Otherwise it never will be: false, durably.
  virtual Result<bool> settle_put(const VersionId& id, std::uint64_t attempt) = 0;
  virtual Result<SharedRecord> shared_record(const std::string& key) const = 0;
  /// Those whose keys begin with `prefix` and come after the key `after`, by key; of many, the first ones. None when
  /// there are no more.
  virtual Result<std::vector<SharedRecord>> shared_records(const std::string& prefix,
                                                           const std::string& after) const = 0;
  /// Changes all `changes` durably, if every one of `expected` stands just so; otherwise failed_precondition names one
  /// that does not, and nothing is changed.
  virtual Status change_shared_records(std::span<const SharedRecord> expected,
                                       std::span<const SharedRecord> changes) = 0;

  /// Aliases move by compare-and-swap: nothing changes, and failed_precondition says what the alias means, unless that
  /// is `expected` (0: it is not set; absent: whatever it is). `desired` 0 takes it away; not_found when the model has
  /// no such version. A version that an alias means cannot be retired. unsupported at one provider of several:
  /// there an alias is moved for all of them together, through a repository that was opened since.
  virtual Status set_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                           VersionNumber desired) = 0;
  /// The same for those who decide for all providers together what an alias means: this one then keeps the version for
  /// its sake, and lets it go. unsupported at several together.
  virtual Status keep_for_alias(const std::string& model, const std::string& alias,
                                std::optional<VersionNumber> expected, VersionNumber desired) = 0;
  virtual Result<std::vector<Alias>> aliases(const std::string& model) const = 0;  ///< By name.
  /// What a person wrote, as a name that the other functions take: "MODEL@ALIAS" is looked up (not_found when it is not
  /// set), "MODEL" and "MODEL@V" are only parsed.
  Result<VersionName> resolve(std::string_view text) const;

  virtual Result<RepositoryStat> stat() const = 0;
  /// Re-reads everything, or one version when `name` is given: payloads against their digests, and without a name each
  /// record against all others, blobs against the segments that they are of, and what is counted against a recount.
  /// Damage is a finding, never an error. Writers wait while records are compared, and go on while payloads are read.
  virtual Result<VerifyReport> verify(const std::optional<VersionName>& name, const Progress& progress) const = 0;
  /// Makes good what verify() finds between several providers: that one has lost its record of what versions elsewhere
  /// need of it (repo/FORMAT.md, `x/`), so that their bytes would go with a retirement. gc() over several providers
  /// does the same before it erases. One repository alone has nobody to ask, and nothing is repaired.
  virtual Result<RepairReport> repair() { return RepairReport{}; }
};

}  // namespace freshet
