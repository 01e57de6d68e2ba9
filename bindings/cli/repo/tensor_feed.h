// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Reads a version's tensors on a thread of its own, in their order, while another thread uses those that are there: a
/// file is then written while the rest is read, and takes as long as the slower of the two.

#include <cstddef>
#include <span>
#include <string>
#include <thread>

#include "bindings/cli/frame/interrupt.h"
#include "core/base/mutex.h"
#include "repo/repository.h"

namespace freshet::cli {

/// wait_for(): one thread. Its memory is the caller's, and stays until the feed is gone.
class TensorFeed {
 public:
  TensorFeed(const Repository& repository, const VersionRecord& record, std::span<const Repository::TensorRead> reads);
  /// Ends the reading, if it goes on, within 50 ms.
  ~TensorFeed() = default;

  /// Until read number `read` is done. The error is that of the reading; cancelled after a signal.
  Status wait_for(std::size_t read, const Interrupt& interrupt);
  /// The reading's own error, if it failed.
  Status failure();

 private:
  void run(const std::stop_token& stop);
  void set(std::size_t done, Status failed);

  const Repository& repository_;
  const VersionRecord& record_;
  const std::span<const Repository::TensorRead> reads_;
  Mutex mutex_;
  CondVar changed_;
  std::size_t done_ FRESHET_GUARDED_BY(mutex_) = 0;
  Status failure_ FRESHET_GUARDED_BY(mutex_);
  std::jthread reader_;  ///< Last: it uses all the rest.
};

}  // namespace freshet::cli
