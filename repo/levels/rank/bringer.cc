// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/bringer.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"
#include "repo/levels/rank/level_thread.h"

namespace freshet::levels {
namespace {

/// What a rank holds on its way to the repository.
constexpr std::uint64_t kBringBatchBytes = std::uint64_t{16} << 20;
/// So long a batch may take at the limit on bytes per second; a put by parts ends when nothing comes for kPutLease.
constexpr std::uint64_t kBringBatchSeconds = 10;

/// The bytes [first, first + bytes.size()) of a piece's own bytes, as parts of tensor `tensor`; three at most.
/// REQUIRES: they are inside of the piece.
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

}  // namespace

void Bringer::join() {
  if (thread_.joinable()) thread_.join();
}

void Bringer::end() {
  const MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool Bringer::has_ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

void Bringer::take_request(const Question& request) {
  const MutexLock lock(mutex_);
  request_ = request;
  changed_.notify_all();
}

void Bringer::set_sending(VersionNumber number, std::uint64_t step) {
  const MutexLock lock(mutex_);
  sending_ = number;
  sending_step_ = step;
}

std::optional<std::uint64_t> Bringer::step_of_sending(const ShardKey& key) const {
  const MutexLock lock(mutex_);
  if (sending_ != key.version.number || key.ranks != job_.options.ranks) return std::nullopt;
  return sending_step_;
}

Result<Repository*> Bringer::repository() {
  if (repository_ == nullptr && job_.external != nullptr) repository_ = job_.external->repository();
  if (repository_ == nullptr) {
    FRESHET_ASSIGN(repository_, job_.options.external());
  }
  return repository_.get();
}

Status Bringer::bring(const Version& version, std::uint64_t step, const PutToken& token,
                      std::span<const std::uint32_t> tensors) {
  FRESHET_ASSIGN(Repository* const into, repository());
  const ShareCut& cut = *job_.cut;
  FRESHET_ASSIGN(const auto architecture, architecture_of(*cut.table));
  const ShardKey key{version, cut.rank, cut.ranks};
  FRESHET_ASSIGN(const ShardHeader header, job_.folders->read_header(key, ShardKind::own));
  if (header.tensors != cut.table->digest) {
    return fail(Code::corrupt, format("the shard {} is of other tensors", to_string(header.model, key)));
  }
  FRESHET_TRY(check_records(header, cut.pieces));

  std::vector<std::size_t> wanted;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < cut.pieces.size(); ++i) {
    if (!std::ranges::binary_search(tensors, cut.pieces[i].piece.tensor)) continue;
    wanted.push_back(i);
    total += cut.pieces[i].piece.bytes();
  }
  std::uint64_t batch_bytes_max = kBringBatchBytes;
  if (const std::uint64_t limit = job_.options.limit_bytes_per_second; limit != 0) {
    batch_bytes_max = std::clamp(limit * kBringBatchSeconds, kChunkBytes, kBringBatchBytes);
  }
  std::vector<std::vector<std::byte>> held;  // What the batch's parts are in.
  std::vector<TensorPart> batch;
  std::uint64_t batch_bytes = 0;
  std::uint64_t done = 0;
  AtHalf at_half(total, [&] { job_.point("external_half", step); });
  const auto send = [&]() -> Status {
    if (has_ended()) return fail(Code::cancelled, "the job ends");
    FRESHET_TRY(pace_.wait_for(batch_bytes, [this] { return has_ended(); }));
    if (!batch.empty()) FRESHET_TRY(into->part_puts().put_parts(token, batch));
    done += batch_bytes;
    at_half.reached(done);
    batch.clear();
    held.clear();
    batch_bytes = 0;
    return {};
  };
  for (const std::size_t i : wanted) {
    const Piece& piece = cut.pieces[i].piece;
    const std::string& name = cut.table->tensors[piece.tensor].spec.name;
    const std::optional<std::uint32_t> index = architecture->tensor_named(name);
    FRESHET_CHECK(index.has_value());
    const PieceRecord& record = header.records[i];
    const ShardKey store{header.versions[record.store], cut.rank, cut.ranks};
    std::uint64_t chunk = cut.first_chunks[i];
    for (std::uint64_t at = 0; at < piece.bytes(); ++chunk) {
      const ByteRange range{.offset = record.offset + at, .bytes = std::min(kChunkBytes, piece.bytes() - at)};
      if (batch_bytes + range.bytes > batch_bytes_max) FRESHET_TRY(send());
      FRESHET_ASSIGN(std::vector<std::byte> bytes, job_.folders->read(store, std::span(&range, 1), ShardKind::own));
      if (bytes.size() != range.bytes || digest_of(bytes) != header.digests[chunk]) {
        return fail(Code::corrupt, format("{}: the bytes of tensor {} do not match their digest",
                                          to_string(header.model, store), name));
      }
      held.push_back(std::move(bytes));
      for (TensorPart& part : parts_of_piece(piece, at, held.back(), *index)) {
        batch.push_back(std::move(part));
      }
      batch_bytes += range.bytes;
      at += range.bytes;
    }
  }
  return send();
}

void Bringer::run() {
  lower_own_priority();
  for (;;) {
    Question request;
    std::uint64_t step = 0;
    {
      const MutexLock lock(mutex_);
      while (!ended_ && !request_) changed_.wait(mutex_);
      if (ended_) return;
      request = *std::exchange(request_, std::nullopt);
      step = sending_step_;
    }
    const Version& version = request.key.version;
    const auto carry_out = [&]() -> Status {
      FRESHET_ASSIGN(const PutToken token, parse_put_token(request.token));
      return bring(version, step, token, request.tensors);
    };
    const Status brought = carry_out();
    job_.say(LevelNote::Kind::brought, version, step, Level::external,
             brought ? std::nullopt : std::optional<Error>(brought.error()));
  }
}

}  // namespace freshet::levels
