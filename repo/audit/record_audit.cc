// SPDX-License-Identifier: Apache-2.0
/// The order of an audit: segments and blobs, rows, architectures, manifests and what they name, then all other
/// records, which are compared with what is known by then.

#include "repo/audit/record_audit.h"

#include <algorithm>

#include "core/base/format.h"

namespace freshet {
namespace {

std::string owned_bytes(std::uint64_t have, std::uint64_t want) {
  return format("{} bytes are stored, not {}", have, want);
}

// What a row repeats of its manifest.
bool agrees(const VersionRow& row, const Manifest& manifest) {
  if (row.ancestor != manifest.ancestor || row.ancestor_name != manifest.ancestor_name) return false;
  if (row.has_weights) {
    std::uint64_t own = 0;
    std::uint64_t inherited = 0;
    for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
      const std::uint64_t bytes = manifest.architecture->tensors()[tensor].bytes();
      (manifest.owners[tensor].writer == manifest.id ? own : inherited) += bytes;
    }
    if (own != row.own_bytes || inherited != row.inherited_bytes) return false;
  }
  std::vector<Digest> tags;
  for (const auto& [key, value] : with_later_tags(manifest.tags, row)) tags.push_back(tag_digest(key, value));
  return row.tags.empty() || row.tags == tags;
}

}  // namespace

std::string reason_without(const VersionName& name, const std::string& message) {
  const std::string head = to_string(name) + ": ";
  return message.starts_with(head) ? message.substr(head.size()) : message;
}

RecordAudit::RecordAudit(const LocalRepository::Impl& impl, const Guarded& guarded, VerifyReport& report)
    : impl_(impl),
      backend_(*impl.backend),
      guarded_(guarded),
      report_(report),
      kept_graphs_(impl.ancestors.kept_graphs()) {}

Status RecordAudit::run() {
  FRESHET_TRY(read_segments());
  copy_rows();
  FRESHET_TRY(scan(kVersionPrefix, &RecordAudit::on_version));
  for (const auto& [name, row] : rows_) {
    if (unread_.empty() && on_disk_.count(name) == 0) damaged(name, "", "its record is missing");
  }
  FRESHET_TRY(scan("a/", &RecordAudit::on_architecture));
  FRESHET_TRY(check_manifests());
  FRESHET_TRY(scan("", &RecordAudit::on_other));
  FRESHET_TRY(check_leftover_entries());
  check_sums();
  check_unnamed();
  check_books();
  return {};
}

void RecordAudit::damaged(const VersionName& version, const std::string& tensor, const std::string& reason) {
  report_.corrupt.push_back({.version = version, .tensor = tensor, .reason = reason_without(version, reason)});
}

void RecordAudit::damaged_record(std::string_view key, const std::string& reason) {
  VerifyReport::Corrupt& one = report_.corrupt.emplace_back();
  one.record = readable_key(key);
  one.reason = reason;
}

void RecordAudit::unneeded(std::string what, std::uint64_t bytes, std::string reason) {
  report_.unneeded.push_back({.what = std::move(what), .bytes = bytes, .reason = std::move(reason)});
}

Status RecordAudit::scan(std::string_view prefix, OnRecord on_record) {
  return unless_damaged(backend_.scan(prefix, [&](std::string_view key, std::string_view value) {
    (this->*on_record)(key, value);
    return true;
  }));
}

// A part of the medium that is damaged itself ends no check, but hides what else is there: from then on nothing is said
// to be missing.
Status RecordAudit::unless_damaged(Status read) {
  if (read || read.error().code() != Code::corrupt) return read;
  unread_ = read.error().message();
  return {};
}

Status RecordAudit::read_segments() {
  FRESHET_TRY(scan(kSegmentPrefix, &RecordAudit::on_segment));
  return unless_damaged(backend_.list_blobs([&](std::string_view key, std::uint64_t bytes) {
    on_blob(key, bytes);
    return true;
  }));
}

void RecordAudit::on_segment(std::string_view key, std::string_view value) {
  const auto name = parse_segment_key(key.substr(kSegmentPrefix.size()));
  if (!name) return damaged_record(key, "this is not a segment's name");
  Result<SegmentRow> row = decode_segment_row(value);
  segments_[*name].row = row ? std::optional(*std::move(row)) : std::nullopt;
}

void RecordAudit::on_blob(std::string_view key, std::uint64_t bytes) {
  const auto name = segment_of_blob(key);
  if (!name) return unneeded("blob " + readable_key(key), bytes, "this is not a segment's name; gc erases it");
  const bool is_whole = key == segment_key(*name);
  const auto found = segments_.find(*name);
  const bool kept = found != segments_.end() && (!found->second.row || found->second.row->base.has_value() != is_whole);
  if (kept) {
    (is_whole ? found->second.whole_bytes : found->second.delta_bytes) = bytes;
  } else if (guarded_.in_flight.count(*name) == 0) {
    Sum& sum = orphan_blobs_[name->writer];
    ++sum.count;
    sum.bytes += bytes;
  }
}

