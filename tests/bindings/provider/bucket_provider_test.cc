// SPDX-License-Identifier: Apache-2.0
/// `freshet provider` on a bucket of a real server and on a pool of a real Ceph: owners and standbys are killed,
/// stopped, woken and ended.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "tests/bindings/cli/support/program.h"
#include "tests/support/ceph_cluster.h"
#include "tests/support/seaweed_server.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

Environment environment_of(const s3::Credentials& credentials) {
  return {{"AWS_ACCESS_KEY_ID", credentials.access_key_id}, {"AWS_SECRET_ACCESS_KEY", credentials.secret_access_key}};
}

/// A new place, as its owner and as a reader names it, and what each has in its environment.
struct Place {
  std::string why_not;  ///< Non-empty: this machine has no such store.
  std::string owner;
  std::string reader;
  Environment owner_keys;
  Environment reader_keys;
};

Place place_in_seaweed(const std::string& name) {
  static SeaweedServer store;
  const std::string place = "s3://freshet/providers/" + name + "?endpoint=" + store.endpoint();
  return {.why_not = store.why_not(),
          .owner = place,
          .reader = place,
          .owner_keys = environment_of(SeaweedServer::owner()),
          .reader_keys = environment_of(SeaweedServer::reader())};
}

CephCluster& ceph_of_providers() {
  static CephCluster one;
  return one;
}

Place place_in_ceph(const std::string& name) {
  const CephCluster& store = ceph_of_providers();
  return {.why_not = store.why_not(),
          .owner = store.address(name),
          .reader = store.address(name, "reader"),
          .owner_keys = {},
          .reader_keys = {}};
}

struct StoreOfProviders {
  std::string name;
  std::function<Place(const std::string& name)> new_place;
};

class BucketProvider : public testing::TestWithParam<StoreOfProviders> {
 protected:
  void SetUp() override {
    static int places = 0;
    place_ = GetParam().new_place("place-" + std::to_string(places++));
    if (!place_.why_not.empty()) GTEST_SKIP() << place_.why_not;
    // Four floats.
    std::ofstream(weights_) << std::string("\x38\0\0\0\0\0\0\0", 8)
                            << R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}} )" << std::string(16, '\1');
  }

  struct Provider {
    std::unique_ptr<Running> process;
    std::string address;
    bool is_standby = false;
  };
  Provider provider(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"provider", "--repo", place_.owner, "--listen", "tcp://127.0.0.1:*", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    Provider one{.process = std::make_unique<Running>(words, place_.owner_keys)};
    const Json line = one.process->next_json();
    EXPECT_EQ(keys_of(line), (std::vector<std::string>{"repository", "address", "pid", "standby"})) << line;
    if (!line.is_object()) return one;
    one.address = line.value("address", "");
    one.is_standby = line.value("standby", false);
    return one;
  }
  Ended put(const std::string& repository, const Environment& environment = {}) const {
    return run({"repo", "put", "net", "--weights", weights_, "--repo", repository, "--json"}, environment);
  }
  /// The newest version, as a client of that place sees it; 0 for an error.
  int newest(const std::string& repository, const Environment& environment = {}) const {
    const Ended ended = run({"repo", "ls", "--repo", repository, "--json"}, environment);
    const Json line = ended.json();
    return ended.exit_code == 0 && line.is_object() ? line.value("newest", 0) : 0;
  }

  const TemporaryFolder folder_;
  const std::string weights_ = folder_ / "net.safetensors";
  Place place_;
};

