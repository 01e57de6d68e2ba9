// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/tensors_that_come.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

class TensorsThatCome : public testing::Test {
 protected:
  TensorsThatCome() : memory_(kTensors, std::vector<std::byte>(kEach)) {
    for (std::size_t i = 0; i < kTensors; ++i) {
      views_.push_back(
          {.spec = {.name = "t" + std::to_string(i), .dtype = DType::u8, .shape = {kEach}}, .data = memory_[i]});
    }
  }
  /// The bytes of a tensor come when the writer asks for them, and not before.
  Status bring(std::size_t tensor) {
    asked_.push_back(tensor);
    std::memset(memory_[tensor].data(), static_cast<int>(tensor + 1), kEach);
    return {};
  }

  static constexpr std::size_t kTensors = 5;
  static constexpr std::size_t kEach = 100'000;
  const TemporaryFolder folder_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<TensorView> views_;
  std::vector<std::size_t> asked_;
};

TEST_F(TensorsThatCome, AreWrittenAsTheyCome) {
  const std::string path = folder_ / "m.safetensors";
  ASSERT_TRUE(
      write_safetensors(path, views_, {{"k", "v"}}, true, [this](std::size_t tensor) { return bring(tensor); }));
  EXPECT_EQ(asked_, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  const auto file = SafetensorsFile::read(path);
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_EQ(file->tensors().size(), kTensors);
  for (std::size_t i = 0; i < kTensors; ++i) {
    EXPECT_EQ(file->tensors()[i].data.front(), static_cast<std::byte>(i + 1));
    EXPECT_EQ(file->tensors()[i].data.back(), static_cast<std::byte>(i + 1));
  }
}

TEST_F(TensorsThatCome, MayAllLieInTheSameMemory) {
  for (TensorView& view : views_) view.data = memory_[0];
  const std::string path = folder_ / "m.safetensors";
  const auto ready = [this](std::size_t tensor) -> Status {
    std::memset(memory_[0].data(), static_cast<int>(tensor + 1), kEach);
    return {};
  };
  ASSERT_TRUE(write_safetensors(path, views_, {}, true, ready));
  const auto file = SafetensorsFile::read(path);
  ASSERT_TRUE(file) << file.error().message();
  for (std::size_t i = 0; i < kTensors; ++i) EXPECT_EQ(file->tensors()[i].data.back(), static_cast<std::byte>(i + 1));
}

TEST_F(TensorsThatCome, OneThatDoesNotComeLeavesTheFileAsItWas) {
  const std::string path = folder_ / "m.safetensors";
  ASSERT_TRUE(write_safetensors(path, views_, {}, true));
  const auto before = std::filesystem::last_write_time(path);
  const Status written = write_safetensors(path, views_, {}, true, [this](std::size_t tensor) {
    return tensor == 3 ? fail(Code::corrupt, "tensor 3 is damaged") : bring(tensor);
  });
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Code::corrupt);
  EXPECT_EQ(written.error().message(), "tensor 3 is damaged");
  EXPECT_EQ(asked_, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(std::filesystem::last_write_time(path), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "a half file is left";
}

}  // namespace
}  // namespace freshet
