// SPDX-License-Identifier: Apache-2.0
#include "transport/source/fetch_desk.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::source {
namespace {

/// How far an answer has come that is read where it comes to.
class Coming final : public channel::ComingAnswer {
 public:
  Coming(const std::shared_ptr<ComingVersion>& version, const channel::Piece& piece, std::uint64_t turn)
      : version_(version), piece_(piece), turn_(turn) {}

  Result<std::uint64_t> bytes_there() const override {
    FRESHET_ASSIGN(const ComingVersion::Look look, version_->look(piece_.tensor, /*for_more=*/true));
    if (look.turn != turn_) {
      return fail(Code::unavailable, "the relay fetches the tensor again; ask again");
    }
    if (look.state == ComingVersion::State::there) return std::numeric_limits<std::uint64_t>::max();
    return look.came - std::min(look.came, piece_.offset);
  }

 private:
  const std::shared_ptr<ComingVersion> version_;
  const channel::Piece piece_;
  const std::uint64_t turn_;
};

}  // namespace

class FetchDesk::Fetch final : public channel::OpenFetch {
 public:
  Fetch(FetchDesk& desk, channel::FetchRequest request, std::shared_ptr<Row> row)
      : desk_(desk), request_(std::move(request)), row_(std::move(row)), lease_(&row_->lease) {}
  ~Fetch() override { desk_.end_read(request_.lease); }

  Result<bool> can_answer(std::size_t index) override {
    if (lease_->coming == nullptr) return true;
    const channel::Piece& piece = request_.pieces.at(index);
    FRESHET_ASSIGN(const ComingVersion::Look look, lease_->coming->look(piece.tensor, /*for_more=*/true));
    return look.state == State::dense || look.state == State::there || is_wanted_delta(piece, look);
  }

  Result<Answer> answer(std::size_t index) override {
    FRESHET_CHECK(index < request_.pieces.size());
    const channel::Piece& piece = request_.pieces[index];
    if (lease_->coming == nullptr) return answer_from(index, lease_->tensors[piece.tensor]);
    FRESHET_ASSIGN(const ComingVersion::Look look, lease_->coming->look(piece.tensor, /*for_more=*/false));
    auto coming = std::make_shared<const Coming>(lease_->coming, piece, look.turn);
    if (is_wanted_delta(piece, look)) {
      payloads_[index] = look.payload;
      return Answer{.encoding = channel::Encoding::delta, .bytes = *look.payload, .coming = std::move(coming)};
    }
    if (look.state == State::there) return answer_from(index, look.memory);
    if (look.state != State::dense) return fail(Code::unavailable, "the relay fetches the tensor again; ask again");
    return Answer{.encoding = channel::Encoding::dense,
                  .bytes = look.memory.subspan(piece.offset, piece.bytes),
                  .coming = std::move(coming),
                  .memory = lease_->memory};
  }

  void sent(std::uint64_t bytes) override { row_->sent += bytes; }
  void release(std::size_t index) override { payloads_.erase(index); }

 private:
  using State = ComingVersion::State;

  /// A delta that comes, or came, from the base that the fetcher has.
  static bool is_wanted_delta(const channel::Piece& piece, const ComingVersion::Look& look) {
    return look.payload != nullptr && piece.base.has_value() && piece.base == look.base;
  }

  Result<Answer> answer_from(std::size_t index, Bytes bytes) {
    const channel::Piece& piece = request_.pieces[index];
    if (piece.base && lease_->memory == MemoryKind::host) {
      if (const DeltaCache::Payload delta = delta_of(piece, bytes)) {
        const Bytes payload = *delta;
        payloads_[index] = delta;
        return Answer{.encoding = channel::Encoding::delta, .bytes = payload};
      }
    }
    return Answer{.encoding = channel::Encoding::dense,
                  .bytes = bytes.subspan(piece.offset, piece.bytes),
                  .memory = lease_->memory};
  }

  /// Nothing when the base is not here, is not of this tensor's form, or dense is better.
  DeltaCache::Payload delta_of(const channel::Piece& piece, Bytes target) {
    const auto base = lease_->segments->pin(*piece.base);
    if (!base || base->bytes().size() != target.size()) return nullptr;
    const DeltaSpec spec{.dtype = lease_->manifest->architecture->tensors()[piece.tensor].dtype,
                         .base = *piece.base,
                         .target = lease_->manifest->owners[piece.tensor]};
    return desk_.deltas_.get(spec, base->bytes(), target, request_.link_bytes_per_second);
  }

