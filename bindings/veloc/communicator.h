// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Messages between ranks, beside those of a Checkpointer.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace freshet::veloc {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t ranks() const = 0;
  /// Collective: what each rank gave, by rank.
  virtual std::vector<std::string> gather(const std::string& own) = 0;
  /// Ends all ranks' processes, this one first.
  [[noreturn]] virtual void end_job() = 0;
};

class Alone final : public Communicator {
 public:
  std::uint32_t rank() const override { return 0; }
  std::uint32_t ranks() const override { return 1; }
  std::vector<std::string> gather(const std::string& own) override { return {own}; }
  [[noreturn]] void end_job() override { std::_Exit(EXIT_FAILURE); }
};

}  // namespace freshet::veloc
