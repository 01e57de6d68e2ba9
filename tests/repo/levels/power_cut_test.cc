// SPDX-License-Identifier: Apache-2.0
/// A host that loses power forgets what was not synced: ends of files, and names. What a version's level acknowledged
/// is there afterwards, at every such moment.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "core/base/format.h"
#include "core/base/mutex.h"
#include "repo/levels/checkpointer.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/support/temporary_folder.h"

namespace freshet::power {
namespace {

using test::HeldMemory;

constexpr auto kLong = std::chrono::seconds(60);

/// The real files, and beside them what the medium has of each. Any thread.
class Medium final : public Env {
 public:
  struct File {
    std::string bytes;
    std::size_t synced = 0;
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;

  /// What is there after the power comes back: names as of each folder's last sync, or as they were at the end.
  std::map<std::string, std::string> after_power_cut(bool with_unsynced_names) const {
    const MutexLock lock(mutex_);
    std::map<std::string, std::string> files;
    for (const auto& [path, file] : with_unsynced_names ? names_ : synced_names_) {
      files.emplace(path, file->bytes.substr(0, file->synced));
    }
    return files;
  }

  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    FRESHET_ASSIGN(auto file, system_env().create_file(path));
    const MutexLock lock(mutex_);
    return std::make_unique<Written>(*this, std::move(file), names_[path] = std::make_shared<File>());
  }
  Status rename_file(const std::string& from, const std::string& to) override {
    FRESHET_TRY(system_env().rename_file(from, to));
    const MutexLock lock(mutex_);
    if (const auto at = names_.find(from); at != names_.end()) {
      names_[to] = at->second;
      names_.erase(from);
    }
    return {};
  }
  Status remove_file(const std::string& path) override {
    FRESHET_TRY(system_env().remove_file(path));
    const MutexLock lock(mutex_);
    names_.erase(path);
    return {};
  }
  Status sync_folder(const std::string& path) override {
    FRESHET_TRY(system_env().sync_folder(path));
    const MutexLock lock(mutex_);
    synced_names_ = names_;  // There is one folder.
    return {};
  }
  void fill_random(MutableBytes out) override { system_env().fill_random(out); }
  std::optional<std::string> variable(const std::string& name) const override { return system_env().variable(name); }

 private:
  class Written final : public WritableFile {
   public:
    Written(Medium& medium, std::unique_ptr<WritableFile> real, std::shared_ptr<File> file)
        : medium_(medium), real_(std::move(real)), file_(std::move(file)) {}
    Status append(Bytes bytes) override {
      FRESHET_TRY(real_->append(bytes));
      const MutexLock lock(medium_.mutex_);
      file_->bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return {};
    }
    Status sync() override {
      FRESHET_TRY(real_->sync());
      const MutexLock lock(medium_.mutex_);
      file_->synced = file_->bytes.size();
      return {};
    }
    Status close() override { return real_->close(); }

   private:
    Medium& medium_;
    const std::unique_ptr<WritableFile> real_;
    const std::shared_ptr<File> file_;
  };

  mutable Mutex mutex_;
  Names names_ FRESHET_GUARDED_BY(mutex_);
  Names synced_names_ FRESHET_GUARDED_BY(mutex_);
};

TEST(CheckpointsPowerCut, WhatWasAcknowledgedIsOnTheMedium) {
  const TemporaryFolder folder;
  Medium medium;
  struct Cut {
    std::uint64_t acknowledged = 0;
    std::map<std::string, std::string> files;
  };
  std::vector<Cut> cuts;
  std::uint64_t acknowledged = 0;
  const auto cut_power = [&] {
    for (const bool with_names : {false, true}) cuts.push_back({acknowledged, medium.after_power_cut(with_names)});
  };
  {
    auto options = test::alone(folder / "live");
    options.env = &medium;
    options.when_behind = levels::WhenBehind::wait;
    options.on_event = [&](const CheckpointEvent& event) {
      if (event.kind != CheckpointEvent::Kind::reached || event.level != CheckpointLevel::local) return;
      acknowledged = event.step;
      cut_power();
    };
    const auto opened = Checkpointer::open(options, test::three_tensors());
    ASSERT_TRUE(opened) << opened.error().message();
    HeldMemory memory(1, 0);
    const auto writable = memory.writable();
    ASSERT_TRUE((*opened)->restore(writable));
    for (int step = 1; step <= 12; ++step) {
      memory.fill(step);
      // Now and then one tensor alone changes: shards need older ones.
      if (step % 3 != 1) std::fill(memory.held[0].begin(), memory.held[0].end(), std::byte(step - (step - 1) % 3));
      const auto captured = (*opened)->checkpoint(static_cast<std::uint64_t>(step), memory.views());
      ASSERT_TRUE(captured);
    }
    ASSERT_TRUE((*opened)->finish(kLong));
    cut_power();
  }
  ASSERT_EQ(acknowledged, 12U);
  int number = 0;
  for (const Cut& cut : cuts) {
    const std::string place = folder / format("after{}", number++);
    std::filesystem::create_directories(place + "/net");
    for (const auto& [path, bytes] : cut.files) {
      std::ofstream(place + "/net/" + std::filesystem::path(path).filename().string(), std::ios::binary) << bytes;
    }
    const auto opened = Checkpointer::open(test::alone(place), test::three_tensors());
    ASSERT_TRUE(opened) << opened.error().message();
    HeldMemory memory(1, 0);
    const auto writable = memory.writable();
    const auto restored = (*opened)->restore(writable);
    ASSERT_TRUE(restored) << restored.error().message();
    ASSERT_TRUE(*restored) << "nothing is left of version " << cut.acknowledged;
    EXPECT_GE((*restored)->step, cut.acknowledged);
    EXPECT_EQ(memory.held[1][7], static_cast<std::byte>((*restored)->step));
    EXPECT_EQ(memory.held[0][7], static_cast<std::byte>((*restored)->step - ((*restored)->step - 1) % 3));
    ASSERT_TRUE((*opened)->finish(kLong));
  }
}

}  // namespace
}  // namespace freshet::power
