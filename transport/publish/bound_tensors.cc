// SPDX-License-Identifier: Apache-2.0
#include "core/base/clock.h"
#include "transport/publish/publisher_impl.h"
#include "transport/publisher.h"

namespace freshet {

Result<PublishReceipt> BoundTensors::publish(PublishOptions options) {
  FRESHET_TRY(publisher_->check_closed());
  return publisher_->publish_now(tensors_, options, &checked_);
}

Status BoundTensors::begin() {
  const Time started = system_clock().now();
  FRESHET_TRY(publisher_->impl_->check_here());
  FRESHET_TRY(publisher_->impl_->begin_capture(tensors_, checked_));
  blocked_ = system_clock().now() - started;
  return {};
}

Status BoundTensors::capture(std::span<const std::uint32_t> tensors) {
  const Time started = system_clock().now();
  FRESHET_TRY(publisher_->impl_->check_here());
  Status captured = publisher_->impl_->capture(tensors_, tensors);
  blocked_ += system_clock().now() - started;
  return captured;
}

Result<PublishReceipt> BoundTensors::end(PublishOptions options) {
  FRESHET_TRY(publisher_->impl_->check_here());
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
  if (publisher_->impl_->check_here()) publisher_->impl_->abandon_capture();
}

}  // namespace freshet
