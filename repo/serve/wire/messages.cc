// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/wire/messages.h"

#include <algorithm>

#include "core/base/text.h"

namespace freshet::rpc {
namespace {

/// The rows of a table's vector, each read by `read_row`; none for null.
template <typename Row, typename WireRow, typename ReadRow>
Result<std::vector<Row>> read_rows(const flatbuffers::Vector<Offset<WireRow>>* rows, ReadRow read_row) {
  std::vector<Row> read;
  if (rows == nullptr) return read;
  read.reserve(rows->size());
  for (const WireRow* row : *rows) {
    FRESHET_ASSIGN(Row one, read_row(*row));
    read.push_back(std::move(one));
  }
  return read;
}

}  // namespace

Encoded failure(std::uint64_t number, const Error& error) {
  Builder builder;
  const auto text = builder.CreateString(error.message().substr(0, kTextBytesMax));
  const auto failed = wire::CreateFailure(builder, static_cast<std::uint8_t>(error.code()), text);
  builder.Finish(wire::CreateReply(builder, number, failed, wire::Answer::NONE, {}));
  return builder.Release();
}

Error error_of(const wire::Failure& failure) {
  const bool known = failure.code() <= static_cast<std::uint8_t>(Code::io_error);
  return Error(known ? static_cast<Code>(failure.code()) : Code::io_error,
               shown(read(failure.message()), kTextBytesMax));
}

Offset<wire::Name> put(Builder& builder, const VersionName& name) {
  return wire::CreateName(builder, builder.CreateString(name.model), name.number);
}

wire::Id wire_id(const VersionId& id) { return {id.run.high, id.run.low, id.incarnation, id.sequence}; }

VersionId read(const wire::Id& id) {
  return {
      .run = {.high = id.run_high(), .low = id.run_low()}, .incarnation = id.incarnation(), .sequence = id.sequence()};
}

Result<VersionName> read(const wire::Name* name) {
  if (name == nullptr) return VersionName{};
  VersionName read_name{.model = read(name->model()), .number = name->number()};
  if (!read_name.model.empty()) FRESHET_TRY(check_model_name(read_name.model));
  return read_name;
}

std::optional<double> read(const flatbuffers::Optional<double>& value) {
  return value.has_value() ? std::optional<double>(value.value()) : std::nullopt;
}

flatbuffers::Optional<double> wire_number(const std::optional<double>& value) {
  return value ? flatbuffers::Optional<double>(*value) : flatbuffers::Optional<double>();
}

wire::Segment wire_segment(const SegmentName& segment) { return {wire_id(segment.writer), segment.tensor}; }

SegmentName read(const wire::Segment& segment) {
  return {.writer = read(segment.writer()), .tensor = segment.tensor()};
}

std::string read(const flatbuffers::String* text) { return text == nullptr ? std::string() : text->str(); }

Offset<flatbuffers::Vector<Offset<flatbuffers::String>>> put(Builder& builder, const std::vector<std::string>& texts) {
  return builder.CreateVectorOfStrings(texts);
}

std::vector<std::string> read(const flatbuffers::Vector<Offset<flatbuffers::String>>* texts) {
  std::vector<std::string> read_texts;
  if (texts == nullptr) return read_texts;
  for (const flatbuffers::String* text : *texts) read_texts.push_back(text->str());
  return read_texts;
}

Result<Manifest> encodable(Manifest manifest) {
  if (manifest.name.number == 0) manifest.name.number = 1;
  FRESHET_TRY(check(manifest));
  return manifest;
}

Offset<wire::Version> put(Builder& builder, const Manifest& manifest) {
  const std::vector<std::byte> encoded = encode(manifest);
  const Bytes architecture = manifest.architecture->encoded();
  const auto first = builder.CreateVector(reinterpret_cast<const std::uint8_t*>(encoded.data()), encoded.size());
  const auto second =
      builder.CreateVector(reinterpret_cast<const std::uint8_t*>(architecture.data()), architecture.size());
  return wire::CreateVersion(builder, first, second);
}

Result<Manifest> read(const wire::Version* version) {
  if (version == nullptr) return fail(Code::corrupt, "a message without its version");
  FRESHET_ASSIGN(std::shared_ptr<const Architecture> architecture,
                 decode_architecture(data_of(version->architecture())));
  return decode_manifest(data_of(version->manifest()), std::move(architecture));
}

Offset<wire::Record> put(Builder& builder, const VersionRecord& record) {
  const auto version = put(builder, record.manifest);
  return wire::CreateRecord(builder, version, wire_number(record.quality), record.has_weights, record.own_bytes,
                            record.inherited_bytes, put(builder, record.placed));
}

Result<VersionRecord> read(const wire::Record& record) {
  FRESHET_ASSIGN(Manifest manifest, read(record.version()));
  const std::size_t tensors = manifest.architecture->tensors().size();
  Result<std::optional<Placed>> placed = read(record.placed(), tensors);
  if (!placed || (*placed && !check(**placed, tensors))) {
    return fail(Code::corrupt, "a record places tensors that the version does not have");
  }
  return VersionRecord{.manifest = std::move(manifest),
                       .quality = read(record.quality()),
                       .has_weights = record.has_weights(),
                       .own_bytes = record.own_bytes(),
                       .inherited_bytes = record.inherited_bytes(),
                       .placed = *std::move(placed)};
}

Offset<wire::Owners> put(Builder& builder, const std::vector<OwnerRow>& rows) {
  std::vector<Offset<wire::OwnerRow>> put_rows;
  for (const OwnerRow& row : rows) {
    const auto tensor = builder.CreateString(row.tensor);
    const auto owner = put(builder, row.owner);
    const wire::Segment segment = wire_segment(row.segment);
    put_rows.push_back(wire::CreateOwnerRow(builder, tensor, owner, &segment, row.bytes));
  }
  return wire::CreateOwners(builder, builder.CreateVector(put_rows));
}

Result<std::vector<OwnerRow>> read(const wire::Owners& owners) {
  return read_rows<OwnerRow>(owners.rows(), [](const wire::OwnerRow& row) -> Result<OwnerRow> {
    FRESHET_ASSIGN(VersionName owner, read(row.owner()));
    OwnerRow one{.tensor = read(row.tensor()), .owner = std::move(owner), .bytes = row.bytes()};
    if (row.segment() != nullptr) one.segment = read(*row.segment());
    return one;
  });
}

Offset<wire::Lineage> put(Builder& builder, const std::vector<LineageRow>& rows) {
  std::vector<Offset<wire::LineageRow>> put_rows;
  for (const LineageRow& row : rows) {
    const auto version = put(builder, row.version);
    const auto ancestor = put(builder, row.ancestor);
    put_rows.push_back(wire::CreateLineageRow(builder, version, ancestor, row.inherited_bytes, row.own_bytes,
                                              wire_number(row.quality), row.retired));
  }
  return wire::CreateLineage(builder, builder.CreateVector(put_rows));
}

Result<std::vector<LineageRow>> read(const wire::Lineage& lineage) {
  return read_rows<LineageRow>(lineage.rows(), [](const wire::LineageRow& row) -> Result<LineageRow> {
    FRESHET_ASSIGN(VersionName version, read(row.version()));
    FRESHET_ASSIGN(VersionName ancestor, read(row.ancestor()));
    return LineageRow{.version = std::move(version),
                      .ancestor = std::move(ancestor),
                      .inherited_bytes = row.inherited_bytes(),
                      .own_bytes = row.own_bytes(),
                      .quality = read(row.quality()),
                      .retired = row.retired()};
  });
}

Offset<wire::Contributors> put(Builder& builder, const std::vector<ContributorRow>& rows) {
  std::vector<Offset<wire::ContributorRow>> put_rows;
  for (const ContributorRow& row : rows) {
    const auto version = put(builder, row.version);
    const auto tensors = put(builder, row.tensors);
    const wire::Id id = wire_id(row.id);
    put_rows.push_back(wire::CreateContributorRow(builder, version, &id, row.retired, row.is_ancestor, row.tensor_count,
                                                  row.bytes, tensors));
  }
  return wire::CreateContributors(builder, builder.CreateVector(put_rows));
}

Result<std::vector<ContributorRow>> read(const wire::Contributors& contributors) {
  return read_rows<ContributorRow>(contributors.rows(), [](const wire::ContributorRow& row) -> Result<ContributorRow> {
    FRESHET_ASSIGN(VersionName version, read(row.version()));
    return ContributorRow{.version = std::move(version),
                          .id = row.id() == nullptr ? VersionId{} : read(*row.id()),
                          .retired = row.retired(),
                          .is_ancestor = row.is_ancestor(),
                          .tensor_count = row.tensor_count(),
                          .bytes = row.bytes(),
                          .tensors = read(row.tensors())};
  });
}

Offset<wire::Difference> put(Builder& builder, const VersionDiff& diff) {
  std::vector<Offset<wire::ChangedTensor>> tensors;
  for (const VersionDiff::Tensor& tensor : diff.tensors_changed) {
    const auto name = builder.CreateString(tensor.name);
    const auto name_a = builder.CreateString(tensor.name_a);
    const auto owner_a = put(builder, tensor.owner_a);
    const auto owner_b = put(builder, tensor.owner_b);
    tensors.push_back(wire::CreateChangedTensor(builder, name, name_a, tensor.bytes, owner_a, owner_b));
  }
  const auto added = put(builder, diff.layers_added);
  const auto removed = put(builder, diff.layers_removed);
  return wire::CreateDifference(builder, added, removed, builder.CreateVector(tensors), wire_number(diff.quality_a),
                                wire_number(diff.quality_b));
}

Result<VersionDiff> read(const wire::Difference& difference) {
  const auto read_tensor = [](const wire::ChangedTensor& tensor) -> Result<VersionDiff::Tensor> {
    FRESHET_ASSIGN(VersionName owner_a, read(tensor.owner_a()));
    FRESHET_ASSIGN(VersionName owner_b, read(tensor.owner_b()));
    return VersionDiff::Tensor{.name = read(tensor.name()),
                               .name_a = read(tensor.name_a()),
                               .bytes = tensor.bytes(),
                               .owner_a = std::move(owner_a),
                               .owner_b = std::move(owner_b)};
  };
  VersionDiff diff{.layers_added = read(difference.layers_added()),
                   .layers_removed = read(difference.layers_removed()),
                   .quality_a = read(difference.quality_a()),
                   .quality_b = read(difference.quality_b())};
  FRESHET_ASSIGN(diff.tensors_changed, read_rows<VersionDiff::Tensor>(difference.tensors(), read_tensor));
  return diff;
}

Offset<wire::Aliases> put(Builder& builder, const std::vector<Alias>& aliases) {
  std::vector<Offset<wire::Alias>> rows;
  for (const Alias& alias : aliases) {
    rows.push_back(wire::CreateAlias(builder, builder.CreateString(alias.name), alias.number));
  }
  return wire::CreateAliases(builder, builder.CreateVector(rows));
}

Result<std::vector<Alias>> read(const wire::Aliases& aliases) {
  return read_rows<Alias>(aliases.rows(), [](const wire::Alias& row) -> Result<Alias> {
    return Alias{.name = read(row.name()), .number = row.number()};
  });
}

Offset<wire::Stat> put(Builder& builder, const RepositoryStat& stat) {
  return wire::CreateStat(builder, stat.models, stat.versions, stat.live_tensors, stat.live_bytes, stat.disk_bytes,
                          stat.retired_versions, stat.metadata_bytes);
}

Result<RepositoryStat> read(const wire::Stat& stat) {
  return RepositoryStat{.models = stat.models(),
                        .versions = stat.versions(),
                        .retired_versions = stat.retired_versions(),
                        .live_tensors = stat.live_tensors(),
                        .live_bytes = stat.live_bytes(),
                        .disk_bytes = stat.disk_bytes(),
                        .metadata_bytes = stat.metadata_bytes()};
}

Offset<wire::Verified> put(Builder& builder, const VerifyReport& report) {
  std::vector<Offset<wire::CorruptTensor>> rows;
  for (const VerifyReport::Corrupt& corrupt : report.corrupt) {
    const auto version = put(builder, corrupt.version);
    const auto tensor = builder.CreateString(corrupt.tensor);
    const auto reason = builder.CreateString(corrupt.reason);
    rows.push_back(wire::CreateCorruptTensor(builder, version, tensor, reason, builder.CreateString(corrupt.record)));
  }
  std::vector<Offset<wire::UnneededBytes>> unneeded;
  for (const VerifyReport::Unneeded& one : report.unneeded) {
    const auto what = builder.CreateString(one.what);
    unneeded.push_back(wire::CreateUnneededBytes(builder, what, one.bytes, builder.CreateString(one.reason)));
  }
  const auto corrupt = builder.CreateVector(rows);
  return wire::CreateVerified(builder, report.checked_bytes, corrupt, builder.CreateVector(unneeded));
}

Result<VerifyReport> read(const wire::Verified& verified) {
  VerifyReport report{.checked_bytes = verified.checked_bytes()};
  FRESHET_ASSIGN(report.corrupt,
                 read_rows<VerifyReport::Corrupt>(verified.corrupt(),
                                                  [](const wire::CorruptTensor& row) -> Result<VerifyReport::Corrupt> {
                                                    FRESHET_ASSIGN(VersionName version, read(row.version()));
                                                    return VerifyReport::Corrupt{.version = std::move(version),
                                                                                 .tensor = read(row.tensor()),
                                                                                 .reason = read(row.reason()),
                                                                                 .record = read(row.record())};
                                                  }));
  FRESHET_ASSIGN(report.unneeded,
                 read_rows<VerifyReport::Unneeded>(
                     verified.unneeded(), [](const wire::UnneededBytes& row) -> Result<VerifyReport::Unneeded> {
                       return VerifyReport::Unneeded{
                           .what = read(row.what()), .bytes = row.bytes(), .reason = read(row.reason())};
                     }));
  return report;
}

}  // namespace freshet::rpc
