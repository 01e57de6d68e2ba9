// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The fields of a repository's own structs, in the order in which messages have them (messages.h). One function serves
/// the Writer and the Reader; where they differ, each has its own, in values.cc.

#include <memory>
#include <optional>

#include "repo/provider_repository.h"
#include "repo/serve/wire/messages.h"

namespace freshet {

// Found by a visitor for each of these types, hence in their namespace.

void fields(rpc::Like<VersionName> auto& name, auto& v) {
  v(name.model, name.number);
  v.check([&] { return name.model.empty() ? Status() : check_model_name(name.model); });
}
void fields(rpc::Like<VersionId> auto& id, auto& v) { v(id.run.high, id.run.low, id.incarnation, id.sequence); }
void fields(rpc::Like<SegmentName> auto& segment, auto& v) { v(segment.writer, segment.tensor); }
void fields(rpc::Like<Digest> auto& digest, auto& v) { v(digest.low, digest.high); }
void fields(rpc::Like<PinLease> auto& lease, auto& v) { v(lease.high, lease.low); }
/// Pins without a lease stay.
void fields(const PinTerms& terms, rpc::Writer& writer);
void fields(PinTerms& terms, rpc::Reader& reader);

void fields(const std::shared_ptr<const Architecture>& architecture, rpc::Writer& writer);
void fields(std::shared_ptr<const Architecture>& architecture, rpc::Reader& reader);
/// With a number: one that is to be given goes as 1, which is the same thing, since that one is given first.
/// invalid_argument for a manifest that check() refuses.
Result<Manifest> encodable(Manifest manifest);
/// REQUIRES: encodable.
void fields(const Manifest& manifest, rpc::Writer& writer);
void fields(Manifest& manifest, rpc::Reader& reader);

void fields(rpc::Like<Placed::Moved> auto& moved, auto& v) { v(moved.writer, moved.provider); }
void fields(rpc::Like<Placed> auto& placed, auto& v) {
  v(placed.placement, placed.attempt);
  v.list(placed.elsewhere, kTensorsMax);
  v.list(placed.moved, kTensorsMax);
}
void fields(rpc::Like<Repository::PutOptions> auto& options, auto& v) {
  v(options.quality, options.has_weights, options.placed, options.ancestor_may_be_retired, options.dedup,
    options.deltas);
}
/// Whether the version has the tensors that are placed elsewhere.
Status check_placed(const std::optional<Placed>& placed, const Manifest& manifest);
void fields(rpc::Like<VersionRecord> auto& record, auto& v) {
  v(record.manifest, record.quality, record.has_weights, record.own_bytes, record.inherited_bytes, record.placed);
  v.check([&]() -> Status {
    if (check_placed(record.placed, record.manifest)) return {};
    return fail(Code::corrupt, "the version's record places tensors that it does not have");
  });
}
/// Without its bytes, and with a digest.
void fields(rpc::Like<TensorPart> auto& part, auto& v) {
  v(part.tensor, part.offset, part.count, part.stride, part.length, part.digest);
  v.check([&]() -> Status {
    if (part.digest) return {};
    return fail(Code::corrupt, "a part lacks its digest");
  });
}
void fields(rpc::Like<PutToken> auto& token, auto& v) { v(token.high, token.low); }

void fields(rpc::Like<SignedRequest> auto& request, auto& v) { v(request.url, request.headers); }
void fields(rpc::Like<SignedPart> auto& part, auto& v) { v(part.request, part.bytes); }
void fields(rpc::Like<PartToBring> auto& part, auto& v) { v(part.bytes, part.crc32c); }
void fields(rpc::Like<SignedUploads::Upload> auto& upload, auto& v) { v(upload.object, upload.request); }
void fields(rpc::Like<SignedUploads> auto& all, auto& v) { v(all.uploads, all.probe); }
void fields(rpc::Like<BroughtPart> auto& part, auto& v) { v(part.object, part.bytes, part.crc32c, part.digest); }
void fields(rpc::Like<BroughtTensor> auto& tensor, auto& v) { v(tensor.tensor, tensor.parts); }

void fields(rpc::Like<OwnerRow> auto& row, auto& v) { v(row.tensor, row.owner, row.segment, row.bytes); }
void fields(rpc::Like<ModelRow> auto& row, auto& v) { v(row.model, row.versions, row.newest, row.quality); }
void fields(rpc::Like<LineageRow> auto& row, auto& v) {
  v(row.version, row.ancestor, row.inherited_bytes, row.own_bytes, row.quality, row.retired);
}
void fields(rpc::Like<ContributorRow> auto& row, auto& v) {
  v(row.version, row.id, row.retired, row.is_ancestor, row.tensor_count, row.bytes, row.tensors);
}
void fields(rpc::Like<VersionDiff::Tensor> auto& tensor, auto& v) {
  v(tensor.name, tensor.name_a, tensor.bytes, tensor.owner_a, tensor.owner_b);
}
void fields(rpc::Like<VersionDiff> auto& diff, auto& v) {
  v(diff.layers_added, diff.layers_removed, diff.tensors_changed, diff.quality_a, diff.quality_b);
}
void fields(rpc::Like<Alias> auto& alias, auto& v) { v(alias.name, alias.number); }
void fields(rpc::Like<PinnedVersion> auto& pinned, auto& v) { v(pinned.version, pinned.by, pinned.count, pinned.left); }
void fields(rpc::Like<Annotations> auto& said, auto& v) {
  v(said.sets_quality, said.quality);
  v.list(said.tags, kLaterTagsMax, Code::out_of_space);
}
void fields(rpc::Like<RepositoryStat> auto& stat, auto& v) {
  v(stat.models, stat.versions, stat.live_tensors, stat.live_bytes, stat.disk_bytes, stat.retired_versions,
    stat.metadata_bytes);
}
void fields(rpc::Like<VerifyReport::Corrupt> auto& row, auto& v) { v(row.version, row.tensor, row.reason, row.record); }
void fields(rpc::Like<VerifyReport::Unneeded> auto& row, auto& v) { v(row.what, row.bytes, row.reason); }
void fields(rpc::Like<VerifyReport> auto& report, auto& v) { v(report.checked_bytes, report.corrupt, report.unneeded); }

void fields(const SlotId& slot, rpc::Writer& writer);
void fields(SlotId& slot, rpc::Reader& reader);
void fields(rpc::Like<MatchGraph::Vertex> auto& vertex, auto& v) {
  v(vertex.slot, vertex.is_input, vertex.parametric, vertex.bytes);
}
void fields(const std::shared_ptr<const MatchGraph>& graph, rpc::Writer& writer);
void fields(std::shared_ptr<const MatchGraph>& graph, rpc::Reader& reader);
/// Without its pin.
void fields(rpc::Like<MatchQuery> auto& query, auto& v) {
  v(query.graph);
  v.choice(query.objective, Objective::bytes);
  v(query.top, query.any, query.least_quality);
  v.list(query.tags, kMatchTagsMax);
  v(query.exclude_lineage);
  v.check([&] { return check(query); });
}
void fields(rpc::Like<MatchRow> auto& row, auto& v) {
  v(row.version, row.id, row.lcp.layers, row.lcp.parametric_layers, row.lcp.bytes, row.quality, row.commit);
}
void fields(rpc::Like<MatchAnswer> auto& answer, auto& v) { v(answer.top, answer.as_of); }

void fields(rpc::Like<RetireReport> auto& report, auto& v) {
  v(report.version, report.released_tensors, report.released_bytes);
}
void fields(rpc::Like<GcRow> auto& row, auto& v) {
  v.choice(row.reason, GcReason::inherited);
  v(row.writer, row.version, row.tensors, row.bytes, row.named_by, row.named_by_count);
}
void fields(rpc::Like<GcReport> auto& report, auto& v) {
  v(report.freed_bytes, report.live_bytes, report.rows, report.notes);
}
void fields(rpc::Like<ExternalReferrer> auto& referrer, auto& v) {
  v(referrer.version, referrer.segments, referrer.attempt, referrer.home);
}
void fields(rpc::Like<SharedRecord> auto& record, auto& v) { v(record.key, record.value); }
void fields(rpc::Like<ProviderRepository::SegmentContent> auto& content, auto& v) {
  v(content.segment, content.bytes, content.digest);
}

}  // namespace freshet
