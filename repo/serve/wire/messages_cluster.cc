// SPDX-License-Identifier: Apache-2.0
#include "core/base/format.h"
#include "repo/records/placement.h"
#include "repo/serve/wire/messages.h"

// The values of a match, and those of one provider of several.

namespace freshet::rpc {
namespace {

constexpr std::uint8_t kIsInput = 1;
constexpr std::uint8_t kIsParametric = 2;

}  // namespace

Offset<wire::Graph> put(Builder& builder, const MatchGraph& graph) {
  std::vector<wire::Slot> slots;
  std::vector<std::uint8_t> kinds;
  std::vector<std::uint64_t> bytes;
  for (const MatchGraph::Vertex& vertex : graph.vertices()) {
    wire::Slot slot;
    static_assert(sizeof slot == sizeof vertex.slot.bytes);
    std::memcpy(static_cast<void*>(&slot), vertex.slot.bytes.data(), sizeof slot);
    slots.push_back(slot);
    kinds.push_back(
        static_cast<std::uint8_t>((vertex.is_input ? kIsInput : 0) | (vertex.parametric ? kIsParametric : 0)));
    bytes.push_back(vertex.bytes);
  }
  const auto slot_vector = builder.CreateVectorOfStructs(slots);
  const auto kind_vector = builder.CreateVector(kinds);
  const auto byte_vector = builder.CreateVector(bytes);
  const auto starts = builder.CreateVector(graph.parts().input_starts);
  return wire::CreateGraph(builder, slot_vector, kind_vector, byte_vector, starts,
                           builder.CreateVector(graph.parts().inputs));
}

Result<std::shared_ptr<const MatchGraph>> read(const wire::Graph* graph) {
  if (graph == nullptr) return fail(Code::corrupt, "a graph is missing");
  const std::vector<wire::Slot> slots = copied(graph->slots());
  const std::vector<std::uint8_t> kinds = copied(graph->kinds());
  const std::vector<std::uint64_t> bytes = copied(graph->bytes());
  if (kinds.size() != slots.size() || bytes.size() != slots.size()) {
    return fail(Code::corrupt, "a graph whose lists do not fit each other");
  }
  MatchGraph::Parts parts{.vertices = std::vector<MatchGraph::Vertex>(slots.size()),
                          .input_starts = copied(graph->input_starts()),
                          .inputs = copied(graph->inputs())};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    MatchGraph::Vertex& vertex = parts.vertices[i];
    std::memcpy(vertex.slot.bytes.data(), static_cast<const void*>(&slots[i]), sizeof slots[i]);
    vertex.is_input = (kinds[i] & kIsInput) != 0;
    vertex.parametric = (kinds[i] & kIsParametric) != 0;
    vertex.bytes = bytes[i];
  }
  return MatchGraph::build(std::move(parts));
}

wire::PinLease wire_pin_lease(const PinLease& lease) { return {lease.high, lease.low}; }

PinTerms read_pin_terms(const wire::PinLease* lease) {
  if (lease == nullptr) return {.stays = true, .lease = {}};
  return {.stays = false, .lease = PinLease{.high = lease->high(), .low = lease->low()}};
}

Offset<wire::Match> put(Builder& builder, const MatchQuery& query) {
  const auto graph = put(builder, *query.graph);
  std::vector<Offset<wire::Tag>> tags;
  for (const auto& [key, value] : query.tags) {
    const auto tag_key = builder.CreateString(key);
    tags.push_back(wire::CreateTag(builder, tag_key, builder.CreateString(value)));
  }
  const auto tag_vector = builder.CreateVector(tags);
  const auto exclude = query.exclude_lineage ? put(builder, *query.exclude_lineage) : Offset<wire::Name>();
  const auto pin_by = builder.CreateString(query.pin_by);
  const std::optional<PinLease>& lease = query.pin_terms.lease;
  const wire::PinLease wire_lease = lease ? wire_pin_lease(*lease) : wire::PinLease();
  const bool leased = lease && !query.pin_terms.stays;
  return wire::CreateMatch(builder, graph, static_cast<std::uint8_t>(query.objective), query.top, query.any,
                           wire_number(query.least_quality), tag_vector, exclude, pin_by,
                           leased ? &wire_lease : nullptr);
}

