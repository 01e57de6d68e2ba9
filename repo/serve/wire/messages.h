// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What travels between a repository's server and its clients: FlatBuffers (rpc.fbs), verified before use. A value is
/// written by put(builder, value) and read back by read(), which checks what the verifier cannot: names, counts, codes.
/// Many rows of a list may be one row of the message. So a question's lists of texts are checked against their limits
/// before they are copied. For this folder and those that add questions to it.

#include <flatbuffers/flatbuffers.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"
#include "repo/provider_repository.h"
#include "repo/serve/wire/rpc_generated.h"

namespace freshet::rpc {

inline constexpr std::uint32_t kProtocolVersion = 3;

/// A manifest and an architecture, the largest of both, and what else a message says.
inline constexpr std::size_t kMessageBytesMax = std::size_t{192} << 20;
inline constexpr std::size_t kTextBytesMax = std::size_t{1} << 16;
inline constexpr std::size_t kRangesMax = std::size_t{1} << 16;
/// Of one AskBytes; whoever wants more asks more often.
inline constexpr std::uint64_t kDataBytesMax = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kChunkBytesMax = std::uint64_t{1} << 20;

using Builder = flatbuffers::FlatBufferBuilder;
using Encoded = flatbuffers::DetachedBuffer;
template <typename T>
using Offset = flatbuffers::Offset<T>;

/// A message of the other side, verified. Movable; what is read from it points into it.
template <typename Root>
class Received {
 public:
  /// corrupt when it is no such message.
  static Result<Received> open(Bytes bytes) {
    if (bytes.size() > kMessageBytesMax) return fail(Code::corrupt, "a message is too long");
    Received received;
    // The verifier measures alignment from the first byte, so this one must be aligned itself.
    received.words_.resize((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
    if (!bytes.empty()) std::memcpy(received.words_.data(), bytes.data(), bytes.size());
    const auto* const data = reinterpret_cast<const std::uint8_t*>(received.words_.data());
    flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/8, /*max_tables=*/kTablesMax);
    if (bytes.size() < kShortest || !verifier.VerifyBuffer<Root>(nullptr)) {
      return fail(Code::corrupt, "a message that is not of this protocol");
    }
    received.root_ = flatbuffers::GetRoot<Root>(data);
    return received;
  }
  const Root* operator->() const { return root_; }
  const Root& operator*() const { return *root_; }
  /// The memory that it takes.
  std::size_t bytes() const { return words_.size() * sizeof(std::uint64_t); }

 private:
  static constexpr std::size_t kShortest = 2 * sizeof(flatbuffers::uoffset_t) + sizeof(flatbuffers::soffset_t);
  static constexpr std::uint32_t kTablesMax = 1u << 24;
  std::vector<std::uint64_t> words_;
  const Root* root_ = nullptr;
};

template <typename Body>
Encoded request(Builder& builder, std::uint64_t number, Offset<Body> body) {
  builder.Finish(wire::CreateRequest(builder, number, wire::AskTraits<Body>::enum_value, body.Union()));
  return builder.Release();
}
template <typename Body>
Encoded reply(Builder& builder, std::uint64_t number, Offset<Body> body) {
  builder.Finish(wire::CreateReply(builder, number, {}, wire::AnswerTraits<Body>::enum_value, body.Union()));
  return builder.Release();
}
Encoded failure(std::uint64_t number, const Error& error);
Error error_of(const wire::Failure& failure);

// Values, each with its way back. What is missing in a message is empty, or an error where that makes no sense.
Offset<wire::Name> put(Builder& builder, const VersionName& name);
wire::Id wire_id(const VersionId& id);
VersionId read(const wire::Id& id);
/// Empty for null. invalid_argument for a name that no model can have.
Result<VersionName> read(const wire::Name* name);
std::string read(const flatbuffers::String* text);
inline std::size_t bytes_in(const flatbuffers::String* text) { return text == nullptr ? 0 : text->size(); }
/// invalid_argument for a key above kTagKeyBytesMax, or a longer value.
Status check_tag(const wire::Tag& tag, std::size_t value_bytes_max);
std::optional<double> read(const flatbuffers::Optional<double>& value);
flatbuffers::Optional<double> wire_number(const std::optional<double>& value);
/// Where a version's bytes are; nothing for null. invalid_argument for longer lists than a version of so many tensors
/// has.
Offset<wire::Placed> put(Builder& builder, const std::optional<Placed>& placed);
Result<std::optional<Placed>> read(const wire::Placed* placed, std::size_t tensors);

Offset<flatbuffers::Vector<Offset<flatbuffers::String>>> put(Builder& builder, const std::vector<std::string>& texts);
std::vector<std::string> read(const flatbuffers::Vector<Offset<flatbuffers::String>>* texts);

/// Elements as values: a vector may lie at any address, whatever the verifier says (2.0.8).
template <typename T>
std::vector<T> copied(const flatbuffers::Vector<T>* vector) {
  std::vector<T> values(vector == nullptr ? 0 : vector->size());
  if (!values.empty()) std::memcpy(values.data(), vector->Data(), values.size() * sizeof(T));
  return values;
}
template <typename T>
std::vector<T> copied(const flatbuffers::Vector<const T*>* structs) {
  std::vector<T> values(structs == nullptr ? 0 : structs->size());
  if (!values.empty()) std::memcpy(static_cast<void*>(values.data()), structs->Data(), values.size() * sizeof(T));
  return values;
}
inline Bytes data_of(const flatbuffers::Vector<std::uint8_t>* vector) {
  return vector == nullptr ? Bytes() : std::as_bytes(std::span(vector->Data(), vector->size()));
}

/// With a number: one that is to be given goes as 1, which is the same thing, since that one is given first.
/// invalid_argument for a manifest that check() refuses.
Result<Manifest> encodable(Manifest manifest);
/// REQUIRES: encodable.
Offset<wire::Version> put(Builder& builder, const Manifest& manifest);
Result<Manifest> read(const wire::Version* version);

Offset<wire::Record> put(Builder& builder, const VersionRecord& record);
Result<VersionRecord> read(const wire::Record& record);
Offset<wire::Owners> put(Builder& builder, const std::vector<OwnerRow>& rows);
Result<std::vector<OwnerRow>> read(const wire::Owners& owners);
Offset<wire::Lineage> put(Builder& builder, const std::vector<LineageRow>& rows);
Result<std::vector<LineageRow>> read(const wire::Lineage& lineage);
Offset<wire::Contributors> put(Builder& builder, const std::vector<ContributorRow>& rows);
Result<std::vector<ContributorRow>> read(const wire::Contributors& contributors);
Offset<wire::Difference> put(Builder& builder, const VersionDiff& diff);
Result<VersionDiff> read(const wire::Difference& difference);
wire::PinLease wire_pin_lease(const PinLease& lease);
/// Of a message without a lease: pins that stay.
PinTerms read_pin_terms(const wire::PinLease* lease);
Offset<wire::Match> put(Builder& builder, const MatchQuery& query);
Result<MatchQuery> read(const wire::Match& match);
Offset<wire::Matched> put(Builder& builder, const MatchAnswer& answer);
Result<MatchAnswer> read(const wire::Matched& matched);
Offset<wire::Graph> put(Builder& builder, const MatchGraph& graph);
Result<std::shared_ptr<const MatchGraph>> read(const wire::Graph* graph);
Offset<wire::Put> put(Builder& builder, const Manifest& manifest, const Repository::PutOptions& options);
/// Of a version of so many tensors.
Result<Repository::PutOptions> read_options(const wire::Put& put, std::size_t tensors);
Offset<wire::SharedRecord> put(Builder& builder, const SharedRecord& record);
SharedRecord read(const wire::SharedRecord& record);
Offset<flatbuffers::Vector<Offset<wire::SharedRecord>>> put(Builder& builder, std::span<const SharedRecord> records);
std::vector<SharedRecord> read(const flatbuffers::Vector<Offset<wire::SharedRecord>>* records);
/// A list of a ChangeShared. invalid_argument above the limits of shared records (repo/provider_repository.h).
Result<std::vector<SharedRecord>> read_changed(const flatbuffers::Vector<Offset<wire::SharedRecord>>* records);
wire::Segment wire_segment(const SegmentName& segment);
SegmentName read(const wire::Segment& segment);
Offset<wire::Aliases> put(Builder& builder, const std::vector<Alias>& aliases);
Result<std::vector<Alias>> read(const wire::Aliases& aliases);
Offset<wire::PinnedVersions> put(Builder& builder, const std::vector<PinnedVersion>& rows);
Result<std::vector<PinnedVersion>> read(const wire::PinnedVersions& pinned);
Offset<wire::Annotate> put(Builder& builder, const VersionName& name, const Annotations& annotations);
/// Without the name. Refuses tags above the limits of Repository::annotate().
Result<Annotations> read(const wire::Annotate& annotate);
Offset<wire::Retired> put(Builder& builder, const RetireReport& report);
Result<RetireReport> read(const wire::Retired& retired);
Offset<wire::Collected> put(Builder& builder, const GcReport& report);
Result<GcReport> read(const wire::Collected& collected);
Offset<wire::Referrer> put(Builder& builder, const ExternalReferrer& referrer);
Result<ExternalReferrer> read(const wire::Referrer& referrer);
Offset<wire::Referrers> put(Builder& builder, const std::vector<ExternalReferrer>& referrers);
Result<std::vector<ExternalReferrer>> read(const wire::Referrers& referrers);
wire::Token wire_token(const PutToken& token);
/// corrupt for null.
Result<PutToken> read(const wire::Token* token);
/// Without its bytes.
wire::Part wire_part(const TensorPart& part, const Digest& digest);
TensorPart read(const wire::Part& part);
Offset<wire::PartDigests> put(Builder& builder, const std::vector<std::optional<Digest>>& digests);
Result<std::vector<std::optional<Digest>>> read(const wire::PartDigests& digests);
Offset<wire::Stat> put(Builder& builder, const RepositoryStat& stat);
Result<RepositoryStat> read(const wire::Stat& stat);
Offset<wire::Verified> put(Builder& builder, const VerifyReport& report);
Result<VerifyReport> read(const wire::Verified& verified);

}  // namespace freshet::rpc
