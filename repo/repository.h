// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where versions rest. A repository keeps, for each version, its manifest (owner map, digests, ancestor) and its own
/// segments. A segment is stored once, under the name of the version that wrote it, however many versions inherit it.
///
/// A put is durable and atomic. It first writes and syncs its segments; then one batch makes the version exist. A crash
/// leaves whole versions, and blobs that no version names. open() removes these blobs.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/graph.h"
#include "core/model/manifest.h"
#include "core/model/tensor.h"
#include "repo/backend/backend.h"
#include "repo/match/query.h"
#include "repo/pins/pin_terms.h"
#include "repo/records/placed.h"
#include "repo/retirement.h"

namespace freshet {

class PartPuts;

/// The greatest number of a version.
inline constexpr VersionNumber kVersionNumberMax = VersionNumber{1} << 62;
/// The greatest number that a put may ask for. The 2^60 numbers after it are given one by one, so no put can use up a
/// model's numbers.
inline constexpr VersionNumber kGivenNumberMax = kVersionNumberMax - (VersionNumber{1} << 60);

struct VersionRecord {
  Manifest manifest;
  std::optional<double> quality;
  bool has_weights = true;
  std::uint64_t own_bytes = 0;  ///< Bytes of the tensors that this version wrote.
  std::uint64_t inherited_bytes = 0;
  std::optional<Placed> placed;  ///< Where the version's bytes are, if this is one provider of several.
};

struct LineageRow {
  VersionName version;
  VersionName ancestor;  ///< Empty at the root.
  std::uint64_t inherited_bytes = 0;
  std::uint64_t own_bytes = 0;
  std::optional<double> quality;
  bool retired = false;
};

/// A model that has versions which are not retired.
struct ModelRow {
  std::string model;
  std::uint64_t versions = 0;  ///< Without retired ones.
  VersionNumber newest = 0;
  std::optional<double> quality;  ///< Of the newest.

  bool operator==(const ModelRow&) const = default;
  /// Another version, newer than those before it.
  void add(VersionNumber number, const std::optional<double>& its_quality) {
    ++versions;
    newest = number;
    quality = its_quality;
  }
};

struct OwnerRow {
  std::string tensor;
  VersionName owner;  ///< The owner's name if the owner is stored here; otherwise number 0 and model "".
  SegmentName segment;
  std::uint64_t bytes = 0;
};

/// A contributor: a version that wrote some of another version's tensors, with these tensors.
struct ContributorRow {
  VersionName version;  ///< Number 0 and model "": this repository does not know the version. For example, a sink
                        ///< joined late, and stored segments of versions that it never saw.
  VersionId id;
  bool retired = false;      ///< Its bytes stay for the versions that inherited them.
  bool is_ancestor = false;  ///< It is on the line of ancestors, or is the version itself.
  std::uint64_t tensor_count = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> tensors;  ///< In the architecture's order.
};

/// The differences between versions `a` and `b`.
struct VersionDiff {
  struct Tensor {
    std::string name;    ///< In `b`.
    std::string name_a;  ///< In `a`; the same unless the layer was renamed.
    std::uint64_t bytes = 0;
    VersionName owner_a;  ///< Number 0: the owner is not known here.
    VersionName owner_b;
  };
  std::vector<std::string> layers_added;    ///< Layers of `b` with a slot that `a` does not have; names in `b`.
  std::vector<std::string> layers_removed;  ///< Layers of `a` with a slot that `b` does not have; names in `a`.
  /// Tensors with the same type, shape and slice in both versions, and different bytes. A tensor of `a` and one of `b`
  /// are compared if they belong to the same layer (by slot), or have the same name. Empty if a version has no weights.
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

/// An alias is a letter and up to 63 of A-Z a-z 0-9 . _ -; so it is never a number.
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
  std::uint64_t count = 0;  ///< The number of pins that unpin() can remove; 0 if their record is damaged.
  /// The time until the last pin ends, unless its client renews it. Not set: a pin stays until it is removed.
  std::optional<Duration> left;
};

/// Quality and tags that a version gets after its put.
struct Annotations {
  bool sets_quality = false;
  std::optional<double> quality;  ///< With sets_quality; absent: removes the quality.
  /// Tags by key, no key twice. A tag of the put keeps its place; any other tag comes last. No value: removes the tag.
  std::vector<std::pair<std::string, std::optional<std::string>>> tags;
};
inline constexpr std::size_t kLaterTagsMax = 256;  ///< Of one version or one call, removed tags included.
inline constexpr std::size_t kLaterTagBytesMax = std::size_t{4096};  ///< Of a value.

struct RepositoryStat {
  std::uint64_t models = 0;
  std::uint64_t versions = 0;          ///< Without retired versions.
  std::uint64_t retired_versions = 0;  ///< Their tombstones keep the lineage.
  std::uint64_t live_tensors = 0;      ///< Distinct segments.
  std::uint64_t live_bytes = 0;
  std::uint64_t disk_bytes = 0;  ///< All bytes, without the reserve for a full disk.
  /// The part of disk_bytes that is not payload. After gc() the rest is live_bytes and less than 1 % more. It is less
  /// than live_bytes if tensors are kept as differences (PutOptions::deltas): live_bytes counts them whole.
  std::uint64_t metadata_bytes = 0;
};

/// The findings of verify(). Damage: a state that no sequence of puts, retirements and crashes can leave. The leftovers
/// of crashes are no damage; `unneeded` lists them, and gc() erases them.
struct VerifyReport {
  std::uint64_t checked_bytes = 0;
  struct Corrupt {
    VersionName version;  ///< Number 0: no version can be named; `record` then names the record.
    std::string tensor;   ///< Empty if the finding is not about a tensor.
    std::string reason;
    std::string record;
    /// Of a job's folders: the rank whose shard, copy or parity it is. Not set for a repository's.
    std::optional<std::uint32_t> rank = {};
  };
  std::vector<Corrupt> corrupt;
  /// Undamaged bytes that nobody needs. "3 blobs of net@7".
  struct Unneeded {
    std::string what;
    std::uint64_t bytes = 0;
    std::string reason;
  };
  std::vector<Unneeded> unneeded;
};

/// References that providers of one repository had lost, and that repair() restored.
struct RepairReport {
  struct Row {
    VersionName version;  ///< Needs these tensors.
    std::string tensor;   ///< The first of the tensors.
    std::uint64_t tensors = 0;
    std::string provider;  ///< Keeps the tensors, and has the reference again.
  };
  std::vector<Row> repaired;
  std::vector<std::string> notes;  ///< Repairs that were not possible now, and why.
};

/// The progress of long work: bytes done, and bytes in all.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Versions that can be asked for, wherever they rest: in a repository, or in the folders of a job's ranks
/// (repo/levels/job_catalog.h). Any thread.
class VersionCatalog {
 public:
  virtual ~VersionCatalog() = default;

