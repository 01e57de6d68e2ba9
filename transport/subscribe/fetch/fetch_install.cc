// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/fetch_install.h"

#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/delta/element_delta.h"

namespace freshet::detail {
namespace {

using channel::Encoding;

/// Fewer bytes say little about a link.
constexpr std::uint64_t kMeasuredBytesMin = std::uint64_t{1} << 20;

/// A peer's no is never about the version itself: only its bytes can convict it.
Error as_passing(Error error) {
  switch (error.code()) {
    case Code::unavailable:
    case Code::timed_out:
    case Code::out_of_space:
    case Code::io_error:
    case Code::cancelled: return error;
    default: return Error(Code::unavailable, error.message());
  }
}

}  // namespace

FetchInstall::FetchInstall(Options options, Job job, const FetchedVersion* served, FetchChannel& channel,
                           FetchArena& arena, KeptDeltas& kept)
    : options_(options),
      job_(std::move(job)),
      served_(served == nullptr ? std::nullopt : std::optional(*served)),
      channel_(channel),
      arena_(arena),
      kept_(kept) {}

FetchInstall::~FetchInstall() {
  FRESHET_CHECK(is_quiet());
  for (const auto& segment : segments_) {
    if (segment) arena_.let_go(*segment);
  }
  arena_.let_go(bases_);
}

Status FetchInstall::start(Time now) {
  const Manifest& wanted = *job_.manifest;
  const Manifest* served = served_ ? served_->manifest.get() : nullptr;
  const auto has = [this](const Content& content) { return arena_.find(content).has_value(); };
  const FetchPlan plan = plan_fetch(wanted, served, has, options_.limits);
  segments_.resize(wanted.owners.size());
  for (const std::uint32_t tensor : plan.present) {
    const auto segment = arena_.find(content_of(wanted, tensor));
    // One content may be free once and wanted by two tensors: by then it is live, and found again.
    FRESHET_CHECK(segment.has_value());
    arena_.refer(*segment);
    segments_[tensor] = segment;
    show_proved(tensor, *segment);
  }
  FRESHET_TRY(find_room(plan));
  FRESHET_TRY(prove_empty(plan));
  std::size_t first = 0;
  for (const std::size_t pieces : plan.batches) {
    Batch batch(pieces);
    for (std::size_t& item : batch) item = first++;
    to_ask_.push_back(std::move(batch));
  }
  started_ = true;
  started_at_ = now;
  deadline_ = now + options_.patience;
  carry_on(now);
  return {};
}

bool FetchInstall::can_start_from(std::uint32_t tensor) const {
  const Content* known = arena_.content(served_->segments[tensor]);
  return options_.deltas && known != nullptr && *known == content_of(*served_->manifest, tensor);
}

Status FetchInstall::find_room(const FetchPlan& plan) {
  std::vector<FetchArena::Want> wants;
  for (const PlannedFetch& fetch : plan.fetch) wants.push_back({.tensor = fetch.tensor, .bytes = fetch.bytes});
  for (const std::uint32_t tensor : plan.empty) wants.push_back({.tensor = tensor, .bytes = 0});
  // What is not taken has a segment without bytes, of which nothing is known.
  for (const std::uint32_t tensor : plan.left) wants.push_back({.tensor = tensor, .bytes = 0});
  const Status room = arena_.acquire(wants);
  for (const FetchArena::Want& want : wants) segments_[want.tensor] = want.segment;
  FRESHET_TRY(room);
  items_.reserve(plan.fetch.size());
  for (std::size_t i = 0; i < plan.fetch.size(); ++i) {
    const PlannedFetch& fetch = plan.fetch[i];
    Item& item = items_.emplace_back();
    item.tensor = fetch.tensor;
    item.bytes = fetch.bytes;
    item.segment = *wants[i].segment;
    if (!fetch.base || !can_start_from(fetch.tensor)) continue;
    item.base = served_->segments[fetch.tensor];
    arena_.refer(*item.base);
    bases_.push_back(*item.base);
  }
  unproved_ = items_.size();
  return {};
}

Status FetchInstall::prove_empty(const FetchPlan& plan) {
  for (const std::uint32_t tensor : plan.empty) {
    const Content content = content_of(*job_.manifest, tensor);
    if (content.digest != digest_of({})) {
      return fail(Code::corrupt, format("tensor {} has no bytes, but not the digest of no bytes",
                                        job_.manifest->architecture->tensors()[tensor].name));
    }
    arena_.prove(*segments_[tensor], content);
    show_proved(tensor, *segments_[tensor]);
  }
  return {};
}

void FetchInstall::carry_on(Time now) {
  if (tally_.bytes_moved != bytes_seen_) {
    bytes_seen_ = tally_.bytes_moved;
    deadline_ = now + options_.patience;
  }
  if (!is_over()) ask_for_more();
  if (!is_over() && now >= deadline_) {
    deadline_ = now + options_.patience;
    end_with(Error(Code::timed_out, "no byte came in time"));
  }
  if (error_ && !std::exchange(cancelled_, true)) {
    to_ask_.clear();
    std::vector<std::uint64_t> under_way;
    for (const auto& [request, batch] : requests_) under_way.push_back(request);
    for (const std::uint64_t request : under_way) channel_.client->cancel(request);
  }
  if (!error_ && is_over() && is_quiet()) measure_link(now);
}

void FetchInstall::ask_for_more() {
  while (!to_ask_.empty() && requests_.size() < options_.requests_in_flight) {
    if (!ask(to_ask_.front())) return;
    to_ask_.pop_front();
  }
}

/// False when it has to wait, or failed.
bool FetchInstall::ask(const Batch& batch) {
  channel::FetchRequest request{.request = channel_.last_request + 1,
                                .session = job_.session,
                                .lease = job_.lease,
                                .version = job_.manifest->name.number,
                                .link_bytes_per_second = channel_.link_bytes_per_second};
  for (const std::size_t index : batch) {
    const Item& item = items_[index];
    channel::Piece piece{.tensor = item.tensor, .offset = 0, .bytes = item.bytes};
    if (item.base) piece.base = served_->manifest->owners[item.tensor];
    request.pieces.push_back(piece);
  }
  const std::uint64_t id = request.request;
  // Known before it is sent, in case it is answered at once.
  requests_[id] = batch;
  ++channel_.last_request;
  for (const std::size_t index : batch) items_[index].request = id;
  const Status asked = channel_.client->fetch(std::move(request), *this);
  if (asked) return true;
  for (const std::size_t index : batch) items_[index].request = 0;
  requests_.erase(id);
  if (asked.error().code() != Code::out_of_space) end_with(as_passing(asked.error()));
  return false;
}

FetchInstall::Item& FetchInstall::item_of(std::uint64_t request, std::size_t piece) {
  const auto batch = requests_.find(request);
  FRESHET_CHECK(batch != requests_.end() && piece < batch->second.size());
  return items_[batch->second[piece]];
}

Result<channel::Place> FetchInstall::place(std::uint64_t request, std::size_t piece, Encoding encoding,
                                           std::uint64_t bytes) {
  Item& item = item_of(request, piece);
  if (error_) return fail(Code::cancelled, "the fetch was given up");
  if (item.proved || item.received > 0 || item.request != request) {
    return fail(Code::corrupt, "a piece was answered twice");
  }
  item.encoding = encoding;
  if (encoding == Encoding::dense) {
    if (bytes != item.bytes) return fail(Code::corrupt, format("{} bytes came for a tensor of {}", bytes, item.bytes));
    item.memory = arena_.write(item.segment);
    show_begin(item);
    return item.memory;
  }
  if (!item.base || bytes > item.bytes) return fail(Code::corrupt, "a delta came that was not asked for");
  if (bytes > options_.payload_bytes_max - std::min(payload_bytes_, options_.payload_bytes_max)) {
    item.refused = true;
    return fail(Code::out_of_space, format("no room for a delta of {} bytes", bytes));
  }
  payload_bytes_ += bytes;
  item.payload = std::make_shared<std::vector<std::byte>>(bytes);
  show_begin(item);
  return MutableBytes(*item.payload);
}

void FetchInstall::show_begin(Item& item) {
  // Whatever was no proof once is shown when it is proved.
  if (job_.coming == nullptr || item.retried) return;
  item.shown = true;
  if (item.encoding == Encoding::delta) {
    return job_.coming->begin_delta(item.tensor, served_->manifest->owners[item.tensor], item.payload);
  }
  arena_.refer_unproved(item.segment);
  job_.coming->keeps(item.segment);
  job_.coming->begin_dense(item.tensor, item.memory);
}

void FetchInstall::show_proved(std::uint32_t tensor, SegmentIndex segment) {
  if (job_.coming == nullptr) return;
  arena_.refer(segment);
  job_.coming->keeps(segment);
  job_.coming->proved(tensor, arena_.bytes(segment));
}

bool FetchInstall::leave_shown(Item& item) {
  if (!std::exchange(item.shown, false)) return true;
  job_.coming->restart(item.tensor);
  if (item.encoding == Encoding::delta) return true;
  FetchArena::Want want{.tensor = item.tensor, .bytes = item.bytes};
  if (!arena_.acquire({&want, 1})) return false;
  arena_.let_go(item.segment);
  item.segment = *want.segment;
  segments_[item.tensor] = want.segment;
  return true;
}

void FetchInstall::on_bytes(std::uint64_t request, std::size_t piece, std::uint64_t bytes) {
  Item& item = item_of(request, piece);
  if (bytes <= item.received || item.request != request) return;
  const bool at_once = item.received == 0 && bytes == item.bytes;
  if (item.encoding == Encoding::dense && !at_once) {
    if (!item.digest) item.digest.emplace();
    item.digest->update(Bytes(item.memory).subspan(item.received, bytes - item.received));
  }
  tally_.bytes_moved += bytes - item.received;
  item.received = bytes;
  if (item.shown) job_.coming->grew(item.tensor, bytes);
}

void FetchInstall::on_piece_done(std::uint64_t request, std::size_t piece) {
  Item& item = item_of(request, piece);
  const std::uint64_t whole = item.encoding == Encoding::dense ? item.bytes : item.payload->size();
  on_bytes(request, piece, whole);
  if (error_ || item.proved || item.request != request) return;
  if (item.encoding == Encoding::dense) {
    prove_dense(item);
  } else {
    prove_delta(item);
  }
}

void FetchInstall::prove_dense(Item& item) {
  const Content content = content_of(*job_.manifest, item.tensor);
  const Digest digest = item.digest ? item.digest->finish() : digest_of(item.memory);
  item.digest.reset();
  if (digest != content.digest) {
    return on_proof_failed(item, Error(Code::corrupt, "its bytes do not match their digest"));
  }
  arena_.prove(item.segment, content);
  show_proved(item.tensor, item.segment);
  item.proved = true;
  --unproved_;
  ++tally_.tensors;
}

void FetchInstall::prove_delta(Item& item) {
  payload_bytes_ -= item.payload->size();
  const Status written = write_delta(item);
  if (!written) {
    item.payload.reset();
    return on_proof_failed(item, written.error());
  }
  const Content content = content_of(*job_.manifest, item.tensor);
  arena_.prove(item.segment, content);
  show_proved(item.tensor, item.segment);
  if (options_.for_device) {
    for_device_.resize(segments_.size());
    const DeltaSpec spec{.dtype = job_.manifest->architecture->tensors()[item.tensor].dtype,
                         .base = served_->manifest->owners[item.tensor],
                         .target = content.name};
    const std::uint64_t room = options_.for_device_bytes_max - for_device_bytes_;
    auto& kept = for_device_[item.tensor] = ReceivedDelta::make(spec, item.bytes, *item.payload, room);
    if (kept != nullptr) for_device_bytes_ += kept->table_bytes();
  }
  // What is shown is read by others.
  std::vector<std::byte> payload = job_.coming != nullptr ? *item.payload : std::move(*item.payload);
  item.payload.reset();
  kept_.keep(item.tensor, {.dtype = job_.manifest->architecture->tensors()[item.tensor].dtype,
                           .base = content_of(*served_->manifest, item.tensor),
                           .target = content,
                           .payload = std::move(payload)});
  item.proved = true;
  --unproved_;
  ++tally_.tensors;
  ++tally_.tensors_delta;
}

Status FetchInstall::write_delta(const Item& item) {
  const Content base = content_of(*served_->manifest, item.tensor);
  const Content target = content_of(*job_.manifest, item.tensor);
  if (!can_start_from(item.tensor)) return fail(Code::corrupt, "the delta's base is not trusted any more");
  FRESHET_ASSIGN(const DeltaInfo info, read_delta_info(*item.payload));
  // A delta works in both directions: one that led from here to there leads back.
  const bool backwards = info.base == target.name && info.target == base.name;
  const Content* known = arena_.content(item.segment);
  const auto shadow = known == nullptr ? std::nullopt : std::optional(*known);
  const MutableBytes memory = arena_.write(item.segment);
  bring_to_base(item, shadow, memory);
  const DType dtype = job_.manifest->architecture->tensors()[item.tensor].dtype;
  const DeltaSpec spec = {
      .dtype = dtype, .base = backwards ? target.name : base.name, .target = backwards ? base.name : target.name};
  FRESHET_TRY(backwards ? revert_delta(spec, *item.payload, memory) : apply_delta(spec, *item.payload, memory));
  if (options_.full_proof && digest_of(memory) != target.digest) {
    return fail(Code::corrupt, "the delta's result does not match its digest");
  }
  return {};
}

void FetchInstall::bring_to_base(const Item& item, const std::optional<Content>& shadow, MutableBytes memory) {
  const Content base = content_of(*served_->manifest, item.tensor);
  const KeptDeltas::Delta* kept = kept_.find(item.tensor);
  const CatchUp way = catch_up(shadow ? &*shadow : nullptr, base, kept);
  if (way == CatchUp::none) return;
  if (way != CatchUp::copy) {
    const DeltaSpec spec{.dtype = kept->dtype, .base = kept->base.name, .target = kept->target.name};
    const auto moved =
        way == CatchUp::apply ? apply_delta(spec, kept->payload, memory) : revert_delta(spec, kept->payload, memory);
    if (moved) return;
    kept_.drop(item.tensor);
  }
  const Bytes from = arena_.bytes(*item.base);
  std::memcpy(memory.data(), from.data(), from.size());
  ++tally_.shadows_copied;
}

void FetchInstall::on_proof_failed(Item& item, const Error& why) {
  ++tally_.proofs_failed;
  if (!item.retried) return fetch_again(static_cast<std::size_t>(&item - items_.data()));
  end_with(Error(Code::corrupt,
                 format("tensor {}: {}", job_.manifest->architecture->tensors()[item.tensor].name, why.message())));
}

void FetchInstall::fetch_again(std::size_t index) {
  Item& item = items_[index];
  if (!leave_shown(item)) {
    return end_with(Error(Code::out_of_space, "no memory to fetch a tensor again while relays read it"));
  }
  item.request = 0;
  item.retried = true;
  item.refused = false;
  item.base.reset();  // Still among bases_.
  item.digest.reset();
  item.received = 0;
  to_ask_.push_back({index});
}

void FetchInstall::on_request_done(std::uint64_t request, Status status) {
  const auto entry = requests_.find(request);
  FRESHET_CHECK(entry != requests_.end());
  const Batch batch = std::move(entry->second);
  requests_.erase(entry);
  if (error_) return;
  bool refused = false;
  bool missing = false;
  for (const std::size_t index : batch) {
    const Item& item = items_[index];
    if (item.proved || item.request != request) continue;
    missing = true;
    refused = refused || item.refused;
  }
  if (!missing) return;
  if (!refused) {
    end_with(status ? Error(Code::unavailable, "an answer lacks some of its pieces")
                    : as_passing(std::move(status).error()));
    return;
  }
  // Ended by ourselves: what did not come is fetched dense.
  for (const std::size_t index : batch) {
    Item& item = items_[index];
    if (item.proved || item.request != request) continue;
    if (item.encoding == Encoding::delta && item.payload != nullptr) payload_bytes_ -= item.payload->size();
    item.payload.reset();
    const bool retried = item.retried;
    fetch_again(index);
    item.retried = retried;
  }
}

void FetchInstall::on_client_dead(const Error& why) {
  requests_.clear();
  to_ask_.clear();
  cancelled_ = true;
  if (!is_over()) end_with(as_passing(why));
}

void FetchInstall::give_up(const Error& why) {
  if (!is_over()) end_with(why);
}

void FetchInstall::end_with(Error error) {
  if (!error_) error_ = std::move(error);
}

void FetchInstall::measure_link(Time now) {
  if (tally_.bytes_moved < kMeasuredBytesMin || now <= started_at_) return;
  const double seconds = std::chrono::duration<double>(now - started_at_).count();
  channel_.link_bytes_per_second = static_cast<std::uint64_t>(static_cast<double>(tally_.bytes_moved) / seconds);
}

Result<FetchedVersion> FetchInstall::take() {
  FRESHET_CHECK(is_over() && is_quiet());
  if (error_) return fail(*error_);
  FetchedVersion version{.manifest = job_.manifest, .segments = {}, .deltas = std::move(for_device_)};
  for (auto& segment : segments_) version.segments.push_back(*std::exchange(segment, std::nullopt));
  return version;
}

}  // namespace freshet::detail
