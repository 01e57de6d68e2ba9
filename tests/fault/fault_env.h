// SPDX-License-Identifier: Apache-2.0
#pragma once

/// An Env over the real one that fails the nth call that changes files. One thread at a time.

#include <memory>
#include <string>
#include <utility>

#include "core/base/env.h"

namespace freshet::test {

class FaultEnv final : public Env {
 public:
  explicit FaultEnv(Env& base) : base_(base) {}

  /// The call number `nth` (from 1) and, when `from_then_on`, all after it fail with `errno_value`.
  void fail_call(std::uint64_t nth, int errno_value, bool from_then_on) {
    fail_at_ = nth;
    errno_value_ = errno_value;
    from_then_on_ = from_then_on;
    calls_ = 0;
  }
  std::uint64_t calls() const { return calls_; }

  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    FRESHET_TRY(step("create", path));
    FRESHET_ASSIGN(std::unique_ptr<WritableFile> file, base_.create_file(path));
    return std::make_unique<File>(*this, std::move(file), path);
  }
  Status rename_file(const std::string& from, const std::string& to) override {
    FRESHET_TRY(step("rename", from));
    return base_.rename_file(from, to);
  }
  /// Removal works even on a full disk, and cleaning up must be seen to happen: never failed.
  Status remove_file(const std::string& path) override { return base_.remove_file(path); }
  Status sync_folder(const std::string& path) override {
    FRESHET_TRY(step("sync", path));
    return base_.sync_folder(path);
  }
  void fill_random(MutableBytes out) override { base_.fill_random(out); }
  std::optional<std::string> variable(const std::string& name) const override { return base_.variable(name); }

 private:
  class File final : public WritableFile {
   public:
    File(FaultEnv& env, std::unique_ptr<WritableFile> base, std::string path)
        : env_(env), base_(std::move(base)), path_(std::move(path)) {}
    Status append(Bytes bytes) override {
      if (Status status = env_.step("write", path_); !status) {
        // A full disk takes a part.
        static_cast<void>(base_->append(bytes.first(bytes.size() / 2)));
        return status;
      }
      return base_->append(bytes);
    }
    Status sync() override {
      FRESHET_TRY(env_.step("sync", path_));
      return base_->sync();
    }
    Status close() override {
      FRESHET_TRY(env_.step("close", path_));
      return base_->close();
    }

   private:
    FaultEnv& env_;
    std::unique_ptr<WritableFile> base_;
    const std::string path_;
  };

  Status step(const char* what, const std::string& path) {
    ++calls_;
    const bool failing = fail_at_ != 0 && (calls_ == fail_at_ || (from_then_on_ && calls_ > fail_at_));
    if (failing) return fail_errno(errno_value_, std::string(what) + " " + path);
    return {};
  }

  Env& base_;
  std::uint64_t calls_ = 0;
  std::uint64_t fail_at_ = 0;
  int errno_value_ = 0;
  bool from_then_on_ = false;
};

}  // namespace freshet::test