  virtual Result<std::vector<ModelRow>> model_rows() const = 0;  ///< By name.
  /// Their names.
  Result<std::vector<std::string>> models() const;
  virtual Result<std::vector<LineageRow>> versions(const std::string& model) const = 0;  ///< Ascending.
  /// Number 0: the newest. The message of not_found names the versions that exist.
  virtual Result<VersionRecord> get(const VersionName& name) const = 0;
  virtual Result<std::vector<OwnerRow>> owners(const VersionName& name) const = 0;
  /// Newest first, along the chain of ancestors, retired ones too.
  virtual Result<std::vector<LineageRow>> lineage(const VersionName& name) const = 0;
  virtual Result<std::vector<std::string>> pins(const VersionName& name) const = 0;
  virtual Result<std::vector<Alias>> aliases(const std::string& model) const = 0;  ///< By name.
  /// Turns a person's text into a name for the other functions. "MODEL@ALIAS" is looked up (not_found if the alias is
  /// not set); "MODEL" and "MODEL@V" are only parsed.
  Result<VersionName> resolve(std::string_view text) const;
  /// Reads everything again, or one version if `name` is given, and compares payloads with their digests. Without a
  /// name it also compares each record with all others, blobs with their segments, and counters with a recount. Damage
  /// is a finding, never an error. Writers wait while records are compared, and go on while payloads are read.
  virtual Result<VerifyReport> verify(const std::optional<VersionName>& name, const Progress& progress) const = 0;
};

/// A repository in this process (open(), below), in another process, or on other hosts. Any thread. Puts write their
/// tensors side by side. The steps that make a version exist or remove it run one at a time; puts that wait together
/// share one step.
///
/// Calls wait for a server's answer, or do long work. StopInterrupts (core/base/interruption.h) ends the calls of a
/// thread with `cancelled` when a stop token asks for it. The options of put(), retire() and gc() take the token
/// themselves.
class Repository : public VersionCatalog {
 public:
  struct Options {
    const Clock* clock = nullptr;  ///< Null: the machine's.
    /// The most memory for parts that wait for their commit (repo/part_puts.h).
    std::uint64_t part_bytes_max = std::uint64_t{8} << 30;
  };
  /// Reads the catalog, and removes the blobs that a crash left (not from a read-only backend). unsupported if the
  /// repository has another format than this build reads, an older or a newer one.
  static Result<std::unique_ptr<Repository>> open(std::unique_ptr<Backend> backend, Options options);