void RecordAudit::copy_rows() {
  const MutexLock lock(impl_.known.mutex);
  for (const auto& [model, versions] : impl_.known.catalog.models()) {
    for (const auto& [number, entry] : versions) rows_.emplace(VersionName{model, number}, entry.row);
  }
}

void RecordAudit::on_version(std::string_view key, std::string_view value) {
  const auto name = parse_version_key(key);
  if (!name) return damaged_record(key, "this is not a version's name");
  on_disk_.insert(*name);
  const auto known = rows_.find(*name);
  const Result<VersionRow> row = decode_version_row(value);
  if (!row) {
    any_row_damaged_ = true;
    return damaged(*name, "", "its record is damaged");
  }
  if (known == rows_.end() || known->second == nullptr || *known->second != *row) {
    damaged(*name, "", "its record differs from the record that was written");
  }
  const auto [other, is_new] = names_.emplace(row->id, *name);
  if (!is_new) damaged(*name, "", "its record has the identity of " + to_string(other->second));
  VersionNumber& greatest = greatest_[name->model];
  greatest = std::max(greatest, name->number);
  greatest_commit_ = std::max(greatest_commit_, row->commit);
  if (row->retired) return;
  used_architectures_.insert(architecture_key(row->architecture));
  named_entries_.emplace(row->group, row->entry);
}

// Not from the cache: what is in memory may be better than what is stored.
void RecordAudit::on_architecture(std::string_view key, std::string_view value) {
  const auto architecture = decode_architecture(bytes_of(value.data(), value.size()));
  if (!architecture || architecture_key((*architecture)->digest()) != key) return;
  architectures_.emplace(key);
  const auto kept = kept_graphs_.find((*architecture)->digest());
  if (kept != nullptr && kept->parts() != MatchGraph::of(**architecture)->parts()) {
    damaged_record(key, "the graph that match has of it is another one; delete the file derived-graphs");
  }
}

Status RecordAudit::check_manifests() {
  for (const auto& [name, row] : rows_) {
    if (row == nullptr) counted_.add_unknown();
  }
  return impl_.manifests.for_each([&](const VersionName& name, const VersionRow& row,
                                      const Result<Manifest>& manifest) { return check_version(name, row, manifest); });
}

Status RecordAudit::check_version(const VersionName& name, const VersionRow& row, const Result<Manifest>& manifest) {
  counted_.add_architecture(row.architecture);
  if (!manifest && manifest.error().code() != Code::corrupt) return fail(manifest.error());
  if (!manifest && row.has_weights) counted_.add_unknown();
  if (manifest && row.has_weights) {
    counted_.add_segments(impl_.segments.with_bases(distinct_segments(manifest->owners)));
    check_tensors(name, row, *manifest);
  }
  if (!manifest) {
    damaged(name, "", manifest.error().message());
  } else if (unread_.empty() && architectures_.count(architecture_key(row.architecture)) == 0) {
    damaged(name, "", "its architecture is missing or damaged");
  } else if (!agrees(row, *manifest)) {
    damaged(name, "", "its record does not agree with its manifest");
  }
  return {};
}

void RecordAudit::check_tensors(const VersionName& name, const VersionRow& row, const Manifest& manifest) {
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    if (row.placed && is_elsewhere(*row.placed, tensor)) continue;
    const SegmentName& segment = manifest.owners[tensor];
    const TensorSpec& spec = manifest.architecture->tensors()[tensor];
    if (told_.count(segment) != 0) continue;
    std::optional<std::string> problem = problem_of(segment);
    if (!problem && segments_.count(segment) != 0) {
      const Status same =
          check_same(*segments_.at(segment).row, {.bytes = spec.bytes(), .digest = manifest.digests[tensor]});
      if (!same) problem = same.error().message();
    }
    if (!problem) continue;
    told_.insert(segment);
    damaged(name, spec.name, *problem);
  }
}

std::optional<std::string> RecordAudit::problem_of(const SegmentName& segment) const {
  const auto found = segments_.find(segment);
  if (found == segments_.end() && !unread_.empty()) return std::nullopt;
  if (found == segments_.end()) return "its record and its bytes are missing";
  const StoredSegment& stored = found->second;
  if (!stored.row) return "the record of its bytes is damaged";
  if (!unread_.empty()) return std::nullopt;
  if (!stored.row->base) {
    if (!stored.whole_bytes) return "its bytes are missing";
    if (*stored.whole_bytes != stored.row->bytes) return owned_bytes(*stored.whole_bytes, stored.row->bytes);
    return std::nullopt;
  }
  if (!stored.delta_bytes) return "its difference is missing";
  if (*stored.delta_bytes != stored.row->delta_bytes) {
    return "its difference: " + owned_bytes(*stored.delta_bytes, stored.row->delta_bytes);
  }
  const auto base = segments_.find(*stored.row->base);
  if (base == segments_.end()) return "the segment's base is missing";
  if (!base->second.row || base->second.row->base || base->second.row->bytes != stored.row->bytes) {
    return "the segment's base is itself a difference, or has another size";
  }
  if (auto problem = problem_of(*stored.row->base)) return "the segment's base: " + *problem;
  return std::nullopt;
}

