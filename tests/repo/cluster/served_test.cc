// SPDX-License-Identifier: Apache-2.0
/// Providers in servers of their own, as clients reach them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "repo/cluster/cluster_repository.h"
#include "repo/cluster/placement/membership.h"
#include "repo/cluster/providers.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class ServedCluster : public ::testing::Test {
 protected:
  struct Served {
    std::shared_ptr<Backend> disk = make_memory_backend();
    std::unique_ptr<ProviderRepository> repository;
    std::unique_ptr<RepositoryServer> server;
    Provider provider;
  };

  void SetUp() override {
    char folder[] = "/tmp/freshet-cluster-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    std::vector<Provider> list;
    for (int i = 0; i < 3; ++i) {
      const std::string id = "p" + std::to_string(i);
      served_.push_back({.provider = {.id = id, .address = "ipc://" + folder_ + "/" + id}});
      reopen(served_.back());
      const SharedRecord self{.key = "self", .value = id};
      ASSERT_TRUE(served_.back().repository->change_shared_records({}, std::span(&self, 1)));
      start(served_.back());
      list.push_back(served_.back().provider);
    }
    auto formed = cluster::form(list, connect());
    ASSERT_TRUE(formed) << formed.error().message();
    placement_ = *formed;
  }
  void TearDown() override {
    for (Served& one : served_) one.server.reset();
    std::filesystem::remove_all(folder_);
  }

  static void reopen(Served& one) {
    one.repository = open_or_die(std::make_unique<FaultBackend>(one.disk, FaultBackend::Plan()));
  }
  static void start(Served& one) {
    auto server = RepositoryServer::open(*one.repository, {.address = one.provider.address});
    ASSERT_TRUE(server) << server.error().message();
    one.server = std::move(*server);
  }
  static cluster::Connect connect() {
    return [](const Provider& provider) -> Result<std::shared_ptr<ProviderRepository>> {
      FRESHET_ASSIGN(std::unique_ptr<ProviderRepository> repository,
                     connect_repository(provider.address, {.connect = std::chrono::seconds(60)}));
      return std::shared_ptr<ProviderRepository>(std::move(repository));
    };
  }
  std::unique_ptr<ClusterRepository> open() { return ClusterRepository::open(placement_, connect()).value(); }

  std::string folder_;
  std::vector<Served> served_;
  Placement placement_;
  std::mt19937_64 random_{5};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({1000, 70000, 300, 4000});
};

TEST_F(ServedCluster, StoresReadsMatchesRetiresAndCollects) {
  const auto repository = open();
  std::vector<TestVersion> line;
  for (std::uint32_t i = 0; i < 12; ++i) {
    line.push_back(
        make_version("net", test_id(i + 1), architecture_, line.empty() ? nullptr : &line.back(), {i % 4}, random_));
    const auto name = put(*repository, line.back(), {.quality = 0.1 * i});
    ASSERT_TRUE(name) << name.error().message();
    line.back().manifest.name = *name;
  }
  const auto other = open();
  for (const TestVersion& version : line) EXPECT_EQ(read_all(*other, version.manifest.name).value(), version.bytes);
  const auto answer = other->match({.graph = MatchGraph::of(*architecture_), .pin_by = "me"});
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->top.front().version, line.back().manifest.name);
  for (std::size_t i = 0; i + 1 < line.size(); ++i) ASSERT_TRUE(other->retire(line[i].manifest.name, {}));
  EXPECT_EQ(other->retire(line.back().manifest.name, {}).error().code(), Code::failed_precondition) << "pinned";
  ASSERT_TRUE(other->gc({}, {}));
  EXPECT_EQ(other->stat()->live_bytes, architecture_->bytes());
  EXPECT_EQ(read_all(*repository, line.back().manifest.name).value(), line.back().bytes);
}