  /// Stores a version, durably if the backend is durable, and returns its name. If the manifest's number is greater
  /// than every number that the model has given, also to versions that were retired, the version gets it (a sink keeps
  /// the publisher's numbers). Otherwise, also for 0, the repository gives the next number. For each segment of the
  /// owner map that is not stored yet, put() calls `bytes_of`, in ascending order of segments. It checks the bytes
  /// against their digest before the version exists. A digest of zeros, for a tensor that the version itself writes,
  /// means: the digest of the bytes that `bytes_of` gives. A repository in another process then asks for these bytes
  /// first, and perhaps again to send them. PutOptions::dedup may miss such a tensor. The bytes must stay where they
  /// are until put() returned: it may still send those of earlier segments. `bytes_of` must not call the repository's
  /// writing functions.
  ///
  /// Errors; a failed put leaves nothing half-made, and the next put first tries to recover a failed backend:
  ///   already_exists: this version id is stored, or was stored and is retired. Nothing was done.
  ///   invalid_argument: the manifest does not pass check(), its number is above kGivenNumberMax, the version would
  ///     descend from itself, a digest of zeros stands for bytes that another version wrote or that are stored, or the
  ///     quality is not a number.
  ///   failed_precondition: the ancestor was retired; the backend is read-only; or this is one provider of several, and
  ///     `placed` is not set.
  ///   corrupt: bytes do not match their digest, or a stored segment has another digest.
  ///   out_of_space: the backend is full, or the model's last number is kVersionNumberMax.
  ///   unavailable (the backend).
  struct PutOptions {
    std::optional<double> quality;
    bool has_weights = true;  ///< False: a graph that was never trained. put() asks for no bytes and ignores digests.
    /// Inherits each tensor with content that is stored already, under any name: the owner map then names the stored
    /// segments. If several providers keep the versions, `dedup` and `deltas` have no effect.
    bool dedup = false;
    /// Keeps a tensor that was fine-tuned from the ancestor's as a lossless difference, if that saves a quarter or
    /// more. This costs a read of the ancestor's tensor, now and at each read of this version.
    bool deltas = false;
    /// For a caller that spreads versions over providers. The version gets exactly the manifest's number
    /// (already_exists if it is taken). put() asks for no bytes of segments at other providers. failed_precondition for
    /// an attempt that settle_put() gave up.
    std::optional<Placed> placed;
    /// True: the version's identity was drawn for this put alone, and nobody knows it. With several providers, put()
    /// may then draw another identity, so that the version's home is a provider that answers.
    bool drawn_id = false;
    /// Stores the version even if its ancestor was retired. For callers that keep every version of a run while others
    /// retire versions in any order. put() also calls `bytes_of` for segments that were removed with the ancestor.
    bool ancestor_may_be_retired = false;
    /// Ends the call between two tensors, and its waits for providers and for another put: `cancelled`. The version may
    /// then exist.
    std::stop_token stop;
  };
  virtual Result<VersionName> put(const Manifest& manifest,
                                  const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                  PutOptions options) = 0;

  /// Puts by parts: several processes bring the tensors of one version (repo/part_puts.h). Lives as long as this
  /// object.
  virtual PartPuts& part_puts() = 0;

  /// Changes a version's quality and tags, never its bytes or its owner map. Durable, all of it or nothing, as a
  /// separate commit. From then on get(), match() and its filters use the new values. invalid_argument for tags that no
  /// version may have, and a quality that is not a number; out_of_space above kLaterTagsMax.
  virtual Status annotate(const VersionName& name, const Annotations& annotations) = 0;
  virtual Result<VersionNumber> latest(const std::string& model) const = 0;
  /// The version with this identity, also a retired one. Result not set: it was never stored.
  virtual Result<std::optional<VersionName>> find(const VersionId& id) const = 0;

  /// Reads tensors into the caller's memory and checks each against its digest.
  struct TensorRead {
    std::uint32_t tensor = 0;
    MutableBytes out;  ///< As long as the tensor.
  };
  virtual Status read(const VersionRecord& record, std::span<const TensorRead> reads) const = 0;

