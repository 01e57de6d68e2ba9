// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <functional>
#include <unordered_set>
#include <vector>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/local/tensor_reads.h"
#include "repo/records/placed.h"
#include "repo/serve/client/remote.h"

namespace freshet::rpc {
namespace {

constexpr std::size_t kReadsInFlight = 8;
constexpr std::uint64_t kSentChunkBytes = std::uint64_t{512} << 10;
static_assert(kSentChunkBytes <= kChunkBytesMax);

/// The version's own tensors, where they are small: they spare the way to the server and back for an invitation. A
/// tensor whose bytes cannot be had is not given: the server asks for it, and the put says why.
std::vector<std::byte> give_small(Put& put, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of) {
  const auto tensors = put.manifest.architecture->tensors();
  const auto give_none = [&put] {
    put.given.clear();
    return std::vector<std::byte>();
  };
  if (!put.options.has_weights) return {};
  std::unordered_set<std::uint32_t> brought;
  for (const BroughtTensor& one : put.brought) brought.insert(one.tensor);
  std::uint64_t total = 0;
  for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const bool is_own = put.manifest.owners[tensor].writer == put.manifest.id;
    if (!is_own || brought.contains(tensor)) continue;
    if (put.options.placed && is_elsewhere(*put.options.placed, tensor)) continue;
    if (tensors[tensor].bytes() > kGivenBytesMax - total) return give_none();
    total += tensors[tensor].bytes();
    put.given.emplace_back(tensor, tensors[tensor].bytes());
  }
  std::vector<std::byte> all;
  all.reserve(total);
  for (const auto& [tensor, size] : put.given) {
    const Result<Bytes> bytes = bytes_of(tensor);
    if (!bytes || bytes->size() != size) return give_none();
    all.insert(all.end(), bytes->begin(), bytes->end());
  }
  return all;
}

}  // namespace

/// Into the memory of the ranges.
template <typename Question>
Status RemoteRepository::take_data(const Response& response, std::span<const Range> ranges) {
  FRESHET_ASSIGN(const Data data, answer_in<Question>(response));
  Bytes bytes = data.bytes;
  for (const Range& range : ranges) {
    if (bytes.size() < range.out.size()) return fail(Code::corrupt, "the repository's server sent too few bytes");
    std::copy_n(bytes.begin(), range.out.size(), range.out.begin());
    bytes = bytes.subspan(range.out.size());
  }
  return {};
}

template <typename QuestionFor>
Status RemoteRepository::fetch(std::span<const Range> ranges, QuestionFor question_for) const {
  using Question = decltype(question_for(ranges));
  struct UnderWay {
    Conversation conversation;
    std::span<const Range> ranges;
  };
  // `ranges` becomes what did not come.
  const auto fetch_over = [&](Link& connection) -> Status {
    std::deque<UnderWay> under_way;
    std::span<const Range> unasked = ranges;
    while (!ranges.empty()) {
      if (unasked.empty() || under_way.size() == kReadsInFlight) {
        FRESHET_ASSIGN(const Response response, under_way.front().conversation.next(deadline_in(options_.answer)));
        FRESHET_TRY(take_data<Question>(response, under_way.front().ranges));
        ranges = ranges.subspan(under_way.front().ranges.size());
        under_way.pop_front();
        continue;
      }
      const std::span<const Range> batch = next_batch(unasked);
      FRESHET_ASSIGN(Conversation conversation, connection.begin(question_for(batch)));
      under_way.push_back({std::move(conversation), batch});
      unasked = unasked.subspan(batch.size());
    }
    return {};
  };
  for (int owners = kOwnersAskedMax; !ranges.empty();) {
    FRESHET_ASSIGN(const std::shared_ptr<Link> connection, link());
    const std::size_t wanted = ranges.size();
    Status came = fetch_over(*connection);
    if (ranges.size() < wanted) owners = kOwnersAskedMax;  // The question is another one.
    if (!came && (!owner_.is_lost(*connection, came.error()) || --owners == 0)) return came;
  }
  return {};
}

