// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A lab whose source, or first tier, is a slow folder: it counts what it is asked for, and fails when told.

#include <filesystem>
#include <memory>
#include <string>

#include "tests/repo/tier/support/lab.h"
#include "tests/support/slow_folder/slow_folder.h"

namespace freshet::test {

struct SlowLabOptions {
  std::string more;  ///< Of the config's head.
  int tiers = 1;
  bool slow_tier = false;  ///< The first tier is slow, not the source.
  bool cached = true;
  Duration latency{};
};

class SlowLab {
 public:
  explicit SlowLab(const SlowLabOptions& options = {}) : lab_(options.more, options.tiers) {
    const std::string place = options.slow_tier ? lab_.tier() : lab_.source();
    std::filesystem::create_directory(lab_.path("backing"));
    auto opened = SlowFolder::open(
        {.backing = lab_.path("backing"), .mount = place, .latency = options.latency, .cached = options.cached});
    if (opened) {
      slow_ = std::move(*opened);
      std::filesystem::permissions(lab_.path("backing"), std::filesystem::perms::owner_all);
    } else {
      why_not_ = opened.error().message();
    }
  }
  /// The keeper goes first, while its folders are there.
  ~SlowLab() { (void)lab_.tier_command({"stop"}); }

  explicit operator bool() const { return slow_ != nullptr; }
  const std::string& why_not() const { return why_not_; }
  TierLab* operator->() { return &lab_; }
  SlowFolder& slow() { return *slow_; }

  /// What the keeper and the programs ask for from now on, of a folder of which the kernel knows nothing.
  void forget_and_count() {
    (void)slow_->invalidate();
    (void)slow_->reset();
  }
  /// How often a program reads right and wrong: both ways the same.
  std::string sum_of(const std::string& file) { return lab_.plain("sha256sum < '" + file + "'").out; }

 private:
  TierLab lab_;
  std::unique_ptr<SlowFolder> slow_;
  std::string why_not_;
};

}  // namespace freshet::test