  /// Reads some stored bytes of a tensor and does *not* check them against the digest. A caller that joins the ranges
  /// proves the whole tensor.
  virtual Status read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                            MutableBytes out) const = 0;

  // Lineage. Retired versions keep their place in the lineage, and these calls answer for them too. A line ends at an
  // ancestor that was never stored here. contributors() and diff() read the versions' owner maps. The other calls
  // answer from memory, in O(log n) or O(length of the answer).

  /// The most recent version on both chains of ancestors. A chain begins with the version itself. Result not set: the
  /// chains never meet.
  virtual Result<std::optional<VersionName>> mrca(const VersionName& a, const VersionName& b) const = 0;
  /// All versions that came from this one, children before grandchildren; without the version itself.
  virtual Result<std::vector<LineageRow>> descendants(const VersionName& name) const = 0;
  /// The versions that wrote a version's tensors: the version itself first (if it wrote any), then its ancestors from
  /// the nearest on, then others by name. Empty for a version without weights.
  virtual Result<std::vector<ContributorRow>> contributors(const VersionName& name) const = 0;
  virtual Result<VersionDiff> diff(const VersionName& a, const VersionName& b) const = 0;

  /// The answer has the stored versions that share the longest prefix with the query's graph, best first. It also has
  /// the number of a commit of the repository: the answer shows the repository as it was after this commit. Commits
  /// count from 1 and grow with every put, retirement, and change of a quality or of tags. Over several providers a
  /// commit is a time in microseconds since 1970, by the clock of its provider: commits of different providers can be
  /// compared only as exactly as these clocks agree. With `query.pin_by`, match() pins the best row, durably, before
  /// anybody can retire it. Without a row there is no pin. invalid_argument for an invalid query; not_found for an
  /// exclude_lineage that is not stored.
  virtual Result<MatchAnswer> match(const MatchQuery& query) = 0;

  /// A pinned version cannot be retired. Pins are durable. `by` names the holder that will unpin; pins are counted per
  /// (version, by). A pin without PinTerms::stays ends with its client; repo/pins/pin_terms.h has the terms.
  /// unpin() removes a pin of the same client. If this client has no pin, it removes another pin of that holder. Of
  /// `terms` it uses only the lease.
  virtual Status pin(const VersionName& name, const std::string& by, const PinTerms& terms = {}) = 0;
  virtual Status unpin(const VersionName& name, const std::string& by, const PinTerms& terms = {}) = 0;
  /// All pins that block a retirement, by version and holder.
  virtual Result<std::vector<PinnedVersion>> all_pins() const = 0;

  /// Retires a version; its number must be given. One durable step. The manifest goes at once, with the records of
  /// segments that only this version named. Name, identity, ancestor, quality and sizes stay as a tombstone in the
  /// lineage. From then on get(), pin() and a second retire() answer not_found ("net@3 was retired"). The number is
  /// never given again. If the version is pinned, retire() waits up to options.wait. Then failed_precondition names the
  /// holders and the time until their pins end. After `cancelled`, a provider may still retire the version within five
  /// seconds, if its pins end. The next gc() erases the version's bytes, if no other version names
  /// them.
  virtual Result<RetireReport> retire(const VersionName& name, const RetireOptions& options) = 0;
  /// Erases the segments that no version names, here or elsewhere, and gives their space back. Writers wait
  /// while it erases, and go on while it gives the space back. Readers do not wait. If gc() is interrupted, at any
  /// point, the next gc() goes on.
  virtual Result<GcReport> gc(const GcOptions& options, const Progress& progress) = 0;
  /// Moves an alias by compare-and-swap. The alias must mean `expected` (0: it is not set; absent: any). Otherwise
  /// nothing changes, and the message of failed_precondition names the version that it means. `desired` 0 removes the
  /// alias. not_found if the model has no version `desired`. A version that an alias means cannot be retired.
  /// unsupported at one provider of several: open the repository of all providers, and move the alias there.
  virtual Status set_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                           VersionNumber desired) = 0;

  virtual Result<RepositoryStat> stat() const = 0;
  /// Restores references between several providers that verify() reports as lost. A reference is a provider's record of
  /// segments that versions elsewhere need (repo/FORMAT.md, `x/`). Without it, a retirement would erase their bytes.
  /// gc() over several providers does the same before it erases. A single repository has no such references: repair()
  /// does nothing.
  virtual Result<RepairReport> repair() { return RepairReport{}; }
};

}  // namespace freshet
