// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "core/base/env.h"

namespace freshet::test {

/// A disk that takes no files of one kind while it is told to. Any thread.
class RefusingDisk final : public Env {
 public:
  /// `kind`: a part of the files' names.
  explicit RefusingDisk(std::string kind) : kind_(std::move(kind)) {}
  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    if (errno_value != 0 && path.find(kind_) != std::string::npos) return fail_errno(errno_value, "create " + path);
    return system_env().create_file(path);
  }
  Status rename_file(const std::string& from, const std::string& to) override {
    return system_env().rename_file(from, to);
  }
  Status remove_file(const std::string& path) override { return system_env().remove_file(path); }
  Status sync_folder(const std::string& path) override { return system_env().sync_folder(path); }
  void fill_random(MutableBytes out) override { system_env().fill_random(out); }
  std::optional<std::string> variable(const std::string& name) const override { return system_env().variable(name); }

  std::atomic<int> errno_value = 0;  ///< 0: the disk takes everything.

 private:
  const std::string kind_;
};

}  // namespace freshet::test
