// SPDX-License-Identifier: Apache-2.0
#include "core/base/clock.h"
#include "core/base/format.h"
#include "transport/publish/publisher_impl.h"
#include "transport/publisher.h"

namespace freshet {

BoundTensors::BoundTensors(Publisher& publisher, std::vector<TensorView> tensors, BindOptions options)
    : publisher_(&publisher), tensors_(std::move(tensors)), options_(options) {
  if (options_.memory == MemoryKind::host) return;
  for (TensorView& tensor : tensors_) {
    if (tensor.place == TensorPlace{}) tensor.place.memory = options_.memory;
  }
}

void BoundTensors::set_stream(std::int32_t device, std::uintptr_t stream) {
  for (TensorView& tensor : tensors_) {
    const bool is_there = !is_readable_by_host(tensor.place.memory) && tensor.place.device == device;
    if (is_there) tensor.place.stream = stream;
  }
}

/// The value may come from another language's number.
Status BoundTensors::check_readable() const {
  if (is_known(options_.memory)) return {};
  return fail(Code::unsupported, format("publish {}: there is no memory of kind {}: copy the tensors to host memory",
                                        publisher_->impl_->model(), static_cast<int>(options_.memory)));
}

Result<PublishReceipt> BoundTensors::publish(PublishOptions options) {
  FRESHET_TRY(publisher_->check_closed());
  FRESHET_TRY(check_readable());
  return publisher_->publish_now(tensors_, options, &checked_);
}

Status BoundTensors::begin() {
  const Time started = publisher_->impl_->clock().now();
  FRESHET_TRY(publisher_->impl_->check_open());
  FRESHET_TRY(check_readable());
  FRESHET_TRY(publisher_->impl_->begin_capture(tensors_, checked_));
  blocked_ = publisher_->impl_->clock().now() - started;
  return {};
}

Status BoundTensors::capture(std::span<const std::uint32_t> tensors) {
  const Time started = publisher_->impl_->clock().now();
  FRESHET_TRY(publisher_->impl_->check_open());
  Status captured = publisher_->impl_->capture(tensors_, tensors);
  blocked_ += publisher_->impl_->clock().now() - started;
  return captured;
}

Result<PublishReceipt> BoundTensors::end(PublishOptions options) {
  FRESHET_TRY(publisher_->impl_->check_open());
  if (!publisher_->impl_->has_open_capture()) {
    return fail(Code::failed_precondition, "publish " + publisher_->impl_->model() +
                                               ": end() without begin(), or after a capture that found no room");
  }
  if (options.new_architecture != nullptr) {
    return fail(Code::invalid_argument,
                "publish " + publisher_->impl_->model() + ": a new architecture needs tensors that are bound anew");
  }
  Result<PublishReceipt> receipt = publisher_->publish_now(tensors_, options, &checked_);
  if (receipt) receipt->blocked += blocked_;
  return receipt;
}

void BoundTensors::abandon() {
  if (publisher_->impl_->check_open()) publisher_->impl_->abandon_capture();
}

}  // namespace freshet