Result<VersionName> RemoteRepository::put(const Manifest& given,
                                          const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                          PutOptions options) {
  const StopInterrupts stops(options.stop);
  FRESHET_TRY(Interruption::check());
  FRESHET_ASSIGN(Manifest manifest, encodable(given));
  FRESHET_TRY(fill_digests(manifest, bytes_of, options));
  const DirectPuts::Owner owner{.wanted = [&] { return wanted(manifest, options); },
                                .sign = [this](const SignUploads& question) { return ask(question); }};
  std::vector<BroughtTensor> brought = direct_puts_.bring(manifest, options, bytes_of, owner);
  Put put{{std::move(manifest), std::move(options)}, std::move(brought), {}, {}};
  const std::vector<std::byte> small = give_small(put, bytes_of);
  put.given_bytes = small;
  FRESHET_ASSIGN(const std::shared_ptr<Link> connection, link());
  const auto put_over = [&]() -> Result<VersionName> {
    FRESHET_ASSIGN(Conversation conversation, connection->begin(put));
    const PutSource source{.manifest = put.manifest, .caller = bytes_of};
    std::optional<Response> came;
    for (;;) {
      if (!came) {
        FRESHET_ASSIGN(came, last_answer(conversation, kLong, {}));
      }
      const Response response = *std::exchange(came, std::nullopt);
      if (const auto invitation = step_in<Invitation>(response)) {
        FRESHET_ASSIGN(came, send_tensors(conversation, *invitation, source));
      } else if (response.verb() != kVerb<Credit>) {
        return answer_in<Put>(response);
      }
    }
  };
  Result<VersionName> stored = put_over();
  if (!stored) owner_.is_lost(*connection, stored.error());  // The next call asks the owner of that time.
  return stored;
}

Result<Bytes> RemoteRepository::PutSource::bytes_of(Conversation& conversation, std::uint32_t tensor) const {
  const auto tensors = manifest.architecture->tensors();
  if (tensor >= tensors.size())
    return fail(Code::corrupt, "the repository's server asks for a tensor that does not exist");
  Result<Bytes> bytes = caller(tensor);
  if (bytes && bytes->size() != tensors[tensor].bytes()) {
    bytes = fail(Code::corrupt, format("{} bytes were given for {}", bytes->size(), tensors[tensor].bytes()));
  }
  if (bytes) return bytes;
  conversation.abandon();
  return fail(std::move(bytes).error().with_context(
      format("put {}: {} {}", to_string(manifest.name), to_string(manifest.name), tensors[tensor].name)));
}

Result<std::optional<Response>> RemoteRepository::more_credit(Conversation& conversation, std::uint64_t& credit) {
  FRESHET_ASSIGN(Response response, conversation.next(deadline_in(kLong)));
  const auto more = step_in<Credit>(response);
  if (!more) return std::optional(std::move(response));
  credit += more->bytes;
  return std::optional<Response>();
}

Result<std::optional<Response>> RemoteRepository::send_bytes(Conversation& conversation, Bytes bytes,
                                                             Sending& sending) {
  while (!bytes.empty()) {
    const std::uint64_t count = std::min<std::uint64_t>(kSentChunkBytes, bytes.size());
    while (sending.credit < count) {
      FRESHET_ASSIGN(std::optional<Response> other, more_credit(conversation, sending.credit));
      if (other) return other;
    }
    conversation.send_chunk(sending.offset, bytes.first(count));
    sending.credit -= count;
    sending.offset += count;
    bytes = bytes.subspan(count);
  }
  return std::optional<Response>();
}

Result<std::optional<Response>> RemoteRepository::send_tensors(Conversation& conversation, const Invitation& invitation,
                                                               const PutSource& source) const {
  Sending sending{.credit = invitation.window};
  for (const std::uint32_t tensor : invitation.tensors) {
    FRESHET_ASSIGN(const Bytes bytes, source.bytes_of(conversation, tensor));
    FRESHET_ASSIGN(std::optional<Response> other, send_bytes(conversation, bytes, sending));
    if (other) return other;
  }
  return std::optional<Response>();
}