  FetchDesk& desk_;
  const channel::FetchRequest request_;
  const std::shared_ptr<Row> row_;
  const Lease* const lease_;
  std::unordered_map<std::size_t, DeltaCache::Payload> payloads_;
};

void FetchDesk::open_lease(protocol::LeaseId id, Lease lease) {
  FRESHET_CHECK(lease.manifest != nullptr && lease.segments != nullptr);
  FRESHET_CHECK(lease.coming != nullptr || lease.tensors.size() == lease.manifest->owners.size());
  auto row = std::make_shared<Row>();
  row->session = lease.session;
  row->lease = std::move(lease);
  MutexLock lock(mutex_);
  leases_.open(id, std::move(row));
}

std::vector<std::pair<protocol::LeaseId, std::uint64_t>> FetchDesk::take_sent() {
  std::vector<std::pair<protocol::LeaseId, std::uint64_t>> all;
  MutexLock lock(mutex_);
  for (const auto& [id, row] : leases_.all()) {
    if (const std::uint64_t bytes = row->sent.exchange(0); bytes > 0) all.emplace_back(id, bytes);
  }
  return all;
}

void FetchDesk::close_lease(protocol::LeaseId id) {
  std::shared_ptr<Row> ended;
  {
    MutexLock lock(mutex_);
    ended = leases_.close(id);
  }
  if (ended != nullptr) on_closed_(id);
}

void FetchDesk::end_read(protocol::LeaseId id) {
  std::shared_ptr<Row> ended;
  {
    MutexLock lock(mutex_);
    ended = leases_.end_read(id);
    if (ended != nullptr) read_ended_.notify_all();
  }
  if (ended != nullptr) on_closed_(id);
}

std::set<protocol::SessionId> FetchDesk::close_all_of(const ServedSegments& segments) {
  const auto is_of = [&](const Row& row) { return row.is_of(segments); };
  std::vector<protocol::LeaseId> ids;
  {
    MutexLock lock(mutex_);
    ids = leases_.ids_of(is_of);
  }
  for (const protocol::LeaseId id : ids) close_lease(id);
  std::set<protocol::SessionId> reading;
  MutexLock lock(mutex_);
  for (const protocol::LeaseId id : leases_.ids_of(is_of)) reading.insert(leases_.all().at(id)->session);
  return reading;
}

void FetchDesk::wait_unread(const ServedSegments& segments) {
  MutexLock lock(mutex_);
  while (!leases_.ids_of([&](const Row& row) { return row.is_of(segments); }).empty()) read_ended_.wait(mutex_);
}

void FetchDesk::keep_deltas_of(const ComingVersion& coming) {
  const Manifest& manifest = coming.manifest();
  for (ComingVersion::Delta& delta : coming.deltas()) {
    deltas_.put({.dtype = manifest.architecture->tensors()[delta.tensor].dtype,
                 .base = delta.base,
                 .target = manifest.owners[delta.tensor]},
                std::move(delta.payload));
  }
}

Result<std::unique_ptr<channel::OpenFetch>> FetchDesk::open(const channel::FetchRequest& request) {
  std::shared_ptr<Row> row;
  {
    MutexLock lock(mutex_);
    auto living = leases_.living(request.session, request.lease, Time{});
    const bool is_named = living && (*living)->lease.manifest->name.number == request.version;
    if (!is_named) {
      // The same words whatever is wrong: who does not know the lease learns nothing about it.
      return fail(Code::failed_precondition,
                  format("fetch version {}: the lease does not exist, or it has ended", request.version));
    }
    row = std::move(*living);
    if (row->lease.coming != nullptr && row->lease.coming->is_given_up()) {
      return fail(Code::unavailable, format("fetch version {}: the relay gave it up", request.version));
    }
    ++row->readers;
  }
  auto fetch = std::make_unique<Fetch>(*this, request, row);
  const auto tensors = row->lease.manifest->architecture->tensors();
  FRESHET_TRY(check_pieces(request.pieces, to_string(row->lease.manifest->name), [&](std::uint32_t tensor) {
    return tensor < tensors.size() ? std::optional(tensors[tensor].bytes()) : std::nullopt;
  }));
  return fetch;
}

}  // namespace freshet::source
