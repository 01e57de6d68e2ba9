// SPDX-License-Identifier: Apache-2.0
/// How much memory `freshet publish` holds of a file, in sizes of the model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/bindings/cli/support/streaming.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kTensorsOfLargeModel = 16;
constexpr std::uint64_t kBytesOfLargeModel = std::uint64_t{48} << 20;

ModelBytes large_model(char filled_with) {
  constexpr std::uint64_t kEach = kBytesOfLargeModel / kTensorsOfLargeModel;
  ModelBytes model;
  for (std::uint64_t i = 0; i < kTensorsOfLargeModel; ++i) {
    model.tensors.push_back(
        {.name = "t" + std::to_string(i), .dtype = "U8", .shape = {kEach}, .bytes = std::string(kEach, filled_with)});
  }
  return model;
}

/// Bytes of memory that the process holds, pages that it shares in shares. The program's own file and libraries are left
/// out: how many processes share their pages differs from moment to moment.
double held_by(const Running& program) {
  std::ifstream file("/proc/" + std::to_string(program.pid()) + "/smaps");
  const auto is_mapping = [](const std::string& key) { return key.find('-') != std::string::npos; };
  double bytes = -1;
  bool counts = true;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (is_mapping(key)) {
      counts = !line.ends_with("/freshet") && line.find(".so") == std::string::npos;
    } else if (key == "Pss:") {
      double kib = 0;
      words >> kib;
      bytes = std::max(bytes, 0.0) + (counts ? kib * 1024 : 0);
    }
  }
  return bytes;
}

class PublishMemory : public Streaming {
 protected:
  void SetUp() override {
    Running small = start({"publish", "small", file_of(chain(1, 2, 3), "small.safetensors")});
    ASSERT_EQ(small.next_json()["version"], 1);
    ASSERT_THAT(small.next_error_line().value_or(""), HasSubstr("served at"));
    small_ = held_by(small);
    if (small_ < 0) GTEST_SKIP() << "this kernel has no /proc/PID/smaps";
  }
  double models_held_by(const Running& program) const {
    return (held_by(program) - small_) / static_cast<double>(kBytesOfLargeModel);
  }

 private:
  double small_ = 0;
};

TEST_F(PublishMemory, AFirstVersionIsHeldOnce) {
  Running publisher = start({"publish", "net", file_of(large_model('a'), "a.safetensors")});
  ASSERT_EQ(publisher.next_json()["version"], 1);
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("served at"));
  EXPECT_GT(models_held_by(publisher), 0.9);
  EXPECT_LT(models_held_by(publisher), 1.25);
}

TEST_F(PublishMemory, ALoopHoldsTwo) {
  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("served at"));
  for (int version = 1; version <= 4; ++version) {
    drop(folder_ / "in", std::to_string(version) + ".safetensors",
         encoded(large_model(static_cast<char>('a' + version))));
    ASSERT_EQ(publisher.next_json()["version"], version);
  }
  // Files are taken one after another: what is said of this one comes when the last version's file was let go.
  drop(folder_ / "in", "bad.safetensors", "no model");
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("bad.safetensors"));
  EXPECT_GT(models_held_by(publisher), 1.8);
  EXPECT_LT(models_held_by(publisher), 2.2);
}

}  // namespace
}  // namespace freshet::cli_test
