// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Bad messages from outside: counted, logged at a limited rate, never fatal.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/clock.h"

namespace freshet {

/// One thread at a time.
class Rejects {
 public:
  explicit Rejects(std::string_view who) : who_(who) {}

  void count(std::string_view reason, Time now);
  std::uint64_t total() const { return total_; }

 private:
  const std::string who_;
  std::uint64_t total_ = 0;
  std::uint64_t unlogged_ = 0;
  bool logged_ever_ = false;
  Time logged_at_{};
};

}  // namespace freshet
