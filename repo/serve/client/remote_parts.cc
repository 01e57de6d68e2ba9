// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/base/format.h"
#include "repo/serve/client/remote.h"

// Puts by parts in a repository elsewhere. Parts travel in uploads of limited size, so that a slow part takes little of
// the server's memory, and is repeated at little cost.

namespace freshet::rpc {
namespace {

constexpr std::uint64_t kUploadBytesMax = std::uint64_t{16} << 20;
constexpr std::size_t kUploadPartsMax = std::size_t{1} << 14;

/// Calls `each` for pieces of at most kUploadBytesMax that make up the part, until one fails. REQUIRES: the bytes are
/// as many as the runs.
Status for_each_piece(const TensorPart& part, const std::function<Status(const TensorPart& piece)>& each) {
  const std::uint64_t runs = part.length == 0 ? 1 : std::max<std::uint64_t>(1, kUploadBytesMax / part.length);
  for (std::uint64_t run = 0; run < part.count; run += runs) {
    TensorPart piece = part;
    piece.digest.reset();
    piece.offset += run * part.stride;
    piece.count = std::min(runs, part.count - run);
    piece.bytes = part.bytes.subspan(run * part.length, piece.count * part.length);
    if (piece.bytes.size() <= kUploadBytesMax) {
      FRESHET_TRY(each(piece));
      continue;
    }
    for (Bytes rest = piece.bytes; !rest.empty();) {  // One long run.
      piece.bytes = rest.first(std::min<std::uint64_t>(kUploadBytesMax, rest.size()));
      piece.length = piece.bytes.size();
      FRESHET_TRY(each(piece));
      piece.offset += piece.length;
      rest = rest.subspan(piece.length);
    }
  }
  return {};
}

}  // namespace

Result<PutToken> RemoteRepository::begin_put(const std::string& model, const VersionId& id,
                                             std::shared_ptr<const Architecture> architecture) {
  if (architecture == nullptr) return fail(Code::invalid_argument, "a put by parts begins with an architecture");
  return ask(BeginPut{model, id, std::move(architecture)});
}

Status RemoteRepository::put_parts(const PutToken& token, std::span<const TensorPart> parts) {
  std::vector<TensorPart> batch;
  std::uint64_t batch_bytes = 0;
  const auto send_batch = [&]() -> Status {
    if (batch.empty()) return {};
    Status sent = send_parts(token, batch);
    // A part that came already may come again, so a connection that broke costs one more try.
    if (!sent && sent.error().code() == Code::unavailable) sent = send_parts(token, batch);
    batch.clear();
    batch_bytes = 0;
    return sent;
  };
  for (const TensorPart& part : parts) {
    const bool fits = part.length != 0 && part.count != 0 && part.bytes.size() / part.length == part.count &&
                      part.bytes.size() % part.length == 0;
    if (!fits) {
      return fail(Code::invalid_argument, format("a part of tensor {}: {} bytes were given for {} runs of {}",
                                                 part.tensor, part.bytes.size(), part.count, part.length));
    }
    if (part.digest && digest_of(part.bytes) != *part.digest) {
      return fail(Code::corrupt, format("a part of tensor {}: its bytes do not match its digest", part.tensor));
    }
    Status sent = for_each_piece(part, [&](const TensorPart& piece) -> Status {
      if (batch_bytes + piece.bytes.size() > kUploadBytesMax || batch.size() == kUploadPartsMax) {
        FRESHET_TRY(send_batch());
      }
      batch.push_back(piece);
      batch.back().digest = digest_of(piece.bytes);
      batch_bytes += piece.bytes.size();
      return {};
    });
    if (!sent) return sent;
  }
  return send_batch();
}

Status RemoteRepository::send_parts(const PutToken& token, std::span<const TensorPart> parts) {
  FRESHET_ASSIGN(const std::shared_ptr<Link> connection, link());
  FRESHET_ASSIGN(Conversation conversation, connection->begin(PutParts{token, {parts.begin(), parts.end()}}));
  FRESHET_ASSIGN(Response response, last_answer(conversation, kLong, {}));
  while (const auto invitation = step_in<Invitation>(response)) {
    Sending sending{.credit = invitation->window};
    std::optional<Response> other;
    for (std::size_t i = 0; i < parts.size() && !other; ++i) {
      FRESHET_ASSIGN(other, send_bytes(conversation, parts[i].bytes, sending));
    }
    while (!other || other->verb() == kVerb<Credit>) {
      FRESHET_ASSIGN(other, last_answer(conversation, kLong, {}));
    }
    response = std::move(*other);
  }
  return answer_in<PutParts>(response);
}

Result<VersionName> RemoteRepository::commit_put(const PutToken& token, const Manifest& given, PutOptions options) {
  FRESHET_ASSIGN(Manifest manifest, encodable(given));
  return ask(CommitPut{token, {std::move(manifest), std::move(options)}}, kLong);
}

}  // namespace freshet::rpc
