// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/capture.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/format.h"

namespace freshet::levels {

void Capture::set_baseline(Baseline baseline) {
  if (!sealer_) {
    sealer_.emplace(*job_.cut, [this](const ShareSealer::Ended& ended, bool is_new) {
      if (is_new) job_.warn(ended.error->message());  // The loop has gone on, and no call of its tells of it.
      give_to_book(ended);
      tell(ended);
    });
  }
  sealer_->set_baseline(std::move(baseline));
}

Result<VersionNumber> Capture::begin(std::uint64_t step) {
  if (share_ != nullptr) return fail(Code::failed_precondition, "the version before was not ended");
  const Time began = system_clock().now();
  const Version version = job_.version_of(next_number_++);
  std::optional<Error> why;
  book_.wait_in_loop([&] { return teller_.has_answer(version.number); }, why);
  if (sealer_->is_full()) {
    book_.end(Error(Code::unavailable,
                    format("{} versions wait for copies from a GPU that do not end; end the process and start it anew",
                           ShareSealer::kWaitingMax)));
  }
  FRESHET_TRY(book_.begin(version.number, step, began));
  teller_.use(version.number);
  if (!why) {
    if (const Status promised = teller_.check_promised(version.number); !promised) why = promised.error();
  }
  // A GPU's copies end when the training step has come as far: the loop would wait for its own device.
  if (!why && job_.options.when_behind == WhenBehind::skip && !sealer_->has_turn()) {
    why = Error(Code::out_of_space,
                "two versions before this one are not copied from the GPU yet, and the loop does not wait for it: this "
                "step has no checkpoint");
  }
  if (!why) share_ = book_.free_share(why);
  blocked_ = system_clock().now() - began;
  if (share_ == nullptr) {
    ShareSealer::Ended skipped{.version = version, .step = step, .share = nullptr, .copies = nullptr, .error = why};
    if (sealer_->is_idle()) {
      tell(skipped);
    } else {
      sealer_->push(std::move(skipped));
    }
    return fail(*why);
  }
  error_.reset();
  queued_.reset();
  share_->version = version;
  share_->step = step;
  share_->digests.resize(job_.cut->first_chunks.back());
  share_->writers.assign(job_.cut->pieces.size(), version);
  captured_.assign(job_.own.size(), false);
  return version.number;
}

Bytes Capture::stored(const OwnTensor& own, Bytes held) const {
  return held.subspan(own.offset, job_.cut->pieces[*own.piece].piece.bytes());
}

void Capture::give_to_book(const ShareSealer::Ended& ended) {
  if (ended.share != nullptr) book_.end_capture(ended.share, !ended.error);
}

void Capture::tell(const ShareSealer::Ended& ended) const {
  if (!ended.error) job_.point("captured", ended.step);
  job_.say(LevelNote::Kind::captured, ended.version, ended.step, Level::memory, ended.error);
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
    if (beside) {
      if (!copies_) copies_.emplace(*job_.cut);
      copies_->add(*share_, *own.piece, stored(own, held));
    } else {
      capture_piece(*job_.cut, *share_, *own.piece, stored(own, held));
    }
  }
  blocked_ += system_clock().now() - began;
  return {};
}

Status Capture::check_all(std::span<const Checkpointer::Held> held) {
  for (const Checkpointer::Held& one : held) {
    FRESHET_TRY(check(one.tensor, one.bytes));
    if (!is_known(one.place.memory)) {
      return fail(Code::unsupported,
                  format("tensor {}: its memory is of an unknown kind", job_.tensors[one.tensor].spec.name));
    }
    captured_[one.tensor] = true;
  }
  return {};
}

Status Capture::copy(std::span<const Checkpointer::Held> held) {
  std::vector<DeviceCopies::Source> on_device;
  for (const Checkpointer::Held& one : held) {
    const OwnTensor& own = job_.own[one.tensor];
    if (!own.piece || is_readable_by_host(one.place.memory)) continue;
    on_device.push_back({.piece = *own.piece,
                         .view = {.spec = {.name = job_.tensors[one.tensor].spec.name},
                                  .data = stored(own, one.bytes),
                                  .place = one.place}});
  }
  if (!on_device.empty()) {
    FRESHET_TRY(sealer_->start());
    if (!device_) device_.emplace(*job_.cut, job_.options.gpus);
    if (queued_ == nullptr) queued_ = std::make_shared<CheckpointCopies>();
    FRESHET_TRY(device_->add(share_, on_device, queued_));  // They run while the processor copies.
  }
  for (const Checkpointer::Held& one : held) {
    const OwnTensor& own = job_.own[one.tensor];
    if (!own.piece || !is_readable_by_host(one.place.memory)) continue;
    capture_piece(*job_.cut, *share_, *own.piece, stored(own, one.bytes));
  }
  return {};
}

Status Capture::capture(std::span<const Checkpointer::Held> held) {
  const Time began = system_clock().now();
  if (share_ == nullptr) return fail(Code::failed_precondition, "no version was begun");
  Status status = check_all(held);
  if (status) status = copy(held);
  blocked_ += system_clock().now() - began;
  if (!status && !error_) error_ = status.error();
  return status;
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

Result<Checkpointer::Captured> Capture::end() {
  const Time began = system_clock().now();
  if (share_ == nullptr) return fail(Code::failed_precondition, "no version was begun");
  if (copies_) copies_->finish_all();
  ShareSealer::Ended ended{.version = share_->version,  // The share may be another version's, once it is free.
                           .step = share_->step,
                           .share = std::move(share_),
                           .copies = queued_,
                           .error = std::exchange(error_, {})};
  if (!ended.error) ended.error = first_missing();
  Checkpointer::Captured captured{.version = ended.version.number};
  const std::optional<Error> error = ended.error;
  const bool ends_here = ended.copies == nullptr && sealer_->is_idle();
  captured.bytes = job_.cut->bytes;
  if (ends_here) {
    captured.bytes = ended.error ? 0 : sealer_->seal(*ended.share);
    give_to_book(ended);
  }
  blocked_ += system_clock().now() - began;
  captured.blocked = blocked_;
  if (ends_here) {
    tell(ended);
  } else {
    sealer_->push(std::move(ended));
  }
  if (error) return fail(*error);
  last_captured_ = captured.version;
  return captured;
}

void Capture::stop_copies() {
  copies_.reset();
  device_.reset();
  if (sealer_) sealer_->stop();
}

}  // namespace freshet::levels
