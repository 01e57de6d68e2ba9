// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "core/base/log.h"

namespace freshet::test {

/// How many lines of the log have these words.
class LogLinesWith {
 public:
  explicit LogLinesWith(std::string words) : words_(std::move(words)) {
    set_log_hook([this](LogLevel, const std::string& line) {
      if (line.find(words_) != std::string::npos) ++count_;
    });
  }
  ~LogLinesWith() { set_log_hook(nullptr); }
  LogLinesWith(const LogLinesWith&) = delete;
  LogLinesWith& operator=(const LogLinesWith&) = delete;
  int count() const { return count_; }

 private:
  const std::string words_;
  std::atomic<int> count_ = 0;
};

}  // namespace freshet::test
