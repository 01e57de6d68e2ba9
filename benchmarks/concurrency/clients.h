// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What clients do at the same time: each stores its model, and loads another's.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/common/statistics.h"
#include "core/model/manifest.h"
#include "repo/repository.h"

namespace freshet::benchmarks {

/// One client's model: tensors of equal size, all of them new in every put. One thread at a time.
class Client {
 public:
  Client(std::uint64_t number, std::size_t tensors, std::size_t bytes);

  std::uint64_t bytes() const { return memory_.size(); }
  const std::string& model() const { return manifest_.name.model; }
  std::span<const Bytes> views() const { return views_; }

  void prepare();  ///< The next version.
  Status put(Repository& repository) const;
  Status read(const Repository& repository, const VersionRecord& record) const {
    return repository.read(record, reads_);
  }
  Status load(const Repository& repository, const std::string& model) const;
  void copy();

 private:
  std::vector<std::byte> memory_;
  std::vector<std::byte> room_;
  std::vector<Bytes> views_;
  std::vector<Repository::TensorRead> reads_;
  Manifest manifest_;
};

struct Together {
  /// Milliseconds of each client from when all might begin. A clock of its own would start when it gets a processor,
  /// and so leave out what those who come later wait for it: eight that only copy memory then seem to differ by a
  /// third.
  Samples each;
  double all_ms = 0;  ///< Until the last one was done.
  Status status;
};

/// `work(i)` of all clients at once, on threads of their own.
Together run_together(std::size_t clients, const std::function<Status(std::size_t client)>& work);

}  // namespace freshet::benchmarks
