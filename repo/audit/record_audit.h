// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Compares everything that a repository has with everything else: each record with what FORMAT.md says of it, segments
/// with their blobs, versions with their manifests, and the books in memory with a recount. Reads no payloads
/// (repo/audit/verify.cc does). Private to this room.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "repo/local/local_repository.h"

namespace freshet {

/// One run. The caller holds the writers' turn until it ends, so that records are not compared with newer ones.
class RecordAudit {
 public:
  /// The state that the writers' turn guards.
  struct Guarded {
    const std::optional<References>& references;
    const std::unordered_set<SegmentName>& in_flight;  ///< Written by puts that have no records yet.
    std::uint64_t commit = 0;
  };
  RecordAudit(const LocalRepository::Impl& impl, const Guarded& guarded, VerifyReport& report);

  /// Fails only when the medium does not answer: damage is a finding.
  Status run();
  /// The records that the medium could not read, if any: a missing record may be one of them.
  const std::string& unread() const { return unread_; }
  /// Segments whose damage was found: their bytes need not be read.
  std::unordered_set<SegmentName> take_told() { return std::move(told_); }

 private:
  struct StoredSegment {
    std::optional<SegmentRow> row;  ///< Nothing when the record is damaged.
    std::optional<std::uint64_t> whole_bytes;
    std::optional<std::uint64_t> delta_bytes;
  };
  /// Blobs that nobody needs, by writer.
  struct Sum {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };
  using Entry = std::pair<std::uint64_t, std::uint32_t>;
  using OnRecord = void (RecordAudit::*)(std::string_view key, std::string_view value);

  void damaged(const VersionName& version, const std::string& tensor, const std::string& reason);
  void damaged_record(std::string_view key, const std::string& reason);
  void unneeded(std::string what, std::uint64_t bytes, std::string reason);
  Status scan(std::string_view prefix, OnRecord on_record);
  Status unless_damaged(Status read);
  Status read_segments();
  void copy_rows();
  Status check_manifests();
  Status check_leftover_entries();
  void check_unnamed();
  void check_sums();
  void check_books();

  // One record each; the key as it is stored.
  void on_segment(std::string_view key, std::string_view value);
  void on_version(std::string_view key, std::string_view value);
  void on_architecture(std::string_view key, std::string_view value);
  void on_other(std::string_view key, std::string_view value);
  void on_entry(std::string_view key, std::string_view value);
  void on_number(std::string_view key, std::string_view value);
  void on_alias(std::string_view key, std::string_view value);
  void on_pin(std::string_view key, std::string_view value);
  void on_referrer(std::string_view key, std::string_view value);
  void on_given_up(std::string_view key, std::string_view value);
  void on_shared(std::string_view key, std::string_view value);
  void on_sole(std::string_view key, std::string_view value);

  void on_blob(std::string_view key, std::uint64_t bytes);
  Status check_version(const VersionName& name, const VersionRow& row, const Result<Manifest>& manifest);
  void check_tensors(const VersionName& name, const VersionRow& row, const Manifest& manifest);
  /// Nothing when the segment is all there, as far as records and sizes tell.
  std::optional<std::string> problem_of(const SegmentName& segment) const;
  std::optional<SegmentName> unnamed_base(const ReferrerKey& by, const std::vector<SegmentName>& named) const;
  /// "not there" or "retired", nothing for a live one.
  std::optional<std::string> why_gone(const VersionName& name) const;
  std::string name_of(const VersionId& writer) const;

  const LocalRepository::Impl& impl_;
  const Backend& backend_;
  const Guarded guarded_;
  VerifyReport& report_;
  const KeptGraphs kept_graphs_;

  std::map<SegmentName, StoredSegment> segments_;
  std::map<VersionName, std::shared_ptr<const VersionRow>> rows_;  ///< As they were loaded; null: damaged then.
  std::map<VersionId, VersionName> names_;
  std::set<VersionName> on_disk_;
  bool any_row_damaged_ = false;
  std::string unread_;
  std::set<std::string> architectures_;  ///< Keys of those that are there and whole.
  std::set<std::string> used_architectures_;
  std::set<Entry> named_entries_;
  std::vector<std::pair<Entry, std::uint64_t>> leftover_entries_;  ///< With their sizes.
  std::map<std::string, VersionNumber> greatest_;                  ///< By model.
  std::uint64_t greatest_commit_ = 0;
  std::set<std::string> numbered_;  ///< Models that have an `h/`.
  bool commit_seen_ = false;

  References counted_;
  std::unordered_set<SegmentName> told_;
  std::map<VersionId, Sum> orphan_blobs_;
  std::map<VersionId, Sum> unnamed_;
};

/// An error's message without the version's name at its head.
std::string reason_without(const VersionName& name, const std::string& message);

/// A record's key as a person may read it: "n/net@best", or with `\x00` where it is not text.
std::string readable_key(std::string_view key);

}  // namespace freshet
