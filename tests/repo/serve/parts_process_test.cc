// SPDX-License-Identifier: Apache-2.0
/// Puts by parts of several processes, some of which are killed.

#include <gtest/gtest.h>
#include <signal.h>

#include "repo/part_puts.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

namespace freshet {
namespace {

class PartsProcess : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = ProviderRepository::open(*open_rocks_backend({.folder = folder_ / "store"}), {.clock = &clock_});
    ASSERT_TRUE(opened) << opened.error().message();
    local_ = std::move(*opened);
    auto server = RepositoryServer::open(*local_, {.address = address_});
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    auto remote = connect_repository(address_);
    ASSERT_TRUE(remote) << remote.error().message();
    remote_ = std::move(*remote);
  }
  std::unique_ptr<ChildProcess> peer(std::vector<std::string> words) {
    words.insert(words.begin(), {test::built(FRESHET_SERVE_PEER), address_});
    return std::make_unique<ChildProcess>(words);
  }
  PartPuts& parts() { return remote_->part_puts(); }
  void expect_nothing() {
    EXPECT_TRUE(local_->models()->empty());
    const auto report = local_->verify(std::nullopt, {});
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_TRUE(report->corrupt.empty());
    EXPECT_TRUE(report->unneeded.empty());
    EXPECT_TRUE(came_true([&] { return server_->stat().upload_bytes == 0; }));
  }

  ManualClock clock_;
  TemporaryFolder folder_;
  const std::string address_ = "ipc://" + folder_.path() + "/socket";
  std::mt19937_64 random_{7};
  const std::shared_ptr<const Architecture> architecture_ = test_architecture({6'000'000, 1000, 6'000'000});
  const TestVersion version_ = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  std::unique_ptr<ProviderRepository> local_;
  std::unique_ptr<RepositoryServer> server_;
  std::unique_ptr<ProviderRepository> remote_;
};

TEST_F(PartsProcess, TheyMakeOneVersion) {
  const PutToken token = *parts().begin_put("net", version_.manifest.id, architecture_);
  std::vector<std::unique_ptr<ChildProcess>> peers;
  for (const char* const tensor : {"0", "1", "2"}) peers.push_back(peer({"whole", to_string(token), tensor}));
  for (const auto& one : peers) EXPECT_EQ(one->line(), "whole");
  EXPECT_TRUE(local_->models()->empty());
  Manifest manifest = version_.manifest;
  manifest.digests.assign(3, Digest{});
  const auto name = parts().commit_put(token, manifest, {});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(local_->get(*name)->manifest.digests, version_.manifest.digests);
  EXPECT_EQ(read_all(*local_, *name).value(), version_.bytes);
}

TEST_F(PartsProcess, OneThatIsKilledBeforeTheCommitLeavesNothing) {
  const PutToken token = *parts().begin_put("net", version_.manifest.id, architecture_);
  EXPECT_EQ(peer({"whole", to_string(token), "0"})->line(), "whole");
  EXPECT_EQ(peer({"whole", to_string(token), "1"})->line(), "whole");
  const auto killed = peer({"half", to_string(token), "2"});
  ASSERT_EQ(killed->line(), "half");
  killed->end(SIGKILL);
  EXPECT_TRUE(is_refused(parts().commit_put(token, version_.manifest, {}), Code::failed_precondition,
                         "layer2.kernel: its bytes from 3000000 to 6000000"));
  expect_nothing();
  // Another process brings the rest.
  const TensorPart rest{
      .tensor = 2, .offset = 3'000'000, .length = 3'000'000, .bytes = Bytes(version_.bytes[2]).subspan(3'000'000)};
  ASSERT_TRUE(parts().put_parts(token, std::span(&rest, 1)));
  const auto name = parts().commit_put(token, version_.manifest, {});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(read_all(*local_, *name).value(), version_.bytes);
}

TEST_F(PartsProcess, TheTokenOfADeadProcessEnds) {
  const auto killed = peer({"begin"});
  const std::string said = killed->line().value_or("");
  const PutToken token = parse_put_token(said).value();
  EXPECT_TRUE(parts().part_digests(token));
  killed->end(SIGKILL);
  clock_.advance(kPutLease + Duration(1));
  EXPECT_TRUE(is_refused(parts().part_digests(token), Code::not_found));
  expect_nothing();
  // What it was storing is nobody's.
  ASSERT_TRUE(put(*remote_, version_));
  EXPECT_EQ(read_all(*local_, {.model = "net"}).value(), version_.bytes);
}

/// Of a server that is killed, nothing stays either.
TEST_F(PartsProcess, AServerThatEndsLeavesNothing) {
  const PutToken token = *parts().begin_put("net", version_.manifest.id, architecture_);
  EXPECT_EQ(peer({"whole", to_string(token), "0"})->line(), "whole");
  remote_.reset();
  server_.reset();
  local_.reset();
  SetUp();
  EXPECT_EQ(parts().part_digests(token).error().code(), Code::not_found);
  expect_nothing();
}

}  // namespace
}  // namespace freshet