Status RecordAudit::check_leftover_entries() {
  if (any_row_damaged_ || !unread_.empty()) return {};  // A row that cannot be read may name any of them.
  std::optional<ManifestGroup> group;
  for (const auto& [entry, bytes] : leftover_entries_) {
    if (!group || group->number() != entry.first) {
      FRESHET_ASSIGN(group, ManifestGroup::load(backend_, entry.first, nullptr));
    }
    const std::string key = entry_key(entry.first, entry.second);
    const auto decoded = group->decode(entry.second);
    if (!decoded) {
      damaged_record(key, "a manifest that no version names is damaged");
      continue;
    }
    const Manifest& manifest = (*decoded)->manifest;
    if (names_.count(manifest.id) == 0 && rows_.count(manifest.name) == 0) {
      damaged(manifest.name, "", "its record is missing, and its manifest is there");
    } else if (group->based_on(entry.second).empty()) {
      unneeded("record " + readable_key(key), bytes,
               format("an old manifest of {}, which does not need it any more", to_string(manifest.name)));
    }
  }
  return {};
}

void RecordAudit::check_sums() {
  if (!unread_.empty()) return;
  for (const auto& [model, greatest] : greatest_) {
    if (numbered_.count(model) == 0) damaged_record(high_water_key(model), "is missing");
  }
  if (!commit_seen_ && greatest_commit_ != 0) damaged_record(kCommitKey, "is missing");
}

// Damage of what only other providers name, or what is a base and nothing else; and what nobody needs.
void RecordAudit::check_unnamed() {
  if (!unread_.empty()) return;
  const bool all_known = counted_.unknown() == 0;
  for (const auto& [segment, stored] : segments_) {
    if (all_known && counted_.of(segment) == 0) {
      Sum& sum = unnamed_[segment.writer];
      ++sum.count;
      sum.bytes += stored.row ? stored.row->bytes : 0;
    } else if (const auto problem = problem_of(segment); problem && told_.insert(segment).second) {
      const auto writer = names_.find(segment.writer);
      report_.corrupt.push_back({.version = writer == names_.end() ? VersionName{} : writer->second,
                                 .tensor = "segment " + to_string(segment),
                                 .reason = *problem,
                                 .record = writer == names_.end() ? "s/" + to_string(segment) : ""});
    }
  }
  for (const auto& [writer, sum] : unnamed_) {
    unneeded(format("{} segments of {}", sum.count, name_of(writer)), sum.bytes,
             "no version names them; gc erases them");
  }
  for (const auto& [writer, sum] : orphan_blobs_) {
    const auto row = names_.count(writer) == 0 ? nullptr : rows_.at(names_.at(writer));
    unneeded(format("{} blobs of {}", sum.count, name_of(writer)), sum.bytes,
             row != nullptr && row->retired ? "written by a version that was retired; gc erases them"
                                            : "left by an unfinished put or erasure; gc erases them");
  }
}

// Only where nothing is damaged: what was counted before the damage counts otherwise.
void RecordAudit::check_books() {
  if (!report_.corrupt.empty() || !unread_.empty()) return;
  std::uint64_t bytes = 0;
  for (const auto& [segment, stored] : segments_) bytes += stored.row->bytes;
  bool agree = !guarded_.references || *guarded_.references == counted_;
  // What a reader counted may be of another time than these records, and nothing leans on it.
  if (!impl_.backend->read_only()) {
    const MutexLock lock(impl_.known.mutex);
    agree = agree && impl_.known.catalog.segments() == segments_.size() && impl_.known.catalog.segment_bytes() == bytes;
    for (const auto& [segment, stored] : segments_) {
      agree = agree && impl_.known.catalog.base_of(segment) == stored.row->base;
    }
  }
  if (!agree) damaged_record("counts", "the counters in memory differ from a recount");
}

std::optional<std::string> RecordAudit::why_gone(const VersionName& name) const {
  const auto found = rows_.find(name);
  if (found == rows_.end()) return to_string(name) + " is not there";
  if (found->second != nullptr && found->second->retired) return to_string(name) + " was retired";
  return std::nullopt;
}

std::string RecordAudit::name_of(const VersionId& writer) const {
  const auto found = names_.find(writer);
  return found == names_.end() ? "version " + to_string(writer) : to_string(found->second);
}

}  // namespace freshet
