// SPDX-License-Identifier: Apache-2.0
/// A fetch of leased bytes: laid out in blocks, read a few blocks ahead, sent piece by piece.

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "repo/serve/server/read_desk.h"

namespace freshet::rpc {

using channel::FetchRequest;
using channel::OpenFetch;
using channel::Piece;

/// One thread at a time: the channel's, or one that makes an answer for it.
class ReadDesk::Fetch final : public OpenFetch {
 public:
  Fetch(ReadDesk& desk, LeaseId id, std::shared_ptr<Reading> reading)
      : desk_(desk), id_(id), reading_(std::move(reading)) {}
  ~Fetch() override;

  Result<bool> can_answer(std::size_t piece) override;
  Result<Answer> answer(std::size_t piece) override;
  void release(std::size_t piece) override;

 private:
  ReadDesk& desk_;
  const LeaseId id_;
  const std::shared_ptr<Reading> reading_;
};

Status ReadDesk::check(const std::vector<Piece>& pieces, const Subject& subject) const {
  FRESHET_TRY(source::check_pieces(pieces, "what was lent", [&](std::uint32_t part) {
    return part < subject.parts.size() ? std::optional(subject.parts[part].bytes) : std::nullopt;
  }));
  for (const Piece& piece : pieces) {
    if (piece.bytes <= limits_.block_bytes) continue;
    return fail(Code::invalid_argument, format("a piece has at most {} bytes", limits_.block_bytes));
  }
  return {};
}

void ReadDesk::lay_out(Reading& reading, std::uint64_t block_bytes) {
  for (std::size_t i = 0; i < reading.pieces.size(); ++i) {
    const std::uint64_t bytes = reading.pieces[i].bytes;
    if (reading.blocks.empty() || bytes > block_bytes - reading.blocks.back().bytes) {
      reading.blocks.push_back({.first = i});
    }
    Block& block = reading.blocks.back();
    reading.places.push_back(block.bytes);
    reading.block_of.push_back(static_cast<std::uint32_t>(reading.blocks.size() - 1));
    block.bytes += bytes;
    ++block.count;
  }
}

Result<std::unique_ptr<OpenFetch>> ReadDesk::open(const FetchRequest& request) {
  auto reading = std::make_shared<Reading>();
  {
    const MutexLock lock(mutex_);
    FRESHET_ASSIGN(reading->lease, leases_.living(request.session, request.lease, system_clock().now()));
  }
  const Subject& subject = reading->lease->subject;
  if (request.version != subject.version()) return fail(Code::invalid_argument, "the lease is for another version");
  FRESHET_TRY(check(request.pieces, subject));
  reading->pieces = request.pieces;
  lay_out(*reading, limits_.block_bytes);
  std::vector<Job> jobs;
  {
    const MutexLock lock(mutex_);
    if (reading->lease->closed) return fail(Code::failed_precondition, "the lease has ended");
    ++reading->lease->readers;
    feed(reading, jobs);
  }
  post(std::move(jobs));
  return std::make_unique<Fetch>(*this, request.lease, std::move(reading));
}

ReadDesk::Fetch::~Fetch() {
  std::vector<Job> jobs;
  {
    const MutexLock lock(desk_.mutex_);
    reading_->abandoned = true;
    for (Block& block : reading_->blocks) {
      if (block.step == Step::ready) desk_.give_back(*reading_, block);
    }
    desk_.leases_.end_read(id_);
    desk_.feed_hungry(jobs);
  }
  desk_.post(std::move(jobs));
}

Result<bool> ReadDesk::Fetch::can_answer(std::size_t piece) {
  const MutexLock lock(desk_.mutex_);
  if (reading_->lease->closed) return fail(Code::failed_precondition, "the lease has ended");
  if (!reading_->failed) return fail(reading_->failed.error());
  return reading_->blocks[reading_->block_of[piece]].step == Step::ready;
}

Result<OpenFetch::Answer> ReadDesk::Fetch::answer(std::size_t piece) {
  FRESHET_ASSIGN(const bool is_there, can_answer(piece));
  if (!is_there) return fail(Code::unavailable, "the bytes were not read yet");
  const Block& block = reading_->blocks[reading_->block_of[piece]];
  const Bytes bytes = Bytes(block.memory.memory).subspan(reading_->places[piece], reading_->pieces[piece].bytes);
  return Answer{.encoding = channel::Encoding::dense, .bytes = bytes, .coming = nullptr};
}

void ReadDesk::Fetch::release(std::size_t piece) {
  std::vector<Job> jobs;
  {
    const MutexLock lock(desk_.mutex_);
    Block& block = reading_->blocks[reading_->block_of[piece]];
    if (++block.sent < block.count) return;
    desk_.give_back(*reading_, block);
    reading_->lease->moved = system_clock().now();
    desk_.feed(reading_, jobs);
    desk_.feed_hungry(jobs);
  }
  desk_.post(std::move(jobs));
}

bool ReadDesk::has_room(SessionId session, std::uint64_t bytes) const {
  const auto owner = sessions_.find(session);
  if (owner == sessions_.end()) return false;
  const std::uint64_t share = std::max(limits_.staging_bytes / 2, limits_.block_bytes);
  return sum_of_key(owner->second).staged + bytes <= share;
}

void ReadDesk::feed(const std::shared_ptr<Reading>& reading, std::vector<Job>& jobs) {
  Lease& lease = *reading->lease;
  while (reading->next < reading->blocks.size() && reading->failed && !reading->abandoned && !lease.closed) {
    Block& block = reading->blocks[reading->next];
    if (reading->staged != 0 && reading->staged + block.bytes > limits_.ahead_bytes) return;
    // Bytes without a length have no place of their own, and need none.
    std::optional<TouchedMemory::Piece> memory = TouchedMemory::Piece{};
    if (block.bytes != 0) {
      memory = has_room(lease.session, block.bytes) ? staging_->take(block.bytes) : std::nullopt;
    }
    if (!memory) {
      if (!std::exchange(reading->hungry, true)) hungry_.push_back(reading);
      return;
    }
    block.memory = *memory;
    block.step = Step::reading;
    reading->staged += block.bytes;
    lease.staged += block.bytes;
    lease.moved = system_clock().now();
    sessions_[lease.session].staged += block.bytes;
    staged_ += block.bytes;
    jobs.emplace_back(reading, reading->next++);
  }
}

// In the order in which they came; those that find nothing again stand at the end of the line.
void ReadDesk::feed_hungry(std::vector<Job>& jobs) {
  for (std::size_t left = hungry_.size(); left > 0; --left) {
    const std::shared_ptr<Reading> reading = hungry_.front().lock();
    hungry_.pop_front();
    if (reading == nullptr) continue;
    reading->hungry = false;
    feed(reading, jobs);
  }
}

void ReadDesk::give_back(Reading& reading, Block& block) {
  if (block.bytes != 0) staging_->give_back(block.memory.segment);
  block.step = Step::sent;
  reading.staged -= block.bytes;
  reading.lease->staged -= block.bytes;
  staged_ -= block.bytes;
  if (const auto owner = sessions_.find(reading.lease->session); owner != sessions_.end()) {
    owner->second.staged -= block.bytes;
  }
}

void ReadDesk::post(std::vector<Job> jobs) {
  for (Job& job : jobs) {
    readers_.post([this, one = std::move(job)] { read(one); });
  }
}

void ReadDesk::read(const Job& job) {
  const auto& [reading, index] = job;
  Block& block = reading->blocks[index];
  // The block is this thread's until its step is another: nobody else touches its memory.
  const Status done = read_block(*reading, block);
  std::vector<Job> jobs;
  {
    const MutexLock lock(mutex_);
    if (!done && reading->failed) reading->failed = done;
    reading->lease->moved = system_clock().now();
    block.step = Step::ready;
    if (reading->abandoned) {
      give_back(*reading, block);
      feed_hungry(jobs);
    }
  }
  post(std::move(jobs));
  if (look_again_) look_again_();
}

Status ReadDesk::read_block(const Reading& reading, const Block& block) const {
  for (std::size_t i = block.first; i < block.first + block.count; ++i) {
    const Piece& piece = reading.pieces[i];
    const MutableBytes out = block.memory.memory.subspan(reading.places[i], piece.bytes);
    FRESHET_TRY(read_piece(reading.lease->subject, piece, out));
  }
  return {};
}

Status ReadDesk::read_piece(const Subject& subject, const Piece& piece, MutableBytes out) const {
  const Part& part = subject.parts[piece.tensor];
  const std::uint64_t offset = part.offset + piece.offset;
  if (subject.record == nullptr) return repository_.read_segment_range(part.segment, offset, out);
  return repository_.read_range(*subject.record, part.tensor, offset, out);
}

}  // namespace freshet::rpc