INSTANTIATE_TEST_SUITE_P(Stores, BucketProvider,
                         testing::Values(StoreOfProviders{"s3", place_in_seaweed},
                                         StoreOfProviders{"rados", place_in_ceph}),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(BucketProvider, StandbysTakeOverFromOwnersThatAreKilledAndThatEnd) {
  Provider owner = provider();
  Provider standby = provider();
  EXPECT_FALSE(owner.is_standby);
  ASSERT_TRUE(standby.is_standby);
  EXPECT_EQ(put(place_.owner, place_.owner_keys).exit_code, 0) << "through the owner";
  EXPECT_EQ(put(standby.address).exit_code, 0) << "a standby leads to the owner";
  EXPECT_EQ(newest(owner.address + "," + standby.address), 2);
  EXPECT_EQ(newest(place_.reader, place_.reader_keys), 2) << "beside the owner";
  const Ended read_keys = put(place_.reader, place_.reader_keys);
  EXPECT_EQ(read_keys.exit_code, 0) << "the owner writes: " << read_keys.err;

  owner.process->signal(SIGKILL);
  const Ended during = put(owner.address + "," + standby.address);
  EXPECT_EQ(during.exit_code, 0) << during.err;
  const Json line = standby.process->next_json();
  EXPECT_EQ(line.value("standby", true), false) << line;
  EXPECT_EQ(line.value("address", ""), standby.address);
  EXPECT_EQ(newest(standby.address), 4);

  Provider next = provider();
  ASSERT_TRUE(next.is_standby);
  standby.process->signal(SIGTERM);
  EXPECT_EQ(next.process->next_json().value("standby", true), false);
  EXPECT_EQ(put(next.address).exit_code, 0);
  EXPECT_EQ(newest(place_.reader, place_.reader_keys), 5);
}

TEST_P(BucketProvider, AnOwnerThatWasStoppedStandsByWhenItWakes) {
  Provider stopped = provider();
  Provider standby = provider();
  ASSERT_TRUE(standby.is_standby);
  ASSERT_EQ(put(place_.owner, place_.owner_keys).exit_code, 0);
  stopped.process->signal(SIGSTOP);
  EXPECT_EQ(standby.process->next_json().value("standby", true), false);
  ASSERT_EQ(put(standby.address).exit_code, 0);
  stopped.process->signal(SIGCONT);
  // It refuses, or leads to the owner; it never tells of the version before.
  const int told = newest(stopped.address);
  EXPECT_TRUE(told == 0 || told == 2) << told;
  EXPECT_EQ(stopped.process->next_json().value("standby", false), true);
  EXPECT_EQ(newest(stopped.address), 2);
  EXPECT_EQ(put(stopped.address).exit_code, 0);
}

TEST_P(BucketProvider, ErrorsNameWhatIsMissing) {
  const Ended archived =
      run({"archive", "net", "--at", "tcp://127.0.0.1:9", "--repo", place_.owner}, place_.owner_keys);
  EXPECT_NE(archived.exit_code, 0);
  EXPECT_THAT(archived.err, HasSubstr("start `freshet provider"));
  const Ended nothing = run({"repo", "ls", "--repo", place_.reader}, place_.reader_keys);
  EXPECT_THAT(nothing.err, HasSubstr("there is no repository")) << "what is refused begins none";
  {
    Provider owner = provider({"--reached-at", "tcp://127.0.0.1:9"});
    EXPECT_EQ(owner.address, "tcp://127.0.0.1:9");
    const Ended unreached = put(place_.owner, place_.owner_keys);
    EXPECT_EQ(unreached.exit_code, 5) << unreached.err;
    EXPECT_THAT(unreached.err, HasSubstr("the owner at tcp://127.0.0.1:9 does not answer this process, but"));
    owner.process->signal(SIGTERM);
    EXPECT_EQ(owner.process->wait().exit_code, 130);
  }
  const Ended no_right = put(place_.reader, place_.reader_keys);
  EXPECT_EQ(no_right.exit_code, 1) << no_right.err;
  EXPECT_THAT(no_right.err, HasSubstr("cannot own the repository"));
  EXPECT_THAT(no_right.err, HasSubstr("no right"));
  EXPECT_EQ(put(place_.owner, place_.owner_keys).exit_code, 0) << "without an owner, the command owns it";
}

/// librados has lines of its own for these. A command says one.
TEST(CephErrors, AreOneLineEach) {
  const CephCluster& store = ceph_of_providers();
  if (!store.why_not().empty()) GTEST_SKIP() << store.why_not();
  const std::string conf = "?conf=" + store.conf_file();
  const std::vector<std::pair<std::string, std::string>> places = {
      {store.address("errors", "stranger"), "the cluster refuses client.stranger"},
      {store.address("errors", "nobody"), "the cluster refuses client.nobody"},
      {"rados://no-such-pool/errors" + conf, "the cluster has no pool no-such-pool"},
      {"rados://freshet/errors" + conf + ".none", "cannot be read as a ceph.conf"},
  };
  for (const auto& [place, reason] : places) {
    const Ended ended = run({"repo", "ls", "--repo", place});
    EXPECT_EQ(ended.exit_code, 1) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(reason));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

TEST_P(BucketProvider, TheOwnersKeyStandsInTheLog) {
  for (const std::string name : {"store", "worker", "other"}) {
    ASSERT_EQ(run({"keygen", folder_ / name}).exit_code, 0);
  }
  std::ofstream allowed(folder_ / "allow");
  for (const std::string name : {"store", "worker"}) {
    allowed << "writer " << std::ifstream(folder_ / (name + ".pub")).rdbuf() << "\n";
  }
  allowed.close();
  const std::vector<std::string> keys = {"--keys", folder_ / "store", "--allow", folder_ / "allow"};
  const Provider owner = provider(keys);
  const Provider standby = provider(keys);
  ASSERT_TRUE(standby.is_standby);
  const auto put_with = [this](const std::string& place, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"repo", "put", "net", "--weights", weights_, "--repo", place, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, place_.owner_keys);
  };
  const std::string worker = folder_ / "worker";
  const Ended found = put_with(place_.owner, {"--keys", worker});
  EXPECT_EQ(found.exit_code, 0) << found.err;
  const Ended led = put_with(standby.address, {"--keys", worker, "--server-key", folder_ / "store.pub"});
  EXPECT_EQ(led.exit_code, 0) << led.err;
  const Ended everywhere =
      run({"provider", "--repo", place_.owner, "--listen", "tcp://*:*", keys[0], keys[1], keys[2], keys[3]},
          place_.owner_keys);
  EXPECT_EQ(everywhere.exit_code, 1);
  EXPECT_THAT(everywhere.err, HasSubstr("give --reached-at"));
  EXPECT_THAT(put_with(place_.owner, {}).err, HasSubstr("takes keys: give --keys"));
  EXPECT_THAT(put_with(place_.owner, {"--keys", worker, "--server-key", folder_ / "other.pub"}).err,
              HasSubstr("not the given server key"));
}

}  // namespace
}  // namespace freshet::cli_test