TEST_F(ServedCluster, WhatAProviderLostOfOthersNeedsIsMadeGood) {
  TestVersion parent;
  TestVersion child;
  std::size_t keeper = 0;
  {
    const auto repository = open();
    std::uint64_t id = 1;
    do {
      parent = make_version("net", test_id(id++), architecture_, nullptr, {}, random_);
      parent.manifest.name = put(*repository, parent).value();
      child = make_version("net", test_id(id++), architecture_, &parent, {1}, random_);
      child.manifest.name = put(*repository, child).value();
      keeper = placement_.home(parent.manifest.id);
    } while (keeper == placement_.home(child.manifest.id));
  }
  Served& one = served_[keeper];
  one.server.reset();
  one.repository.reset();
  Backend::Batch lost;
  ASSERT_TRUE(one.disk->scan("x/", [&](std::string_view key, std::string_view) {
    lost.push_back(Backend::Erase{std::string(key)});
    return true;
  }));
  ASSERT_FALSE(lost.empty());
  ASSERT_TRUE(one.disk->apply(lost));
  reopen(one);
  start(one);

  const auto repository = open();
  const auto damaged = repository->verify(std::nullopt, {});
  ASSERT_TRUE(damaged) << damaged.error().message();
  EXPECT_FALSE(damaged->corrupt.empty());
  // Its writer goes before anybody repairs: what is left of its bytes are blobs that wait for gc.
  ASSERT_TRUE(repository->retire(parent.manifest.name, {}));
  const auto repaired = repository->repair();
  ASSERT_TRUE(repaired) << repaired.error().message();
  EXPECT_THAT(repaired->notes, ::testing::IsEmpty());
  EXPECT_EQ(repaired->repaired.size(), damaged->corrupt.size());
  EXPECT_THAT(repository->verify(std::nullopt, {})->corrupt, ::testing::IsEmpty());
  ASSERT_TRUE(repository->gc({}, {}));
  EXPECT_EQ(read_all(*open(), child.manifest.name).value(), child.bytes);
}

TEST_F(ServedCluster, AProviderThatDiedIsNamedAndUsedAgainWhenItIsBack) {
  const auto repository = open();
  std::vector<VersionName> names;
  std::vector<TestVersion> versions;
  for (std::uint64_t i = 1; i <= 9; ++i) {
    versions.push_back(make_version("net", test_id(i), architecture_, nullptr, {}, random_));
    names.push_back(put(*repository, versions.back()).value());
  }
  served_[1].server.reset();
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const auto bytes = read_all(*repository, names[i]);
    const bool there = placement_.home(versions[i].manifest.id) != 1;
    EXPECT_EQ(bytes.has_value(), there);
    if (bytes) continue;
    EXPECT_EQ(bytes.error().code(), Code::unavailable) << bytes.error().message();
    EXPECT_THAT(bytes.error().message(), ::testing::HasSubstr("provider p1"));
    break;
  }
  start(served_[1]);
  for (std::size_t i = 0; i < versions.size(); ++i)
    EXPECT_EQ(read_all(*repository, names[i]).value(), versions[i].bytes);
}

TEST_F(ServedCluster, LargePartsOfAVersionComeByTheChannelsOfEachProvider) {
  const auto repository = open();
  const auto large = test_architecture({3'000'000, 3'000'000, 3'000'000, 3'000'000});
  std::vector<TestVersion> line;
  for (std::uint32_t i = 0; i < 8; ++i) {
    line.push_back(
        make_version("big", test_id(100 + i), large, line.empty() ? nullptr : &line.back(), {i % 4}, random_));
    const auto name = put(*repository, line.back());
    ASSERT_TRUE(name) << name.error().message();
    line.back().manifest.name = *name;
  }
  std::set<std::size_t> homes;
  for (std::uint32_t tensor = 0; tensor < 4; ++tensor) {
    homes.insert(placement_.home(line.back().manifest.owners[tensor].writer));
  }
  ASSERT_GT(homes.size(), 1u) << "the version's parts are spread";
  EXPECT_EQ(read_all(*repository, line.back().manifest.name).value(), line.back().bytes);
  const auto sent_by = [&](std::size_t i) { return served_[i].server->stat().channel_bytes; };
  EXPECT_TRUE(came_true([&] {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < served_.size(); ++i) bytes += sent_by(i);
    return bytes == large->bytes();
  }));
  for (std::size_t i = 0; i < served_.size(); ++i) EXPECT_EQ(sent_by(i) != 0, homes.contains(i)) << i;
}

