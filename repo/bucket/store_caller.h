// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Carries out the calls of a log's members at an object store.

#include <memory>
#include <stop_token>

#include "repo/log/log_store.h"
#include "repo/object_store/object_store.h"

namespace freshet::bucket {

/// Any thread.
class ObjectStoreCaller final : public log::StoreCaller {
 public:
  explicit ObjectStoreCaller(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  log::Answer run(const log::Call& call) override;
  void stop() override { stop_.request_stop(); }

 private:
  const std::shared_ptr<ObjectStore> store_;
  std::stop_source stop_;
};

}  // namespace freshet::bucket