Status check_tag(const wire::Tag& tag, std::size_t value_bytes_max) {
  if (bytes_in(tag.key()) <= kTagKeyBytesMax && bytes_in(tag.value()) <= value_bytes_max) return {};
  return fail(Code::invalid_argument,
              format("a tag of {} and {} bytes is over the limit of {} and {}", bytes_in(tag.key()),
                     bytes_in(tag.value()), kTagKeyBytesMax, value_bytes_max));
}

Result<MatchQuery> read(const wire::Match& match) {
  MatchQuery query{.top = match.top(),
                   .any = match.any(),
                   .least_quality = read(match.least_quality()),
                   .pin_by = read(match.pin_by()),
                   .pin_terms = read_pin_terms(match.pin_lease())};
  FRESHET_ASSIGN(query.graph, read(match.graph()));
  if (match.objective() > static_cast<std::uint8_t>(Objective::bytes)) {
    return fail(Code::unsupported, "a match has an objective that this build does not know");
  }
  query.objective = static_cast<Objective>(match.objective());
  if (match.tags() != nullptr) {
    if (match.tags()->size() > kMatchTagsMax) {
      return fail(Code::invalid_argument,
                  format("match: {} tags, over the limit of {}", match.tags()->size(), kMatchTagsMax));
    }
    for (const wire::Tag* tag : *match.tags()) {
      FRESHET_TRY(check_tag(*tag, kTagValueBytesMax));
      query.tags.emplace_back(read(tag->key()), read(tag->value()));
    }
  }
  if (match.exclude_lineage() != nullptr) {
    FRESHET_ASSIGN(query.exclude_lineage, read(match.exclude_lineage()));
  }
  return query;
}

Offset<wire::Matched> put(Builder& builder, const MatchAnswer& answer) {
  std::vector<Offset<wire::MatchRow>> rows;
  for (const MatchRow& row : answer.top) {
    const auto version = put(builder, row.version);
    const wire::Id id = wire_id(row.id);
    rows.push_back(wire::CreateMatchRow(builder, version, &id, row.lcp.layers, row.lcp.parametric_layers, row.lcp.bytes,
                                        wire_number(row.quality), row.commit));
  }
  return wire::CreateMatched(builder, builder.CreateVector(rows), answer.as_of);
}

Result<MatchAnswer> read(const wire::Matched& matched) {
  MatchAnswer answer{.top = {}, .as_of = matched.as_of()};
  if (matched.rows() == nullptr) return answer;
  for (const wire::MatchRow* row : *matched.rows()) {
    FRESHET_ASSIGN(VersionName version, read(row->version()));
    answer.top.push_back(
        {.version = std::move(version),
         .id = row->id() == nullptr ? VersionId{} : read(*row->id()),
         .lcp = {.layers = row->layers(), .parametric_layers = row->parametric_layers(), .bytes = row->bytes()},
         .quality = read(row->quality()),
         .commit = row->commit()});
  }
  return answer;
}

Offset<wire::Placed> put(Builder& builder, const std::optional<Placed>& placed) {
  if (!placed) return {};
  const auto elsewhere = builder.CreateVector(placed->elsewhere);
  std::vector<Offset<wire::Moved>> moved;
  for (const Placed::Moved& one : placed->moved) {
    const wire::Id writer = wire_id(one.writer);
    moved.push_back(wire::CreateMoved(builder, &writer, builder.CreateString(one.provider)));
  }
  return wire::CreatePlaced(builder, placed->placement, placed->attempt, elsewhere, builder.CreateVector(moved));
}

