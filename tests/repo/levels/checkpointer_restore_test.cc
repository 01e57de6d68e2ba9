// SPDX-License-Identifier: Apache-2.0
/// What restore() leaves in the memory of a job whose newest version is damaged.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/base/format.h"
#include "repo/levels/checkpointer.h"
#include "repo/levels/restart/names.h"
#include "repo/levels/shards/shard.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

constexpr std::size_t kGrown = 3;

std::vector<LaidTensor> grown_tensors() {
  std::vector<LaidTensor> tensors = test::three_tensors();
  tensors.push_back({.spec = {.name = "grown", .dtype = DType::u8, .shape = {3000}}, .layout = {}});
  return tensors;
}

/// A job of one rank that gets a tensor more.
class CheckpointerRestore : public testing::Test {
 protected:
  Result<std::optional<Checkpointer::Restored>> restore(const std::vector<LaidTensor>& tensors,
                                                        test::HeldMemory& memory,
                                                        const levels::RestartChoice& choice = {}) {
    FRESHET_ASSIGN(checkpointer_, Checkpointer::open(test::alone(folder_.path()), tensors));
    const auto writable = memory.writable();
    return checkpointer_->restore(writable, choice);
  }
  /// A life that makes one version, of steps.
  void checkpoint(const std::vector<LaidTensor>& tensors, int step) {
    test::HeldMemory memory(1, 0, tensors);
    const auto restored = restore(tensors, memory);
    ASSERT_TRUE(restored) << restored.error().message();
    memory.fill(step);
    ASSERT_TRUE(checkpointer_->checkpoint(static_cast<std::uint64_t>(step), memory.views()));
    ASSERT_TRUE(checkpointer_->finish(std::chrono::minutes(1)));
    checkpointer_.reset();
  }
  /// The last byte of the step in the shard of this version.
  void damage(char version, char step) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "net")) {
      const std::filesystem::path& path = entry.path();
      if (path.extension() != ".shard" || path.filename().string()[0] != version) continue;
      std::ifstream in(path, std::ios::binary);
      const std::string content{std::istreambuf_iterator<char>(in), {}};
      std::filesystem::permissions(path, std::filesystem::perms::owner_all);
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(content.rfind(std::string(4, step))));
      file.put('!');
    }
  }

  const TemporaryFolder folder_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(CheckpointerRestore, ATensorWithBytesOfADamagedVersionIsNotCalledUnchanged) {
  ASSERT_NO_FATAL_FAILURE(checkpoint(test::three_tensors(), 1));
  ASSERT_NO_FATAL_FAILURE(checkpoint(grown_tensors(), 2));
  damage('2', 2);
  test::HeldMemory memory(1, 0, grown_tensors());
  memory.fill(7);
  EXPECT_TRUE(is_refused(restore(grown_tensors(), memory), Code::failed_precondition, "net@1 lacks tensor grown"));
  memory.fill(7);
  levels::RestartChoice choice;
  choice.version = 1;
  checkpointer_.reset();
  const auto restored = restore(grown_tensors(), memory, choice);
  ASSERT_TRUE(restored && *restored) << restored.error().message();
  EXPECT_EQ((*restored)->fresh, std::vector<std::string>{"grown"});
  EXPECT_EQ(std::ranges::count(memory.held[kGrown], std::byte{7}), 3000);
  EXPECT_EQ(memory.held[0][0], std::byte{1});
}

TEST_F(CheckpointerRestore, NoJobBeginsAnewWithBytesOfADamagedVersion) {
  ASSERT_NO_FATAL_FAILURE(checkpoint(test::three_tensors(), 1));
  damage('1', 1);
  std::filesystem::remove(folder_ / "net/rank0.json");  // No level acknowledged it.
  test::HeldMemory memory(1, 0);
  EXPECT_TRUE(is_refused(restore(test::three_tensors(), memory), Code::failed_precondition, "begin anew"));
  levels::RestartChoice choice;
  choice.from_nothing = true;
  checkpointer_.reset();
  const auto anew = restore(test::three_tensors(), memory, choice);
  ASSERT_TRUE(anew) << anew.error().message();
  EXPECT_FALSE(*anew);
}

