// SPDX-License-Identifier: Apache-2.0
/// Aliases: compare-and-swap against a map, what they refuse, and that they outlive the process.

#include <gtest/gtest.h>

#include "core/base/format.h"
#include "repo/records/records.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"

namespace freshet {
namespace {

class AliasTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(3);
    const auto architecture = test_architecture({10, 20});
    for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) {
      const std::string model = sequence == 4 ? "other" : "net";
      ASSERT_TRUE(put(*repository_, make_version(model, test_id(sequence), architecture, nullptr, {}, random)));
    }
  }

  std::unique_ptr<Repository> open() {
    return open_or_die(std::make_unique<FaultBackend>(backend_, FaultBackend::Plan{}));
  }

  std::shared_ptr<Backend> backend_ = make_memory_backend();
  std::unique_ptr<Repository> repository_ = open();
};

TEST_F(AliasTest, ItMovesOnlyFromWhatWasExpected) {
  ASSERT_TRUE(repository_->set_alias("net", "best", 0, 1));
  EXPECT_EQ(to_string(repository_->resolve("net@best").value()), "net@1");
  const Status late = repository_->set_alias("net", "best", 0, 2);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::failed_precondition);
  EXPECT_EQ(late.error().message(), "net@best means version 1 now, not no version");
  EXPECT_TRUE(repository_->set_alias("net", "best", 1, 3));
  EXPECT_TRUE(repository_->set_alias("net", "best", std::nullopt, 2));
  EXPECT_EQ(repository_->aliases("net").value(), (std::vector<Alias>{{"best", 2}}));
  EXPECT_TRUE(repository_->set_alias("net", "best", 2, 0));
  EXPECT_EQ(repository_->resolve("net@best").error().code(), Code::not_found);
  EXPECT_EQ(repository_->resolve("net@best").error().message(), "net has no alias best");
}

TEST_F(AliasTest, ItNamesVersionsThatAreThere) {
  EXPECT_EQ(repository_->set_alias("net", "best", 0, 9).error().code(), Code::not_found);
  EXPECT_EQ(repository_->set_alias("net", "best", 0, 4).error().code(), Code::not_found);
  EXPECT_EQ(repository_->set_alias("nothing", "best", 0, 1).error().code(), Code::not_found);
  EXPECT_TRUE(repository_->aliases("net")->empty());
}

TEST_F(AliasTest, ANameIsNeverANumber) {
  for (const char* bad : {"", "1", "17", "1st", "-x", ".x", "a b", "a@b", "a/b", "ä"}) {
    EXPECT_EQ(repository_->set_alias("net", bad, 0, 1).error().code(), Code::invalid_argument) << bad;
  }
  EXPECT_FALSE(check_alias(std::string(65, 'a')));
  EXPECT_TRUE(check_alias(std::string(64, 'a')));
  EXPECT_EQ(repository_->set_alias("../net", "best", 0, 1).error().code(), Code::invalid_argument);
  for (const char* bad : {"net@", "net@1x", "@best", "net@best@1", "net@0", "n t@best"}) {
    EXPECT_EQ(repository_->resolve(bad).error().code(), Code::invalid_argument) << bad;
  }
  EXPECT_EQ(to_string(repository_->resolve("net@2").value()), "net@2");
  EXPECT_EQ(repository_->resolve("net")->number, 0u);
}

TEST_F(AliasTest, RandomMovesAgreeWithAMapAndOutliveTheProcess) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(format("seed {}", seed));
  std::mt19937_64 random(seed);
  std::map<std::pair<std::string, std::string>, VersionNumber> known;
  for (int step = 0; step < 500; ++step) {
    const std::string model = random() % 3 == 0 ? "other" : "net";
    const std::string alias(1, static_cast<char>('a' + random() % 3));
    const VersionNumber expected = random() % 4;
    const VersionNumber desired = model == "other" ? (random() % 2) : random() % 4;
    VersionNumber& now = known[{model, alias}];
    const Status set = repository_->set_alias(model, alias, expected, desired);
    EXPECT_EQ(set.has_value(), expected == now) << model << "@" << alias;
    if (set) now = desired;
    if (step % 100 == 99) repository_ = open();
    for (const char* one : {"net", "other"}) {
      std::vector<Alias> aliases;
      for (const auto& [key, number] : known) {
        if (key.first == one && number != 0) aliases.push_back({key.second, number});
      }
      ASSERT_EQ(repository_->aliases(one).value(), aliases);
    }
  }
}

TEST_F(AliasTest, ADamagedRecordIsSaidAndCanBeSetAnew) {
  ASSERT_TRUE(repository_->set_alias("net", "best", 0, 1));
  ASSERT_TRUE(backend_->apply({Backend::Put{alias_key("net", "best"), "one"}}));
  EXPECT_EQ(repository_->resolve("net@best").error().code(), Code::corrupt);
  EXPECT_EQ(repository_->resolve("other@best").error().code(), Code::not_found);
  EXPECT_EQ(repository_->set_alias("net", "best", 1, 2).error().code(), Code::corrupt);
  ASSERT_TRUE(repository_->set_alias("net", "best", std::nullopt, 2));
  EXPECT_EQ(repository_->resolve("net@best")->number, 2u);
}

}  // namespace
}  // namespace freshet
