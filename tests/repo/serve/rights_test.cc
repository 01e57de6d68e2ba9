// SPDX-License-Identifier: Apache-2.0
/// What a key's place in the allow-list lets its owner do to a repository's server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/format.h"
#include "repo/registrar/registrar_records.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "repo/serve/wire/questions.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "transport/security/keys.h"

namespace freshet {
namespace {

using ::testing::HasSubstr;

class Rights : public testing::Test {
 protected:
  void SetUp() override {
    version_.manifest.name = put(*local_, version_).value();
    const SharedRecord number = number_record("other", counted_);
    ASSERT_TRUE(local_->change_shared_records({}, std::span(&number, 1)));
    allow("");
    auto server = RepositoryServer::open(
        *local_,
        {.address = "tcp://127.0.0.1:*", .security = {.key_file = server_key_, .allow_file = folder_ / "allow"}});
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    client_ = connect();
  }
  std::string make_keys(const std::string& name) {
    const auto keys = KeyPair::generate();
    EXPECT_TRUE(keys && keys->write(folder_ / name));
    return folder_ / name;
  }
  void allow(const std::string& word) {
    const std::string text = word + (word.empty() ? "" : " ") + read_public_key(client_key_ + ".pub")->text() + " me\n";
    std::ofstream(folder_ / "next") << text;
    std::filesystem::rename(folder_ / "next", folder_ / "allow");
  }
  std::unique_ptr<ProviderRepository> connect() {
    auto remote = connect_repository(server_->address(),
                                     {.security = {.key_file = client_key_, .server_key = server_key_ + ".pub"}});
    EXPECT_TRUE(remote) << remote.error().message();
    return remote ? std::move(*remote) : nullptr;
  }
  TestVersion next() { return make_version("net", test_id(++sequence_), architecture_, nullptr, {}, random_); }

  /// What each call answers: the error's text, or nothing.
  using Calls = std::map<std::string, std::function<std::string()>>;
  template <typename Answer>
  static std::string text_of(const Answer& answer) {
    return answer ? "" : answer.error().message();
  }
  Calls reading() {
    return {{"get", [this] { return text_of(client_->get(version_.manifest.name)); }},
            {"read", [this] { return text_of(read_all(*client_, version_.manifest.name)); }},
            {"match", [this] { return text_of(client_->match({.graph = MatchGraph::of(*architecture_)})); }},
            {"lineage", [this] { return text_of(client_->lineage(version_.manifest.name)); }},
            {"pins", [this] { return text_of(client_->all_pins()); }},
            {"shared", [this] { return text_of(client_->shared_record(kPlacementKey)); }},
            {"verify", [this] { return text_of(client_->verify(std::nullopt, {})); }}};
  }
  Calls writing() {
    return {{"put", [this] { return text_of(put(*client_, next())); }},
            {"set", [this] { return text_of(client_->annotate(version_.manifest.name, {.sets_quality = true})); }},
            {"pin", [this] { return text_of(client_->pin(version_.manifest.name, "me", {.stays = true})); }},
            {"unpin", [this] { return text_of(client_->unpin(version_.manifest.name, "me", {.stays = true})); }},
            {"match with a pin",
             [this] { return text_of(client_->match({.graph = MatchGraph::of(*architecture_), .pin_by = "me"})); }},
            {"count", [this] { return text_of(change(++counted_)); }}};
  }
  Calls operating() {
    return {{"retire",
             [this] {
               const VersionName name = put(*local_, next()).value();
               return text_of(client_->retire(name, {}));
             }},
            {"gc", [this] { return text_of(client_->gc({}, {})); }},
            {"alias", [this] { return text_of(client_->set_alias("net", "best", std::nullopt, 1)); }},
            {"settle", [this] { return text_of(client_->settle_put(test_id(1000), 1)); }},
            {"drop", [this] { return text_of(client_->drop_referrer(test_id(1000), 1)); }},
            {"count backwards", [this] { return text_of(change(counted_ - 1)); }},
            {"place", [this] {
               const SharedRecord record{.key = "placement-of-mine", .value = "x"};
               return text_of(client_->change_shared_records({}, std::span(&record, 1)));
             }}};
  }
  /// The number of a model "other", as a put over several providers takes it.
  Status change(VersionNumber to) {
    const SharedRecord before = local_->shared_record(kNumberPrefix + std::string("other")).value();
    const SharedRecord after = number_record("other", to);
    return client_->change_shared_records(std::span(&before, 1), std::span(&after, 1));
  }
  static void expect_done(const Calls& calls) {
    for (const auto& [name, call] : calls) EXPECT_EQ(call(), "") << name;
  }
  static void expect_refused(const Calls& calls, const std::string& word) {
    for (const auto& [name, call] : calls) {
      EXPECT_THAT(call(), HasSubstr(format("needs {} rights", word))) << name;
    }
  }
  /// The server reads the list when it has changed, a moment later.
  void wait_until_done(const std::function<std::string()>& call) {
    EXPECT_TRUE(came_true([&] { return call().empty(); }));
  }