TEST_F(ServedCluster, OneAddressLeadsToAllAndOthersJoinByIt) {
  const std::string address = "ipc://" + folder_ + "/later";
  const auto later = open_or_die(make_memory_backend());
  auto server = RepositoryServer::open(*later, {.address = address});
  ASSERT_TRUE(server);
  const auto joined = join_providers(*later, address, served_[1].provider.address);
  ASSERT_TRUE(joined) << joined.error().message();
  EXPECT_EQ(joined->providers().size(), 4u);
  EXPECT_EQ(join_providers(*later, address, served_[2].provider.address).value(), *joined) << "once is enough";
  served_[0].server.reset();
  EXPECT_EQ(join_providers(*later, address, served_[2].provider.address).value(), *joined) << "also while one is away";
  start(served_[0]);

  const auto repository = open_providers("ipc://" + folder_ + "/nobody," + address);
  ASSERT_TRUE(repository) << repository.error().message();
  std::vector<TestVersion> line;
  for (std::uint32_t i = 0; i < 16; ++i) {
    line.push_back(
        make_version("net", test_id(i + 1), architecture_, line.empty() ? nullptr : &line.back(), {i % 4}, random_));
    const auto name = put(**repository, line.back());
    ASSERT_TRUE(name) << name.error().message();
    line.back().manifest.name = *name;
  }
  EXPECT_GT(later->stat()->versions, 0u);
  const auto other = open_providers(served_[0].provider.address);
  for (const TestVersion& version : line) EXPECT_EQ(read_all(**other, version.manifest.name).value(), version.bytes);
  const TestVersion beside = make_version("net", test_id(99), architecture_, nullptr, {}, random_);
  EXPECT_EQ(put(*later, beside).error().code(), Code::failed_precondition) << "nobody writes beside the others";
}

TEST_F(ServedCluster, AnotherProviderAtAFormerAddressIsAskedNothing) {
  const auto repository = open_providers(served_[0].provider.address).value();
  TestVersion parent;
  TestVersion child;
  std::uint64_t id = 1;
  const auto home_of = [&](const TestVersion& version) { return placement_.home(version.manifest.id); };
  do {
    parent = make_version("net", test_id(id++), architecture_, nullptr, {}, random_);
    parent.manifest.name = put(*repository, parent).value();
    child = make_version("net", test_id(id++), architecture_, &parent, {1}, random_);
    child.manifest.name = put(*repository, child).value();
  } while (home_of(parent) == home_of(child));
  EXPECT_EQ(read_all(*repository, child.manifest.name).value(), child.bytes);
  Served& home = served_[home_of(child)];
  Served& third = served_[3 - home_of(child) - home_of(parent)];
  TestVersion more;
  do {
    more = make_version("net", test_id(id++), architecture_, nullptr, {}, random_);
  } while (home_of(more) != home_of(child));

  // The third provider listens where the home was, somebody's own repository where the third one was.
  const std::uint64_t third_has = third.repository->stat()->versions;
  home.server.reset();
  third.server.reset();
  std::swap(third.provider.address, home.provider.address);
  start(third);
  const auto strangers = open_or_die(make_memory_backend());
  auto stranger = RepositoryServer::open(*strangers, {.address = home.provider.address});
  ASSERT_TRUE(stranger) << stranger.error().message();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(is_refused(repository->get(child.manifest.name), Code::unavailable));
    EXPECT_FALSE(put(*repository, more));
    (void)repository->retire(parent.manifest.name, {});
    (void)repository->gc({}, {});
  }
  EXPECT_EQ(third.repository->stat()->versions, third_has);
  EXPECT_EQ(strangers->stat()->versions, 0u);

  // Found again when they are back where the placement says.
  stranger->reset();
  third.server.reset();
  std::swap(third.provider.address, home.provider.address);
  start(home);
  start(third);
  const auto bytes = read_all(*repository, child.manifest.name);
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, child.bytes) << "nothing that it needs was freed";
  const auto stored = put(*repository, more);
  ASSERT_TRUE(stored) << stored.error().message();
  EXPECT_TRUE(home.repository->find(more.manifest.id).value());
  EXPECT_EQ(strangers->stat()->versions, 0u);
}

TEST_F(ServedCluster, OneThatMovedIsFoundOnceItHasJoinedFromThere) {
  const auto before = open_providers(served_[0].provider.address).value();
  std::vector<TestVersion> versions;
  for (std::uint64_t i = 1; i <= 9; ++i) {
    versions.push_back(make_version("net", test_id(i), architecture_, nullptr, {}, random_));
    versions.back().manifest.name = put(*before, versions.back()).value();
  }
  served_[1].server.reset();
  served_[1].provider.address = "ipc://" + folder_ + "/moved";
  start(served_[1]);
  const auto moved = join_providers(*served_[1].repository, served_[1].provider.address, served_[2].provider.address);
  ASSERT_TRUE(moved) << moved.error().message();
  EXPECT_EQ(moved->providers()[1], (Provider{.id = "p1", .address = served_[1].provider.address, .since = 1}));
  const auto after = open_providers(served_[0].provider.address).value();
  for (const TestVersion& version : versions) EXPECT_EQ(read_all(*after, version.manifest.name).value(), version.bytes);
  // Who knew the former address learns of the new one with the next put that needs it.
  for (std::uint64_t i = 10; i <= 18; ++i) {
    const auto name = put(*before, make_version("net", test_id(i), architecture_, nullptr, {}, random_));
    EXPECT_TRUE(name) << name.error().message();
  }
}

