// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/wire/messages.h"

// Of what is retired and collected, and of who names segments from elsewhere.

namespace freshet::rpc {

Offset<wire::Retired> put(Builder& builder, const RetireReport& report) {
  return wire::CreateRetired(builder, put(builder, report.version), report.released_tensors, report.released_bytes);
}

Result<RetireReport> read(const wire::Retired& retired) {
  RetireReport report{.released_tensors = retired.tensors(), .released_bytes = retired.bytes()};
  FRESHET_ASSIGN(report.version, read(retired.version()));
  return report;
}

namespace {

Offset<wire::GcRow> put_row(Builder& builder, const GcRow& row) {
  const wire::Id writer = wire_id(row.writer);
  const auto version = row.version.number == 0 ? Offset<wire::Name>() : put(builder, row.version);
  std::vector<Offset<wire::Name>> named_by;
  for (const VersionName& name : row.named_by) named_by.push_back(put(builder, name));
  return wire::CreateGcRow(builder, static_cast<std::uint8_t>(row.reason), &writer, version, row.tensors, row.bytes,
                           builder.CreateVector(named_by), row.named_by_count);
}

Result<GcRow> read_row(const wire::GcRow& row) {
  if (row.reason() > static_cast<std::uint8_t>(GcReason::inherited)) {
    return fail(Code::unsupported, "a gc row has a reason that this build does not know");
  }
  GcRow read_back{.reason = static_cast<GcReason>(row.reason()),
                  .tensors = row.tensors(),
                  .bytes = row.bytes(),
                  .named_by_count = row.named_by_count()};
  if (row.writer() != nullptr) read_back.writer = read(*row.writer());
  if (row.version() != nullptr) {
    FRESHET_ASSIGN(read_back.version, read(row.version()));
  }
  if (row.named_by() != nullptr) {
    for (const wire::Name* name : *row.named_by()) {
      FRESHET_ASSIGN(VersionName by, read(name));
      read_back.named_by.push_back(std::move(by));
    }
  }
  return read_back;
}

}  // namespace

Offset<wire::Collected> put(Builder& builder, const GcReport& report) {
  std::vector<Offset<wire::GcRow>> rows;
  for (const GcRow& row : report.rows) rows.push_back(put_row(builder, row));
  return wire::CreateCollected(builder, report.freed_bytes, report.live_bytes, builder.CreateVector(rows),
                               builder.CreateVectorOfStrings(report.notes));
}

Result<GcReport> read(const wire::Collected& collected) {
  GcReport report{.freed_bytes = collected.freed_bytes(), .live_bytes = collected.live_bytes()};
  for (std::uint32_t i = 0; collected.notes() != nullptr && i < collected.notes()->size(); ++i) {
    report.notes.push_back(collected.notes()->Get(i)->str());
  }
  if (collected.rows() == nullptr) return report;
  for (const wire::GcRow* row : *collected.rows()) {
    FRESHET_ASSIGN(GcRow read_back, read_row(*row));
    report.rows.push_back(std::move(read_back));
  }
  return report;
}

Offset<wire::Referrer> put(Builder& builder, const ExternalReferrer& referrer) {
  const wire::Id version = wire_id(referrer.version);
  std::vector<wire::Segment> segments;
  for (const SegmentName& segment : referrer.segments) segments.push_back(wire_segment(segment));
  return wire::CreateReferrer(builder, &version, builder.CreateVectorOfStructs(segments), referrer.attempt,
                              builder.CreateString(referrer.home));
}

Result<ExternalReferrer> read(const wire::Referrer& referrer) {
  if (referrer.version() == nullptr) return fail(Code::corrupt, "a referrer without a version");
  ExternalReferrer read_back{.version = read(*referrer.version()), .attempt = referrer.attempt()};
  if (referrer.home() != nullptr) read_back.home = referrer.home()->str();
  for (const wire::Segment& segment : copied(referrer.segments())) read_back.segments.push_back(read(segment));
  return read_back;
}

Offset<wire::Referrers> put(Builder& builder, const std::vector<ExternalReferrer>& referrers) {
  std::vector<Offset<wire::Referrer>> rows;
  for (const ExternalReferrer& referrer : referrers) rows.push_back(put(builder, referrer));
  return wire::CreateReferrers(builder, builder.CreateVector(rows));
}

Result<std::vector<ExternalReferrer>> read(const wire::Referrers& referrers) {
  std::vector<ExternalReferrer> rows;
  if (referrers.rows() == nullptr) return rows;
  for (const wire::Referrer* row : *referrers.rows()) {
    FRESHET_ASSIGN(ExternalReferrer referrer, read(*row));
    rows.push_back(std::move(referrer));
  }
  return rows;
}

}  // namespace freshet::rpc
