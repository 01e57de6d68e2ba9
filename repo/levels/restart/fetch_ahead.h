// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Fetches a version's tensors one after another, ahead of who works on them.

#include <cstddef>
#include <functional>
#include <span>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/restart/assembly.h"

namespace freshet::levels {

/// A thread of its own fetches the next batch while the caller has the batches before. One thread at a time; so `fetch`
/// is called by one thread at a time, never after this object's end. This end stops a fetch that is under way.
class FetchAhead {
 public:
  using Fetch = std::function<Status(std::span<const WantedPiece> wanted, const std::stop_token& end)>;

  FetchAhead(std::vector<WantedPiece> wanted, Fetch fetch) : wanted_(std::move(wanted)), fetch_(std::move(fetch)) {}

  /// Waits until the first `count` of the wanted pieces are there. If a fetch fails, the next call fetches its batch
  /// again.
  Status wait_for(std::size_t count);

 private:
  void begin_next();

  const std::vector<WantedPiece> wanted_;
  const Fetch fetch_;
  std::size_t come_ = 0;  ///< So many are there.
  std::size_t next_ = 0;  ///< So many will be, when ahead_ has ended.
  Status fetched_;        ///< Of ahead_, once it has ended.
  std::jthread ahead_;    ///< The last member: it is joined before the others go.
};

}  // namespace freshet::levels
