// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/direct_puts.h"

#include <algorithm>
#include <utility>

#include "repo/local/side_by_side.h"

namespace freshet::rpc {
namespace {

/// Of one question, so that its requests do not end while bytes go over a slow line.
constexpr std::uint64_t kBatchBytes = std::uint64_t{1} << 30;

std::size_t parts_in(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + kDigestPartBytes - 1) / kDigestPartBytes);
}

}  // namespace

std::vector<std::uint32_t> DirectPuts::large_of(const Manifest& manifest, std::vector<std::uint32_t> wanted) {
  const auto tensors = manifest.architecture->tensors();
  std::erase_if(wanted, [&](std::uint32_t tensor) {
    return tensor >= tensors.size() || tensors[tensor].bytes() < DirectLine::kBytesMin ||
           parts_in(tensors[tensor].bytes()) > kSignedTensorsMax;
  });
  return wanted;
}

std::vector<DirectPuts::Piece> DirectPuts::next_pieces(std::vector<std::uint32_t>& tensors, const Manifest& manifest,
                                                       const BytesOf& bytes_of) {
  std::vector<Piece> pieces;
  std::uint64_t total = 0;
  while (!tensors.empty()) {
    const std::uint64_t size = manifest.architecture->tensors()[tensors.back()].bytes();
    const bool is_full = pieces.size() + parts_in(size) > kSignedTensorsMax || total + size > kBatchBytes;
    if (!pieces.empty() && is_full) break;
    const Result<Bytes> bytes = bytes_of(tensors.back());
    if (!bytes || bytes->size() != size) {
      tensors.clear();  // The put itself says why it ends.
      break;
    }
    for (std::uint64_t at = 0; at < size; at += kDigestPartBytes) {
      const auto length = static_cast<std::size_t>(std::min(kDigestPartBytes, size - at));
      pieces.push_back({.tensor = tensors.back(), .bytes = bytes->subspan(at, length), .part = {}});
    }
    total += size;
    tensors.pop_back();
  }
  return pieces;
}

Status DirectPuts::prove(std::vector<Piece>& pieces, const Manifest& manifest) {
  FRESHET_TRY(run_side_by_side(pieces.size(), DirectLine::kTransfers, [&](std::size_t at) -> Status {
    Piece& piece = pieces[at];
    // Before the upload, and the checksum first: the store proves that it got the bytes of this moment, or the reader
    // that they are not the digest's.
    piece.part = {.object = {}, .bytes = piece.bytes.size(), .crc32c = crc32c_of(piece.bytes), .digest = {}};
    piece.part.digest = digest_of(piece.bytes);
    return {};
  }));
  std::vector<Piece> proved;
  for (auto at = pieces.begin(); at != pieces.end();) {
    const auto end = std::find_if(at, pieces.end(), [&](const Piece& one) { return one.tensor != at->tensor; });
    std::vector<Digest> digests;
    for (auto piece = at; piece != end; ++piece) digests.push_back(piece->part.digest);
    if (digest_of_parts(digests) == manifest.digests[at->tensor]) proved.insert(proved.end(), at, end);
    at = end;
  }
  pieces = std::move(proved);
  return {};
}

Status DirectPuts::upload(SignedObjects& objects, std::vector<Piece>& pieces, const SignedUploads& signed_uploads,
                          Time last_begin) {
  return run_side_by_side(pieces.size(), DirectLine::kTransfers, [&](std::size_t at) -> Status {
    Piece& piece = pieces[at];
    if (system_clock().now() > last_begin) return {};
    const auto& [object, request] = signed_uploads.uploads[at];
    Creation made = objects.create(request, piece.bytes, DirectLine::time_for(piece.bytes.size()));
    // The name was drawn: what stands there was made by an earlier request of this very call.
    piece.came = made.outcome == Created::created || made.outcome == Created::exists;
    piece.part.object = object;
    return piece.came ? Status() : fail(std::move(made.error));
  });
}

void DirectPuts::append_whole(std::vector<BroughtTensor>& brought, std::vector<Piece>& pieces) {
  for (auto at = pieces.begin(); at != pieces.end();) {
    const auto end = std::find_if(at, pieces.end(), [&](const Piece& one) { return one.tensor != at->tensor; });
    const bool came = std::all_of(at, end, [](const Piece& one) { return one.came; });
    if (came) brought.push_back({.tensor = at->tensor, .parts = {}});
    for (; at != end; ++at) {
      if (came) brought.back().parts.push_back(std::move(at->part));
    }
  }
}

bool DirectPuts::signs(const Owner& owner) {
  if (line_.is_proven()) return true;
  // For nothing: a short question, before the manifest goes over the connection twice.
  const auto answer = owner.sign({});
  if (!answer) line_.on_refused(answer.error());
  return answer.has_value();
}

std::vector<BroughtTensor> DirectPuts::bring(const Manifest& manifest, const Repository::PutOptions& options,
                                             const BytesOf& bytes_of, const Owner& owner) {
  std::vector<BroughtTensor> brought;
  // A difference onto the ancestor's tensor is made by the owner, who needs the bytes.
  if (!options.has_weights || options.deltas || options.placed) return brought;
  std::vector<std::uint32_t> own;
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    if (manifest.owners[tensor].writer == manifest.id) own.push_back(tensor);
  }
  if (large_of(manifest, std::move(own)).empty()) return brought;
  if (!line_.may_put() || !signs(owner)) return brought;
  const std::shared_ptr<SignedObjects> objects = line_.objects();
  if (objects == nullptr) return brought;
  Result<std::vector<std::uint32_t>> wanted = owner.wanted();
  if (!wanted) return brought;
  std::vector<std::uint32_t> tensors = large_of(manifest, std::move(*wanted));
  std::ranges::reverse(tensors);
  while (!tensors.empty()) {
    std::vector<Piece> pieces = next_pieces(tensors, manifest, bytes_of);
    if (!prove(pieces, manifest)) break;
    if (pieces.empty()) continue;
    SignUploads question;
    for (const Piece& piece : pieces) question.parts.push_back({piece.part.bytes, piece.part.crc32c});
    const Time asked = system_clock().now();
    const auto answer = owner.sign(question);
    if (!answer) line_.on_refused(answer.error());
    if (!answer || answer->all.uploads.size() != pieces.size()) break;
    if (!line_.prove(*objects, answer->all.probe)) break;
    const bool goes_on = line_.uploaded(upload(*objects, pieces, answer->all, asked + answer->life / 2));
    append_whole(brought, pieces);
    if (!goes_on) break;
  }
  return brought;
}

}  // namespace freshet::rpc
