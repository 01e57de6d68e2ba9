// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A manifest describes a version: its identity, its owner map, and its facts. Immutable once sealed. The encoded form
/// (FlatBuffers, core/model/manifest.fbs, described in core/FORMAT.md) is sent, stored and digested.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/graph.h"
#include "core/model/ids.h"

namespace freshet {

/// For each tensor of an architecture, by index: the segment that holds its bytes, named by the version that wrote it.
class OwnerMap {
 public:
  OwnerMap() = default;
  explicit OwnerMap(std::vector<SegmentName> owners) : owners_(std::move(owners)) {}

  /// A map of `tensors` tensors, all written by `writer`.
  static OwnerMap all_written_by(const VersionId& writer, std::size_t tensors);
  /// This map with the tensors in `changed` (indices, any order) written by `writer`. REQUIRES: indices < size().
  OwnerMap with_written(const VersionId& writer, std::span<const std::uint32_t> changed) const;

  std::size_t size() const { return owners_.size(); }
  const SegmentName& operator[](std::size_t tensor) const { return owners_[tensor]; }
  std::span<const SegmentName> owners() const { return owners_; }

  /// Indices of the tensors with another owner than in `base`: a holder of `base` must fetch these tensors to have this
  /// version. All tensors if `base` is empty. REQUIRES: same architecture, or an empty base.
  std::vector<std::uint32_t> changed_since(const OwnerMap& base) const;
  /// Indices of the tensors that `writer` owns.
  std::vector<std::uint32_t> owned_by(const VersionId& writer) const;
  /// The distinct writers, in order of first appearance.
  std::vector<VersionId> writers() const;

  bool operator==(const OwnerMap&) const = default;

 private:
  std::vector<SegmentName> owners_;
};

using Metrics = std::vector<std::pair<std::string, double>>;  ///< For example "loss"; finite or not, kept as given.
using Tags = std::vector<std::pair<std::string, std::string>>;

struct Manifest {
  VersionName name;  ///< With the number that the directory gave.
  VersionId id;
  std::optional<VersionId> ancestor;  ///< The step before, or the model that this one was transferred from.
  VersionName ancestor_name;          ///< Empty when there is no ancestor, or none with a name.
  std::uint64_t step = 0;             ///< Of the training loop.
  std::int64_t created_unix_ns = 0;
  Metrics metrics;
  Tags tags;
  std::shared_ptr<const Architecture> architecture;  ///< Never null in a valid manifest.
  OwnerMap owners;                                   ///< One per tensor of the architecture.
  std::vector<Digest> digests;                       ///< Of each tensor's bytes.
};

/// Checks that a manifest is valid: an architecture, one owner and one digest per tensor of it, a model name and a
/// number from 1, the tensor's own index where the owner is this version, unique metrics and tags within the limits
/// below. The message of invalid_argument names the fault.
Status check(const Manifest& manifest);

/// The part of check() for a program that makes a version: unique metrics and tags within the limits below.
Status check_annotations(const Metrics& metrics, const Tags& tags);

/// REQUIRES: check() passes.
std::vector<std::byte> encode(const Manifest& manifest);

/// The architecture's digest in an encoded manifest, without decoding the rest. The reader then looks the architecture
/// up.
Result<Digest> architecture_digest_of(Bytes encoded_manifest);

/// Verifies and decodes. `architecture` must be the one whose digest the manifest names. corrupt for anything else.
Result<Manifest> decode_manifest(Bytes bytes, std::shared_ptr<const Architecture> architecture);

inline constexpr std::size_t kManifestBytesMax = std::size_t{64} << 20;
inline constexpr std::size_t kMetricsMax = 1024;
inline constexpr std::size_t kTagsMax = 1024;
inline constexpr std::size_t kTagKeyBytesMax = 256;  ///< Of a metric's name, too.
/// A file's metadata may hold a whole tokenizer, or the workflow that made the model.
inline constexpr std::size_t kTagValueBytesMax = std::size_t{32} << 20;

}  // namespace freshet