  TemporaryFolder folder_;
  std::mt19937_64 random_{17};
  const std::string server_key_ = make_keys("server");
  const std::string client_key_ = make_keys("client");
  std::shared_ptr<const Architecture> architecture_ = test_architecture({100, 3000});
  std::uint64_t sequence_ = 1;
  VersionNumber counted_ = 10;
  std::unique_ptr<ProviderRepository> local_ = open_or_die(make_memory_backend());
  TestVersion version_ = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  std::unique_ptr<RepositoryServer> server_;
  std::unique_ptr<ProviderRepository> client_;
};

TEST_F(Rights, AReaderReads) {
  expect_done(reading());
  expect_refused(writing(), "writer");
  expect_refused(operating(), "operator");
  EXPECT_EQ(local_->stat()->retired_versions, 0u);
  EXPECT_EQ(local_->aliases("net")->size(), 0u);
}

TEST_F(Rights, AWriterAlsoWritesAndAnOperatorDoesAllOnceTheListSaysSo) {
  allow("writer");
  wait_until_done(writing().at("set"));
  expect_done(reading());
  expect_done(writing());
  expect_refused(operating(), "operator");
  allow("operator");
  wait_until_done(operating().at("gc"));
  expect_done(reading());
  expect_done(writing());
  expect_done(operating());
  allow("");
  EXPECT_TRUE(came_true([&] { return !put(*client_, next()); })) << "a right that was taken away is gone";
}

/// The right to change the numbers of so many models.
Right right_to_count(std::size_t numbers, const std::string& from = "41", const std::string& to = "42") {
  std::vector<SharedRecord> before;
  std::vector<SharedRecord> after;
  for (std::size_t i = 0; i < numbers; ++i) {
    before.push_back({.key = format("{}m{}", kNumberPrefix, i), .value = from});
    after.push_back({.key = before.back().key, .value = to});
  }
  return only_counts(before, after) ? rpc::terms_of<rpc::Count>().right : rpc::terms_of<rpc::ChangeShared>().right;
}

TEST(RightsOfAQuestion, MoreThanAnHonestCallChangesIsNoCounting) {
  EXPECT_EQ(right_to_count(1), Right::write);
  EXPECT_EQ(right_to_count(kCountedMax), Right::write);
  EXPECT_EQ(right_to_count(kCountedMax + 1), Right::operate);
  EXPECT_EQ(right_to_count(1, "41", std::string(18, '0') + "42"), Right::write);
  EXPECT_EQ(right_to_count(1, "41", std::string(19, '0') + "42"), Right::operate) << "no number is so long";
}

TEST(RightsOfAQuestion, NoWriterUsesUpAModelsNumbers) {
  const auto from_to = [](VersionNumber from, VersionNumber to) {
    return right_to_count(1, std::to_string(from), std::to_string(to));
  };
  EXPECT_EQ(from_to(1, kGivenNumberMax), Right::write);
  EXPECT_EQ(from_to(1, kGivenNumberMax + 1), Right::operate);
  EXPECT_EQ(from_to(kGivenNumberMax, kGivenNumberMax + 1), Right::write);
  EXPECT_EQ(from_to(kGivenNumberMax, kGivenNumberMax + 2), Right::operate);
}

TEST(RightsWithoutKeys, WhoeverReachesTheServerHasAll) {
  std::mt19937_64 random(18);
  const auto local = open_or_die(make_memory_backend());
  const auto server = RepositoryServer::open(*local, {.address = "tcp://127.0.0.1:*"});
  ASSERT_TRUE(server);
  const auto client = connect_repository((*server)->address());
  ASSERT_TRUE(client);
  const auto name = put(**client, make_version("net", test_id(1), test_architecture({10}), nullptr, {}, random));
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_TRUE((*client)->retire(*name, {}));
  EXPECT_TRUE((*client)->gc({}, {}));
}

}  // namespace
}  // namespace freshet
