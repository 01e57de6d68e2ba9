// SPDX-License-Identifier: Apache-2.0
/// The level `external` at a provider's address, with keys and without, and what stays there.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/format.h"
#include "tests/repo/levels/support/job.h"
#include "transport/security/keys.h"

namespace freshet::test {
namespace {

class StoreProcess {
 public:
  explicit StoreProcess(const std::string& folder, const std::vector<std::string>& more = {})
      : process_(words(folder, more)) {
    if (const auto line = process_.line()) address_ = Json::parse(*line, nullptr, false).value("address", "");
  }
  const std::string& address() const { return address_; }

 private:
  static std::vector<std::string> words(const std::string& folder, const std::vector<std::string>& more) {
    std::vector<std::string> all = {FRESHET_PROGRAM, "provider",          "--repo", folder,
                                    "--listen",      "tcp://127.0.0.1:*", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ChildProcess process_;
  std::string address_;
};

void lose_all_hosts(const Job& job, std::uint32_t ranks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) std::filesystem::remove_all(job.local(rank));
}

void expect_from_external(const std::vector<RankRun>& runs, std::uint64_t version) {
  for (const RankRun& run : runs) {
    const Json restored = run.started()["restored"];
    EXPECT_EQ(restored["version"], version);
    EXPECT_EQ(restored["from"], Json::array({"external"}));
  }
}

TEST(RanksExternal, AProviderGivesBackWhatAllHostsLost) {
  Job job(mixed_state());
  const StoreProcess store(job.folder("store"));
  ASSERT_NE(store.address(), "");
  const Job::Options options{.words = {"--external", store.address(), "--when-behind", "wait"}};
  auto runs = job.run(3, 4, options);
  expect_all_exit(runs, 0);
  EXPECT_EQ(runs[2].reached("external"), 4U);
  lose_all_hosts(job, 3);
  for (const std::uint32_t ranks : {2U, 4U}) {
    runs = job.run(ranks, 4, options);
    expect_all_exit(runs, 0);
    expect_all_hold_what_they_should(job, runs);
    expect_from_external(runs, 4);
    lose_all_hosts(job, ranks);
  }
}

/// Every rank has its key. The provider does not know rank 2's, which restores through rank 0.
TEST(RanksExternal, WithKeysRanksReadTheProviderThemselvesOrThroughRank0) {
  Job job(mixed_state());
  const auto key_of = [&](const std::string& name) {
    const std::string path = job.folder(name);
    ChildProcess made({FRESHET_PROGRAM, "keygen", path});
    EXPECT_EQ(Job::finish(made).exit_code(), 0);
    return path;
  };
  const auto public_key = [](const std::string& path) { return read_public_key(path + ".pub")->text(); };
  const std::string store_key = key_of("store-key");
  std::vector<std::string> keys;
  for (int rank = 0; rank < 3; ++rank) keys.push_back(key_of(format("rank{}-key", rank)));
  {
    std::ofstream clients(job.folder("clients.allow"));
    clients << "writer " << public_key(keys[0]) << " rank0\n" << public_key(keys[1]) << " rank1\n";
    std::ofstream ranks(job.folder("ranks.allow"));
    for (const std::string& key : keys) ranks << public_key(key) << " rank\n";
  }
  const StoreProcess store(job.folder("store"), {"--keys", store_key, "--allow", job.folder("clients.allow")});
  ASSERT_NE(store.address(), "");
  Job::Options options{.words = {"--external", store.address(), "--when-behind", "wait", "--allow",
                                 job.folder("ranks.allow"), "--server-key", keys[0] + ".pub", "--external-server-key",
                                 store_key + ".pub"}};
  for (std::uint32_t rank = 0; rank < 3; ++rank) options.of[rank] = {"--keys", keys[rank]};
  auto runs = job.run(3, 4, options);
  expect_all_exit(runs, 0);
  lose_all_hosts(job, 3);
  runs = job.run(3, 4, options);
  expect_all_exit(runs, 0);
  expect_all_hold_what_they_should(job, runs);
  expect_from_external(runs, 4);
}

/// One rank needs no key of a peer: --server-key is then the provider's.
TEST(RanksExternal, OneRankAloneSaysTheProvidersKeyAsElsewhere) {
  Job job(mixed_state());
  for (const char* name : {"store-key", "me"}) {
    ChildProcess made({FRESHET_PROGRAM, "keygen", job.folder(name)});
    ASSERT_EQ(Job::finish(made).exit_code(), 0);
  }
  std::ofstream(job.folder("clients.allow")) << "writer " << read_public_key(job.folder("me.pub"))->text() << " me\n";
  const StoreProcess store(job.folder("store"),
                           {"--keys", job.folder("store-key"), "--allow", job.folder("clients.allow")});
  const std::vector<std::string> words = {"--external",     store.address(), "--keys",
                                          job.folder("me"), "--server-key",  job.folder("store-key.pub")};
  const auto runs = job.run(1, 3, {.words = words});
  expect_all_exit(runs, 0);
  EXPECT_EQ(runs[0].reached("external"), 3U);
}

TEST(RanksExternal, KeepCountsAtEachLevel) {
  Job job(mixed_state());
  const auto runs = job.run(2, 6,
                            {.words = {"--external", job.folder("runs"), "--when-behind", "wait", "--keep",
                                       "external:2", "--keep", "local:1"}});
  expect_all_exit(runs, 0);
  const auto rows = [&](const std::vector<std::string>& places) {
    std::vector<std::string> words = {FRESHET_PROGRAM, "checkpoint", "ls", "net", "--json"};
    words.insert(words.end(), places.begin(), places.end());
    ChildProcess listed(words);
    std::vector<std::uint64_t> versions;
    for (const Json& line : Job::finish(listed).lines) versions.push_back(line["version"]);
    return versions;
  };
  EXPECT_EQ(rows({"--local", job.folder("none"), "--external", job.folder("runs")}),
            (std::vector<std::uint64_t>{5, 6}));
  EXPECT_EQ(rows({"--local", job.local(0), job.local(1)}), (std::vector<std::uint64_t>{6}));
  // What the newest inherits from a version that was let go is there.
  lose_all_hosts(job, 2);
  const auto again = job.run(2, 6, {.words = {"--external", job.folder("runs")}});
  expect_all_exit(again, 0);
  expect_all_hold_what_they_should(job, again);
}

}  // namespace
}  // namespace freshet::test
