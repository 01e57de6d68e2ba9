// SPDX-License-Identifier: Apache-2.0
/// A repository that is damaged: named and passed over, as long as the ranks' folders have what was acknowledged there.

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "repo/backend/backend.h"
#include "repo/levels/checkpointer.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

constexpr auto kWithinAMinute = std::chrono::minutes(1);

class DamagedExternal : public testing::Test {
 protected:
  /// A life of the job of one rank. `damage`: what opening the repository says.
  Result<std::optional<Checkpointer::Restored>> begin(std::optional<Error> damage,
                                                      const levels::RestartChoice& choice = {}) {
    life_.reset();
    Checkpointer::Options options = test::alone(folder_.path());
    options.external = [this, damage]() -> Result<std::shared_ptr<Repository>> {
      if (damage) return fail(*damage);
      return repository_;
    };
    FRESHET_ASSIGN(life_, Checkpointer::open(std::move(options), test::three_tensors()));
    const auto writable = memory_.writable();
    return life_->restore(writable, choice);
  }
  VersionNumber checkpoint(int step) {
    memory_.fill(step);
    const auto captured = life_->checkpoint(static_cast<std::uint64_t>(step), memory_.views());
    EXPECT_TRUE(captured);
    return captured ? captured->version : 0;
  }
  /// Two versions that reached every level.
  void store_two() {
    ASSERT_TRUE(begin(std::nullopt));
    for (const int step : {1, 2}) {
      ASSERT_TRUE(life_->wait(checkpoint(step), CheckpointLevel::external, kWithinAMinute));
    }
    ASSERT_TRUE(life_->finish(kWithinAMinute));
  }
  void lose_shards_of(char version) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "net")) {
      if (entry.path().filename().string()[0] == version) std::filesystem::remove(entry.path());
    }
  }

  const Error damage_{Code::corrupt, "a table is cut"};
  const TemporaryFolder folder_;
  const std::shared_ptr<Repository> repository_{*Repository::open(make_memory_backend(), {})};
  test::HeldMemory memory_{1, 0};
  std::unique_ptr<Checkpointer> life_;
};

TEST_F(DamagedExternal, IsNamedAndPassedOverWhereTheFoldersHaveAsMuch) {
  ASSERT_NO_FATAL_FAILURE(store_two());
  memory_.fill(0);
  const auto restored = begin(damage_);
  ASSERT_TRUE(restored && *restored) << restored.error().message();
  EXPECT_EQ((*restored)->step, 2U);
  EXPECT_TRUE(memory_.is_of(2));
  ASSERT_EQ((*restored)->notes.size(), 1U);
  EXPECT_NE((*restored)->notes[0].find("a table is cut"), std::string::npos) << (*restored)->notes[0];
  // The job trains on. Its versions reach the other levels, and this one says why not.
  const VersionNumber next = checkpoint(3);
  EXPECT_TRUE(life_->wait(next, CheckpointLevel::local, kWithinAMinute));
  const Status external = life_->wait(next, CheckpointLevel::external, kWithinAMinute);
  ASSERT_FALSE(external);
  EXPECT_NE(external.error().message().find("a table is cut"), std::string::npos) << external.error().message();
}

TEST_F(DamagedExternal, NothingOlderThanWhatItHadIsTakenUnlessAsked) {
  ASSERT_NO_FATAL_FAILURE(store_two());
  lose_shards_of('2');
  const auto refused = begin(damage_);
  ASSERT_TRUE(is_refused(refused, Code::corrupt));
  for (const char* const named : {"a table is cut", "version 2 was acknowledged", "version 1"}) {
    EXPECT_NE(refused.error().message().find(named), std::string::npos) << refused.error().message();
  }
  levels::RestartChoice choice;
  choice.version = 1;
  const auto chosen = begin(damage_, choice);
  ASSERT_TRUE(chosen && *chosen) << chosen.error().message();
  EXPECT_EQ((*chosen)->step, 1U);
}

TEST_F(DamagedExternal, NoJobBeginsAnewBesideItUnlessAsked) {
  EXPECT_TRUE(is_refused(begin(damage_), Code::corrupt)) << "nobody knows what it had";
  levels::RestartChoice choice;
  choice.from_nothing = true;
  const auto anew = begin(damage_, choice);
  ASSERT_TRUE(anew) << anew.error().message();
  EXPECT_FALSE(*anew);
}

TEST_F(DamagedExternal, OneThatDoesNotAnswerIsNotDamaged) {
  ASSERT_NO_FATAL_FAILURE(store_two());
  EXPECT_EQ(begin(Error(Code::unavailable, "no answer")).error().code(), Code::unavailable);
}

}  // namespace
}  // namespace freshet