Status RemoteRepository::read(const VersionRecord& record, std::span<const TensorRead> wanted) const {
  FRESHET_TRY(check_reads(record, wanted));
  const std::vector<TensorRead> reads =
      direct_reads_.read(record, wanted, [this](const SignReads& question) { return ask(question); });
  if (reads.empty()) return {};
  const Manifest& manifest = record.manifest;
  const auto tensors = manifest.architecture->tensors();
  Ranges whole;
  for (const TensorRead& one : reads) whole.push_back({.tensor = one.tensor, .segment = {}, .out = one.out});
  std::vector<BulkPart> parts = parts_of(whole, true);
  fetch_version_in_bulk(record, whole, parts);
  Ranges rest;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (!parts[i].came) append_ranges(rest, reads[i].tensor, {}, 0, reads[i].out);
  }
  FRESHET_TRY(read_ranges(record, rest));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const TensorRead& one = reads[i];
    if ((parts[i].came ? parts[i].digest : digest_of(one.out)) == manifest.digests[one.tensor]) continue;
    return fail(Code::corrupt,
                format("{} {}: its bytes do not match its digest", to_string(manifest.name), tensors[one.tensor].name));
  }
  return {};
}

/// In parts that one answer can have.
void RemoteRepository::append_ranges(Ranges& ranges, std::uint32_t tensor, const SegmentName& segment,
                                     std::uint64_t offset, MutableBytes out) {
  for (std::uint64_t at = 0; at < out.size(); at += kDataBytesMax) {
    const std::uint64_t bytes = std::min(kDataBytesMax, out.size() - at);
    ranges.push_back({.tensor = tensor, .segment = segment, .offset = offset + at, .out = out.subspan(at, bytes)});
  }
}

Status RemoteRepository::read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                                    MutableBytes out) const {
  const Ranges whole{{.tensor = tensor, .segment = {}, .offset = offset, .out = out}};
  std::vector<BulkPart> parts = parts_of(whole, false);
  fetch_version_in_bulk(record, whole, parts);
  if (parts.front().came) return {};
  Ranges ranges;
  append_ranges(ranges, tensor, {}, offset, out);
  return read_ranges(record, ranges);
}

std::vector<ByteRange> RemoteRepository::byte_ranges(std::span<const Range> ranges) {
  std::vector<ByteRange> asked;
  for (const Range& range : ranges) asked.push_back({range.tensor, range.offset, range.out.size()});
  return asked;
}

std::vector<SegmentRange> RemoteRepository::segment_ranges(std::span<const Range> ranges) {
  std::vector<SegmentRange> asked;
  for (const Range& range : ranges) asked.push_back({range.segment, range.offset, range.out.size()});
  return asked;
}

Status RemoteRepository::read_ranges(const VersionRecord& record, const Ranges& ranges) const {
  return fetch(ranges, [&](std::span<const Range> asked) {
    return AskBytes{record.manifest.name, record.manifest.id, byte_ranges(asked)};
  });
}

Status RemoteRepository::read_segment_range(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const {
  const Ranges whole{{.tensor = 0, .segment = segment, .offset = offset, .out = out}};
  std::vector<BulkPart> parts = parts_of(whole, false);
  fetch_segments_in_bulk(whole, parts);
  if (parts.front().came) return {};
  Ranges ranges;
  append_ranges(ranges, 0, segment, offset, out);
  return read_segment_ranges(ranges);
}

Status RemoteRepository::read_segments(std::span<const SegmentRead> reads) const {
  Ranges whole;
  for (const SegmentRead& one : reads) whole.push_back({.tensor = 0, .segment = one.segment, .out = one.out});
  std::vector<BulkPart> parts = parts_of(whole, true);
  fetch_segments_in_bulk(whole, parts);
  Ranges rest;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (!parts[i].came) append_ranges(rest, 0, reads[i].segment, 0, reads[i].out);
  }
  FRESHET_TRY(read_segment_ranges(rest));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const SegmentRead& one = reads[i];
    if ((parts[i].came ? parts[i].digest : digest_of(one.out)) == one.digest) continue;
    return fail(Code::corrupt, format("segment {}: its bytes do not match its digest", to_string(one.segment)));
  }
  return {};
}

Status RemoteRepository::read_segment_ranges(const Ranges& ranges) const {
  return fetch(ranges, [](std::span<const Range> asked) { return AskSegments{segment_ranges(asked)}; });
}

/// The ranges of one question: as many as its answer may have.
std::span<const RemoteRepository::Range> RemoteRepository::next_batch(std::span<const Range> ranges) {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  while (count < ranges.size() && count < kRangesMax && bytes + ranges[count].out.size() <= kDataBytesMax) {
    bytes += ranges[count++].out.size();
  }
  return ranges.first(count);
}

}  // namespace freshet::rpc