TEST_F(ServedCluster, OneOfAListThatKeepsSomethingElseIsRefused) {
  const std::string at = "ipc://" + folder_ + "/stranger";
  const auto strangers = open_or_die(make_memory_backend());
  const auto server = RepositoryServer::open(*strangers, {.address = at});
  ASSERT_TRUE(server) << server.error().message();
  const auto refused = [&](const std::string& addresses) {
    EXPECT_TRUE(is_refused(open_providers(addresses), Code::failed_precondition, at)) << addresses;
  };
  const std::string ours = served_[0].provider.address;
  EXPECT_TRUE(open_providers(at)) << "alone it is what was meant";
  EXPECT_TRUE(open_providers(ours + "," + served_[1].provider.address));
  EXPECT_TRUE(open_providers(ours + ",ipc://" + folder_ + "/nobody"));
  refused(at + "," + ours);
  refused(ours + "," + at);
  refused("ipc://" + folder_ + "/nobody," + at);
  const std::string beside = "ipc://" + folder_ + "/beside";
  const auto second = open_or_die(make_memory_backend());
  const auto second_server = RepositoryServer::open(*second, {.address = beside});
  ASSERT_TRUE(second_server) << second_server.error().message();
  EXPECT_EQ(join_providers(*second, beside, at + "," + ours).error().code(), Code::failed_precondition);
  ASSERT_TRUE(join_providers(*second, beside, at));
  refused(at + "," + ours);
  refused(ours + "," + at);
  EXPECT_TRUE(open_providers(at + "," + beside));
  EXPECT_TRUE(join_providers(*second, beside, at + "," + beside)) << "its own address may be in the list";
}

TEST(Providers, TwoThatWereAloneBecomeOneRepository) {
  char folder[] = "/tmp/freshet-providers-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string at = "ipc://" + std::string(folder);
  {
    std::mt19937_64 random(3);
    const auto architecture = test_architecture({10, 20});
    const auto first = open_or_die(make_memory_backend());
    const auto second = open_or_die(make_memory_backend());
    const TestVersion before = make_version("net", test_id(1), architecture, nullptr, {}, random);
    ASSERT_TRUE(put(*first, before));
    const auto one = RepositoryServer::open(*first, {.address = at + "/1"});
    const auto two = RepositoryServer::open(*second, {.address = at + "/2"});
    ASSERT_TRUE(one && two);
    ASSERT_TRUE(join_providers(*second, at + "/2", at + "/1"));
    const auto repository = open_providers(at + "/2");
    ASSERT_TRUE(repository);
    EXPECT_EQ(read_all(**repository, {.model = "net"}).value(), before.bytes);
    const TestVersion after = make_version("net", test_id(2), architecture, nullptr, {}, random);
    EXPECT_EQ(put(**repository, after)->number, 2u);
  }
  std::filesystem::remove_all(folder);
}

TEST_F(ServedCluster, ClientsAtTheSameTimeGetDifferentNumbers) {
  constexpr int kEach = 8;
  std::vector<std::vector<VersionNumber>> numbers(3);
  {
    std::vector<std::jthread> clients;
    for (std::uint64_t c = 0; c < 3; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937_64 random(c);
        const auto repository = open();
        for (std::uint64_t i = 0; i < kEach; ++i) {
          const TestVersion version = make_version("net", test_id(100 * c + i + 1), architecture_, nullptr, {}, random);
          const auto name = put(*repository, version);
          EXPECT_TRUE(name) << name.error().message();
          if (name) numbers[c].push_back(name->number);
        }
      });
    }
  }
  std::vector<VersionNumber> all;
  for (const auto& some : numbers) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i + 1);
  EXPECT_EQ(all.size(), 3u * kEach);
}

}  // namespace
}  // namespace freshet
