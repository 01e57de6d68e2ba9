// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/part_bringer.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::levels {

Result<std::shared_ptr<const Architecture>> architecture_of(const TensorTable& table) {
  std::vector<TensorSpec> specs;
  for (const LaidTensor& tensor : table.tensors) specs.push_back(tensor.spec);
  return Architecture::guess_chain(std::move(specs));
}

std::vector<TensorPart> parts_of_piece(const Piece& piece, std::uint64_t first, Bytes bytes, std::uint32_t tensor) {
  std::vector<TensorPart> parts;
  while (!bytes.empty()) {
    const std::uint64_t run = first / piece.length;
    const std::uint64_t in_run = first % piece.length;
    TensorPart part{.tensor = tensor,
                    .offset = run * piece.stride + piece.begin + in_run,
                    .length = std::min<std::uint64_t>(piece.length - in_run, bytes.size())};
    if (part.length == piece.length && bytes.size() >= 2 * piece.length) {
      part.count = bytes.size() / piece.length;
      part.stride = piece.stride;
    }
    part.bytes = bytes.first(part.count * part.length);
    bytes = bytes.subspan(part.bytes.size());
    first += part.bytes.size();
    parts.push_back(part);
  }
  return parts;
}

Result<PartBringer> PartBringer::open(std::shared_ptr<Repository> repository, const ShardFolders& folders,
                                      const ShareCut& cut, std::uint64_t batch_bytes) {
  FRESHET_ASSIGN(const auto architecture, architecture_of(*cut.table));
  PartBringer bringer(std::move(repository), folders, cut, batch_bytes);
  for (const LaidTensor& tensor : cut.table->tensors) {
    const std::optional<std::uint32_t> index = architecture->tensor_named(tensor.spec.name);
    FRESHET_CHECK(index.has_value());
    bringer.in_architecture_.push_back(*index);
  }
  return bringer;
}

Status PartBringer::bring(const Version& version, const PutToken& token, std::span<const std::uint32_t> tensors,
                          Pace& pace, const Hooks& hooks) {
  const ShardKey key{version, cut_->rank, cut_->ranks};
  FRESHET_ASSIGN(const std::vector<std::byte> head, folders_->read_head(key, ShardKind::own));
  FRESHET_ASSIGN(const ShardHeader header, decode_shard_head(head));
  if (header.key != key || header.tensors != cut_->table->digest) {
    return fail(Code::corrupt, format("the folder has another shard as {}", to_string(header.model, key)));
  }
  FRESHET_TRY(check_records(header, cut_->pieces));

  std::vector<std::size_t> wanted;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < cut_->pieces.size(); ++i) {
    if (!std::ranges::binary_search(tensors, cut_->pieces[i].piece.tensor)) continue;
    wanted.push_back(i);
    total += cut_->pieces[i].piece.bytes();
  }
  std::vector<std::vector<std::byte>> held;  // What the batch's parts are in.
  std::vector<TensorPart> batch;
  std::uint64_t batch_bytes = 0;
  std::uint64_t done = 0;
  AtHalf at_half(total, hooks.half);
  const auto send = [&]() -> Status {
    if (hooks.stop && hooks.stop()) return fail(Code::cancelled, "the job ends");
    FRESHET_TRY(pace.wait_for(batch_bytes, hooks.stop));
    if (!batch.empty()) FRESHET_TRY(repository_->part_puts().put_parts(token, batch));
    done += batch_bytes;
    at_half.reached(done);
    batch.clear();
    held.clear();
    batch_bytes = 0;
    return {};
  };
  for (const std::size_t i : wanted) {
    const Piece& piece = cut_->pieces[i].piece;
    const PieceRecord& record = header.records[i];
    const ShardKey store{header.versions[record.store], cut_->rank, cut_->ranks};
    std::uint64_t chunk = cut_->first_chunks[i];
    for (std::uint64_t at = 0; at < piece.bytes(); ++chunk) {
      const ByteRange range{.offset = record.offset + at, .bytes = std::min(kChunkBytes, piece.bytes() - at)};
      if (batch_bytes + range.bytes > batch_bytes_) FRESHET_TRY(send());
      FRESHET_ASSIGN(std::vector<std::byte> bytes, folders_->read(store, std::span(&range, 1), ShardKind::own));
      if (bytes.size() != range.bytes || digest_of(bytes) != header.digests[chunk]) {
        return fail(Code::corrupt,
                    format("{}: the bytes of tensor {} do not match their digest", to_string(header.model, store),
                           cut_->table->tensors[piece.tensor].spec.name));
      }
      held.push_back(std::move(bytes));
      for (TensorPart& part : parts_of_piece(piece, at, held.back(), in_architecture_[piece.tensor])) {
        batch.push_back(std::move(part));
      }
      batch_bytes += range.bytes;
      at += range.bytes;
    }
  }
  return send();
}

}  // namespace freshet::levels
