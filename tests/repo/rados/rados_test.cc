// SPDX-License-Identifier: Apache-2.0
/// The repository in Ceph: the conformance suite of backends, and what only a cluster of daemons can do to one.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "repo/repository.h"
#include "tests/conformance/backend_conformance.h"
#include "tests/repo/rados/shared_cluster.h"

namespace freshet {
namespace {

using testing::HasSubstr;

class ClusterOrSkip : public testing::Environment {
 public:
  void SetUp() override {
    if (!ceph().why_not().empty()) GTEST_SKIP() << ceph().why_not();
  }
};
[[maybe_unused]] const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new ClusterOrSkip);

const BackendCase kRados{
    .name = "rados", .open = [](const std::string& folder) { return open_rados_backend(rados_options_for(folder)); }};

INSTANTIATE_TEST_SUITE_P(Backends, BackendConformance, testing::Values(kRados),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(Backends, DurableBackendConformance, testing::Values(kRados),
                         [](const auto& instance) { return instance.param.name; });

class RadosTest : public testing::Test {
 protected:
  std::unique_ptr<Backend> open(bool read_only = false) {
    RadosOptions options = rados_options_for(folder_.path());
    options.read_only = read_only;
    auto opened = open_rados_backend(options);
    EXPECT_TRUE(opened) << opened.error().message();
    return opened ? std::move(*opened) : nullptr;
  }
  static void write(Backend& backend, const std::string& key, std::size_t bytes) {
    auto writer = backend.write_blobs();
    ASSERT_TRUE(writer) << writer.error().message();
    ASSERT_TRUE((*writer)->write(key, std::vector<std::byte>(bytes, std::byte{7})));
    ASSERT_TRUE((*writer)->commit());
  }
  TemporaryFolder folder_;
};

TEST_F(RadosTest, OneProcessOwnsIt) {
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  const auto second = open_rados_backend(rados_options_for(folder_.path()));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::unavailable);
  EXPECT_THAT(second.error().message(), HasSubstr("owns it"));
  write(*owner, "blob", 5 << 20);
  const auto reader = open(/*read_only=*/true);
  ASSERT_NE(reader, nullptr);
  std::vector<std::byte> out(5 << 20);
  EXPECT_TRUE(reader->read_blob("blob", 0, out));
  EXPECT_EQ(reader->apply({Backend::Put{"a", "1"}}).error().code(), Code::failed_precondition);
}

TEST_F(RadosTest, OneOfAnotherFormatIsNotOwned) {
  auto owner = open();
  ASSERT_NE(owner, nullptr);
  for (const std::string number : {"2", "4"}) {
    ASSERT_TRUE(owner->apply({Backend::Put{"format", number}}));
    const auto second = open_rados_backend(rados_options_for(folder_.path()));
    EXPECT_EQ(second.error().code(), Code::unsupported) << "found before its owner is: " << second.error().message();
  }
  owner.reset();
  EXPECT_EQ(open_rados_backend(rados_options_for(folder_.path())).error().code(), Code::unsupported);
}

TEST_F(RadosTest, NothingIsMadeWhereNothingIsWanted) {
  RadosOptions options = rados_options_for(folder_.path());
  options.create = false;
  EXPECT_EQ(open_rados_backend(options).error().code(), Code::not_found);
  options.create = true;
  options.read_only = true;
  EXPECT_EQ(open_rados_backend(options).error().code(), Code::not_found);
  options.read_only = false;
  options.pool = "no-such-pool";
  const auto absent = open_rados_backend(options);
  EXPECT_EQ(absent.error().code(), Code::not_found);
  EXPECT_THAT(absent.error().message(), HasSubstr("no-such-pool"));
  options.conf_file = folder_ / "no-such-file";
  EXPECT_THAT(open_rados_backend(options).error().message(), HasSubstr("no-such-file"));
}

/// Two owners that do not come to their end: one is killed while it writes, one is stopped and goes on after somebody
/// else has taken its repository over.
TEST_F(RadosTest, OwnersThatWereKilledOrStoppedDoNoHarm) {
  const RadosOptions torn = rados_options_for(folder_.path());
  const RadosOptions taken = rados_options_for(folder_ / "taken");
  const std::vector<std::byte> bytes(6 << 20, std::byte{1});
  const pid_t killed = ::fork();
  if (killed == 0) {
    auto opened = open_rados_backend(torn);
    if (!opened) ::_exit(1);
    auto writer = (*opened)->write_blobs();
    if (!writer || !(*writer)->write("kept", bytes) || !(*writer)->commit()) ::_exit(2);
    auto another = (*opened)->write_blobs();
    if (!another || !(*another)->write("torn", bytes)) ::_exit(3);
    ::kill(::getpid(), SIGKILL);
  }
  const pid_t stopped = ::fork();
  if (stopped == 0) {
    auto opened = open_rados_backend(taken);
    if (!opened || !(*opened)->apply({Backend::Put{"a", "1"}})) ::_exit(1);
    ::kill(::getpid(), SIGSTOP);
    const Status late = (*opened)->apply({Backend::Put{"a", "2"}});
    ::_exit(late ? 2 : late.error().code() == Code::unavailable ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(killed, &status, 0), killed);
  ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
  ASSERT_EQ(::waitpid(stopped, &status, WUNTRACED), stopped);
  ASSERT_TRUE(WIFSTOPPED(status)) << WEXITSTATUS(status);

  const auto after_left = [](const RadosOptions& options) {
    auto opened = open_rados_backend(options);
    // A claim ends by the cluster's clock, which nobody here can turn.
    for (int i = 0; i < 120 && !opened && opened.error().code() == Code::unavailable; ++i) {
      ::usleep(250'000);
      opened = open_rados_backend(options);
    }
    return opened;
  };
  const auto first = after_left(torn);
  ASSERT_TRUE(first) << first.error().message();
  std::vector<std::byte> out(6 << 20);
  EXPECT_TRUE((*first)->read_blob("kept", 0, out));
  EXPECT_EQ((*first)->read_blob("torn", 0, out).error().code(), Code::not_found);
  EXPECT_LT((*first)->disk_use()->bytes, 7u << 20);

  const auto second = after_left(taken);
  ASSERT_TRUE(second) << second.error().message();
  ASSERT_TRUE((*second)->apply({Backend::Put{"a", "3"}}));
  ASSERT_EQ(::kill(stopped, SIGCONT), 0);
  ASSERT_EQ(::waitpid(stopped, &status, 0), stopped);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "2: its late write was taken; 3: refused for another reason";
  EXPECT_EQ((*second)->get("a").value_or("?"), "3");
}

/// A put that failed has the backend recovered, while others still write.
TEST_F(RadosTest, RecoveringLeavesThoseAloneWhoStillWrite) {
  const auto backend = open();
  ASSERT_NE(backend, nullptr);
  const std::vector<std::byte> bytes(5 << 20, std::byte{3});
  auto writer = backend->write_blobs();
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->write("first", bytes));
  ASSERT_TRUE(backend->recover());
  ASSERT_TRUE((*writer)->write("second", bytes));
  ASSERT_TRUE((*writer)->commit());
  std::vector<std::byte> out(bytes.size());
  for (const char* key : {"first", "second"}) {
    const Status read = backend->read_blob(key, 0, out);
    EXPECT_TRUE(read) << read.error().message();
    EXPECT_EQ(out, bytes);
  }
}

TEST_F(RadosTest, ARepositoryRestsThere) {
  for (int round = 0; round < 2; ++round) {
    auto opened = Repository::open(open(), {});
    ASSERT_TRUE(opened) << opened.error().message();
    EXPECT_EQ((*opened)->stat()->versions, 0u);
  }
}

TEST(RadosAddress, IsChecked) {
  const auto good = parse_rados_address("rados://me@pool-1/search.7?conf=/etc/ceph/other.conf");
  ASSERT_TRUE(good) << good.error().message();
  EXPECT_EQ(good->user, "me");
  EXPECT_EQ(good->pool, "pool-1");
  EXPECT_EQ(good->repository, "search.7");
  EXPECT_EQ(good->conf_file, "/etc/ceph/other.conf");
  for (const char* text : {"rados://", "rados://pool", "rados://pool/", "rados:///a", "rados://p/a b", "rados://p/a/b",
                           "rados://p/a?", "rados://p/a?x=1", "rados://@p/a", "rados://p/a?conf=", "tcp://p/a"}) {
    const auto bad = parse_rados_address(text);
    ASSERT_FALSE(bad) << text;
    EXPECT_EQ(bad.error().code(), Code::invalid_argument) << text;
    EXPECT_THAT(bad.error().message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace freshet
