// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/capture.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::levels {

Result<VersionNumber> Capture::begin(std::uint64_t step) {
  if (share_ != nullptr) return fail(Code::failed_precondition, "the version before was not ended");
  const Time began = system_clock().now();
  const Version version = job_.version_of(next_number_++);
  std::optional<Error> why;
  book_.wait_in_loop([&] { return teller_.has_answer(version.number); }, why);
  FRESHET_TRY(book_.begin(version.number, step, began));
  teller_.use(version.number);
  if (!why) {
    if (const Status promised = teller_.check_promised(version.number); !promised) why = promised.error();
  }
  if (!why) share_ = book_.free_share(why);
  blocked_ = system_clock().now() - began;
  if (share_ == nullptr) {
    job_.say(LevelNote::Kind::captured, version, step, Level::memory, why);
    return fail(*why);
  }
  error_.reset();
  share_->version = version;
  share_->step = step;
  share_->digests.resize(job_.cut->first_chunks.back());
  share_->writers.assign(job_.cut->pieces.size(), version);
  captured_.assign(job_.own.size(), false);
  return version.number;
}

Status Capture::check_index(std::size_t tensor) const {
  if (tensor < job_.own.size()) return {};
  return refuse(format("there is no tensor {}; the number of tensors is {}", tensor, job_.own.size()));
}

Status Capture::check(std::size_t tensor, Bytes held) const {
  FRESHET_TRY(check_index(tensor));
  const std::string& name = job_.tensors[tensor].spec.name;
  if (held.size() != job_.own[tensor].bytes) {
    return refuse(format("tensor {}: {} bytes came, this rank holds {}", name, held.size(), job_.own[tensor].bytes));
  }
  if (captured_[tensor]) return refuse(format("tensor {} was captured already", name));
  return {};
}

Status Capture::capture(std::size_t tensor, Bytes held, bool beside) {
  const Time began = system_clock().now();
  if (share_ == nullptr) return fail(Code::failed_precondition, "no version was begun");
  if (Status checked = check(tensor, held); !checked) {
    if (!error_) error_ = checked.error();
    return checked;
  }
  captured_[tensor] = true;
  const OwnTensor& own = job_.own[tensor];
  if (own.piece) {
    const Bytes stored = held.subspan(own.offset, job_.cut->pieces[*own.piece].piece.bytes());
    if (beside) {
      if (!copies_) copies_.emplace(*job_.cut);
      copies_->add(*share_, *own.piece, stored);
    } else {
      capture_piece(*job_.cut, *share_, *own.piece, stored);
    }
  }
  blocked_ += system_clock().now() - began;
  return {};
}

Status Capture::wait_for_copy(std::size_t tensor) {
  FRESHET_TRY(check_index(tensor));
  const OwnTensor& own = job_.own[tensor];
  if (!copies_ || !own.piece) return {};
  const Time began = system_clock().now();
  copies_->finish(*own.piece);
  blocked_ += system_clock().now() - began;
  return {};
}

std::optional<Error> Capture::first_missing() const {
  const auto missing = std::ranges::find(captured_, false);
  if (missing == captured_.end()) return std::nullopt;
  const auto tensor = static_cast<std::size_t>(missing - captured_.begin());
  return Error(Code::failed_precondition, format("tensor {} was not captured", job_.tensors[tensor].spec.name));
}

std::uint64_t Capture::inherit_equal(Share& share) {
  std::uint64_t changed = 0;
  for (std::size_t piece = 0; piece < job_.cut->pieces.size(); ++piece) {
    if (baseline_.known[piece] && is_equal_piece(*job_.cut, piece, share.digests, baseline_.digests)) {
      share.writers[piece] = baseline_.writers[piece];
    } else {
      changed += job_.cut->pieces[piece].piece.bytes();
    }
  }
  baseline_.digests = share.digests;
  baseline_.writers = share.writers;
  baseline_.known.assign(job_.cut->pieces.size(), true);
  return changed;
}

Result<Checkpointer::Captured> Capture::end() {
  const Time began = system_clock().now();
  if (share_ == nullptr) return fail(Code::failed_precondition, "no version was begun");
  if (copies_) copies_->finish_all();
  const std::shared_ptr<Share> share = std::exchange(share_, nullptr);
  std::optional<Error> error = std::exchange(error_, {});
  if (!error) error = first_missing();
  Checkpointer::Captured captured{.version = share->version.number};
  if (!error) captured.bytes = inherit_equal(*share);
  const Version version = share->version;  // The share may be another version's, once it is free.
  const std::uint64_t step = share->step;
  book_.end_capture(share, !error);
  blocked_ += system_clock().now() - began;
  captured.blocked = blocked_;
  if (!error) job_.point("captured", step);
  job_.say(LevelNote::Kind::captured, version, step, Level::memory, error);
  if (error) return fail(*error);
  return captured;
}

}  // namespace freshet::levels
