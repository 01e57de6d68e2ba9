// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/direct_reads.h"

#include <algorithm>

#include "repo/local/side_by_side.h"

namespace freshet::rpc {
namespace {

/// What the owner answered is that of another process.
bool fits(const SignedTensor& tensor, std::uint64_t bytes) {
  if (tensor.parts.size() != (bytes + kDigestPartBytes - 1) / kDigestPartBytes) return false;
  for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
    if (tensor.parts[i].bytes != std::min(kDigestPartBytes, bytes - i * kDigestPartBytes)) return false;
  }
  return true;
}

}  // namespace

std::vector<DirectReads::Piece> DirectReads::pieces_of(std::span<const TensorRead> batch, const SignedReads& answer) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < batch.size() && i < answer.tensors.size(); ++i) {
    const SignedTensor& tensor = answer.tensors[i];
    MutableBytes out = batch[i].out;
    if (!fits(tensor, out.size())) continue;
    for (const SignedPart& part : tensor.parts) {
      pieces.push_back({.read = i, .request = &part.request, .out = out.first(part.bytes), .digest = {}});
      out = out.subspan(part.bytes);
    }
  }
  return pieces;
}

Status DirectReads::fetch(SignedObjects& objects, std::vector<Piece>& pieces, Time last_begin) {
  return run_side_by_side(pieces.size(), DirectLine::kTransfers, [&](std::size_t at) -> Status {
    Piece& piece = pieces[at];
    piece.is_late = system_clock().now() > last_begin;
    if (piece.is_late) return {};
    Status read = objects.read(*piece.request, 0, piece.out, DirectLine::time_for(piece.out.size()));
    if (read) {
      piece.digest = digest_of(piece.out);
      piece.came = true;
      return {};
    }
    // The owner knows more of an object that is gone, or is another one.
    const Code code = read.error().code();
    return code == Code::not_found || code == Code::corrupt ? Status() : read;
  });
}

DirectReads::Sorted DirectReads::sort(const Manifest& manifest, std::span<const TensorRead> batch,
                                      const std::vector<Piece>& pieces) {
  Sorted sorted;
  auto piece = pieces.begin();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    std::vector<Digest> digests;
    bool came = piece != pieces.end() && piece->read == i;
    bool is_late = false;
    for (; piece != pieces.end() && piece->read == i; ++piece) {
      came = came && piece->came;
      is_late = is_late || piece->is_late;
      digests.push_back(piece->digest);
    }
    if (came && digest_of_parts(digests) == manifest.digests[batch[i].tensor]) continue;
    (is_late ? sorted.late : sorted.missed).push_back(batch[i]);
  }
  return sorted;
}

std::vector<Repository::TensorRead> DirectReads::read(const VersionRecord& record, std::span<const TensorRead> reads,
                                                      const AskSigned& ask) {
  std::vector<TensorRead> left;
  std::vector<TensorRead> large;
  for (const TensorRead& one : reads) (one.out.size() < DirectLine::kBytesMin ? left : large).push_back(one);
  bool goes_on = !large.empty() && line_.may_try();
  while (goes_on && !large.empty()) {
    const auto count = static_cast<std::ptrdiff_t>(std::min(large.size(), kSignedTensorsMax));
    const std::vector<TensorRead> batch(large.end() - count, large.end());
    SignReads question{.name = record.manifest.name, .id = record.manifest.id, .tensors = {}};
    for (const TensorRead& one : batch) question.tensors.push_back(one.tensor);
    const Time asked = system_clock().now();
    const Result<SignedReads> answer = ask(question);
    if (!answer) {
      line_.on_refused(answer.error());
      break;
    }
    const std::shared_ptr<SignedObjects> objects = line_.objects();
    if (objects == nullptr) break;
    std::vector<Piece> pieces = pieces_of(batch, *answer);
    if (!pieces.empty() && !line_.prove(*objects, *pieces.front().request)) break;
    if (!pieces.empty()) goes_on = line_.succeeded(fetch(*objects, pieces, asked + answer->life / 2));
    Sorted sorted = sort(record.manifest, batch, pieces);
    large.erase(large.end() - count, large.end());
    goes_on = goes_on && sorted.late.size() < batch.size();
    large.insert(large.end(), sorted.late.begin(), sorted.late.end());
    left.insert(left.end(), sorted.missed.begin(), sorted.missed.end());
  }
  left.insert(left.end(), large.begin(), large.end());
  return left;
}

}  // namespace freshet::rpc
