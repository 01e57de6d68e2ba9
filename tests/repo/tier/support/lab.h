// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A source, tiers and their config in a folder of a test's own, the built `freshet`, and programs run with the tiers
/// and without. Its keeper ends with it.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace freshet::test {

struct Ran {
  int code = -1;  ///< 128 + n when signal n ended it.
  std::string out;
  std::string err;
};

class TierLab {
 public:
  /// `more` is added to the config's head; each tier has the quota.
  explicit TierLab(const std::string& more = "", int tiers = 1, const std::string& quota = "100 MiB");
  ~TierLab();

  std::string source(const std::string& name = "") const {
    return folder_ / ("source" + (name.empty() ? "" : "/" + name));
  }
  std::string tier(int number = 1) const { return folder_ / ("tier" + std::to_string(number)); }
  std::string config() const { return folder_ / "tiers.toml"; }
  std::string path(const std::string& name) const { return folder_ / name; }

  /// Writes a file of `bytes` bytes at the source, from `seed`; its path.
  std::string make(const std::string& name, std::size_t bytes, unsigned seed = 1) const;

  /// A program and its arguments, with FRESHET_TIER set.
  Ran run(const std::vector<std::string>& words) const;
  /// `freshet tier …`.
  Ran tier_command(std::vector<std::string> words) const;
  /// `sh -c command` as it is, and with the tiers.
  Ran plain(const std::string& command) const { return run({"/bin/sh", "-c", command}); }
  Ran served(const std::string& command) const;
  /// Copies the sources, and returns when that is done.
  void fill() const;
  /// The `total` line.
  nlohmann::json total() const;
  std::vector<std::string> copies() const;

 private:
  TemporaryFolder folder_;
};

}  // namespace freshet::test