/// A tensor of the version that no rank takes, beside one that would begin fresh: perhaps one tensor with two names.
TEST_F(CheckpointerRestore, ARenamedTensorIsRefusedUnlessAsked) {
  ASSERT_NO_FATAL_FAILURE(checkpoint(test::three_tensors(), 1));
  const auto renamed = [](std::size_t tensor) {
    std::vector<LaidTensor> tensors = test::three_tensors();
    tensors[tensor].spec.name += "2";
    return tensors;
  };
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    const std::string name = test::three_tensors()[tensor].spec.name;
    test::HeldMemory memory(1, 0);
    memory.fill(7);
    const auto refused = restore(renamed(tensor), memory);
    ASSERT_TRUE(is_refused(refused, Code::failed_precondition)) << name;
    const std::string& said = refused.error().message();
    EXPECT_NE(said.find(name + "2"), std::string::npos) << said;
    EXPECT_NE(said.find(tensor == 2 ? "rng.r0" : format("tensor {},", name)), std::string::npos) << said;
    EXPECT_TRUE(memory.is_of(7)) << "nothing is filled before it is sure";
    checkpointer_.reset();
  }
  levels::RestartChoice choice;
  choice.allow_left = true;
  test::HeldMemory memory(1, 0);
  const auto restored = restore(renamed(0), memory, choice);
  ASSERT_TRUE(restored && *restored) << restored.error().message();
  EXPECT_EQ((*restored)->fresh, std::vector<std::string>{"a2"});
  EXPECT_EQ((*restored)->left, std::vector<std::string>{"a"});
}

/// Ranks come and go with tensors of their own: these were not renamed.
TEST(CheckpointNames, OwnTensorsOfOtherRanksAreNotRenamed) {
  const auto table = [](std::uint32_t ranks, std::string_view own, bool with_more) {
    std::vector<LaidTensor> tensors = test::three_tensors();
    tensors[2].spec.name = own;
    if (with_more) tensors.push_back(grown_tensors()[kGrown]);
    return levels::TensorTable::of(whole_tensors(tensors, ranks));
  };
  const auto refused = [](const auto& theirs, const auto& ours) {
    return !levels::check_not_renamed("net@1", *theirs, *ours).has_value();
  };
  EXPECT_FALSE(refused(table(2, "rng", false), table(3, "rng", false)));
  EXPECT_FALSE(refused(table(3, "rng", false), table(2, "rng", false)));
  EXPECT_FALSE(refused(table(2, "rng", false), table(3, "rng", true))) << "nothing is left";
  EXPECT_FALSE(refused(table(3, "rng", false), table(2, "rng", true))) << "what is left was a rank's that went";
  EXPECT_FALSE(refused(table(2, "rng", true), table(3, "rng", false))) << "what is fresh is a rank's that came";
  EXPECT_TRUE(refused(table(2, "rng", false), table(3, "seed", false)));
  EXPECT_TRUE(refused(table(3, "rng", false), table(2, "seed", false)));
}

/// A number that no life of a job reaches is damage. The next number after the greatest one would be 0.
TEST_F(CheckpointerRestore, APromiseThatCannotBeIsRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(checkpoint(test::three_tensors(), 1));
  const std::string path = folder_ / "net/rank0.json";
  const std::string good = R"({"acknowledged":{"local":1},"incarnation_max":5,"number_max":17})";
  for (const char* const bad : {R"({"acknowledged":{"local":1},"incarnation_max":5,"number_max":18446744073709551615})",
                                R"({"acknowledged":{"local":1},"incarnation_max":5,"number_max":9223372036854775808})",
                                R"({"acknowledged":{"local":1},"incarnation_max":18446744073709551615,"number_max":17})",
                                R"({"acknowledged":{"local":18446744073709551615},"incarnation_max":5,"number_max":17})",
                                R"({"acknowledged":{"local":18},"incarnation_max":5,"number_max":17})",
                                R"({"acknowledged":{"local":1},"incarnation_max":5,"number_max":-1})",
                                R"({"acknowledged":{"local":1},"incarnation_max":5,"number_max":1e300})",
                                R"({"acknowledged":{"local":1},"incarnation_max":5,"number_max":"17"})",
                                R"({"acknowledged":[1],"incarnation_max":5,"number_max":17})",
                                R"({"acknowledged":{"local":1},"incarnation_max":5,)", "", "[]"}) {
    std::ofstream(path, std::ios::trunc) << bad;
    test::HeldMemory memory(1, 0);
    EXPECT_TRUE(is_refused(restore(test::three_tensors(), memory), Code::corrupt, "rank0.json")) << bad;
    checkpointer_.reset();
  }
  std::ofstream(path, std::ios::trunc) << good;
  test::HeldMemory memory(1, 0);
  const auto restored = restore(test::three_tensors(), memory);
  ASSERT_TRUE(restored && *restored) << restored.error().message();
  const auto next = checkpointer_->begin(2);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, 18U);
}

}  // namespace
}  // namespace freshet