Result<std::optional<Placed>> read(const wire::Placed* placed, std::size_t tensors) {
  if (placed == nullptr) return std::optional<Placed>();
  const std::size_t elsewhere = placed->elsewhere() == nullptr ? 0 : placed->elsewhere()->size();
  const std::size_t moved = placed->moved() == nullptr ? 0 : placed->moved()->size();
  if (elsewhere > tensors || moved > tensors) {
    return fail(Code::invalid_argument,
                format("a version with {} tensors has not {} of them elsewhere, and not {} writers that moved", tensors,
                       elsewhere, moved));
  }
  Placed read_placed{.placement = placed->placement(),
                     .attempt = placed->attempt(),
                     .elsewhere = copied(placed->elsewhere()),
                     .moved = {}};
  for (std::uint32_t i = 0; i < moved; ++i) {
    const wire::Moved& one = *placed->moved()->Get(i);
    if (bytes_in(one.provider()) > kProviderIdBytesMax) {
      return fail(Code::invalid_argument, "a provider's id is too long");
    }
    read_placed.moved.push_back(
        {.writer = one.writer() == nullptr ? VersionId{} : read(*one.writer()), .provider = read(one.provider())});
  }
  return std::optional(std::move(read_placed));
}

Offset<wire::Put> put(Builder& builder, const Manifest& manifest, const Repository::PutOptions& options) {
  const auto version = put(builder, manifest);
  const auto placed = put(builder, options.placed);
  return wire::CreatePut(builder, version, wire_number(options.quality), options.has_weights, placed,
                         options.ancestor_may_be_retired, options.dedup, options.deltas);
}

Result<Repository::PutOptions> read_options(const wire::Put& put, std::size_t tensors) {
  FRESHET_ASSIGN(std::optional<Placed> placed, read(put.placed(), tensors));
  return Repository::PutOptions{.quality = read(put.quality()),
                                .has_weights = put.has_weights(),
                                .dedup = put.dedup(),
                                .deltas = put.deltas(),
                                .placed = std::move(placed),
                                .ancestor_may_be_retired = put.ancestor_may_be_retired()};
}

Offset<wire::SharedRecord> put(Builder& builder, const SharedRecord& record) {
  const auto key = builder.CreateString(record.key);
  Offset<flatbuffers::Vector<std::uint8_t>> value;
  if (record.value) {
    value = builder.CreateVector(reinterpret_cast<const std::uint8_t*>(record.value->data()), record.value->size());
  }
  return wire::CreateSharedRecord(builder, key, value);
}

SharedRecord read(const wire::SharedRecord& record) {
  SharedRecord read_record{.key = read(record.key()), .value = {}};
  if (record.value() != nullptr) {
    const Bytes value = data_of(record.value());
    read_record.value.emplace(reinterpret_cast<const char*>(value.data()), value.size());
  }
  return read_record;
}

Offset<flatbuffers::Vector<Offset<wire::SharedRecord>>> put(Builder& builder, std::span<const SharedRecord> records) {
  std::vector<Offset<wire::SharedRecord>> rows;
  for (const SharedRecord& record : records) rows.push_back(put(builder, record));
  return builder.CreateVector(rows);
}

std::vector<SharedRecord> read(const flatbuffers::Vector<Offset<wire::SharedRecord>>* records) {
  std::vector<SharedRecord> read_records;
  if (records == nullptr) return read_records;
  for (const wire::SharedRecord* record : *records) read_records.push_back(read(*record));
  return read_records;
}

Result<std::vector<SharedRecord>> read_changed(const flatbuffers::Vector<Offset<wire::SharedRecord>>* records) {
  if (records == nullptr) return std::vector<SharedRecord>();
  if (records->size() > kSharedRecordsMax) {
    return fail(Code::invalid_argument, format("more than {} shared records at a time", kSharedRecordsMax));
  }
  std::size_t bytes = 0;
  for (const wire::SharedRecord* record : *records) bytes += bytes_in(record->key()) + data_of(record->value()).size();
  if (bytes > kSharedChangeBytesMax) {
    return fail(Code::invalid_argument,
                format("shared records of {} bytes at a time, more than {}", bytes, kSharedChangeBytesMax));
  }
  return read(records);
}

}  // namespace freshet::rpc
