// SPDX-License-Identifier: Apache-2.0
// `freshet rollback`, `release` and `commit`, as an operator calls them, with and without relays in between.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>

#include "tests/bindings/cli/support/streaming.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

class ActivationCommands : public Streaming {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_ / "in"); }

  Running publish(std::vector<std::string> more = {"--keep", "4"}) const {
    std::vector<std::string> words = {"publish", "net", "--watch", folder_ / "in"};
    words.insert(words.end(), more.begin(), more.end());
    return start(words);
  }

  /// Makes versions `from` to `to`, one after the other.
  void make(Running& publisher, char from, char to) const {
    for (char number = from; number <= to; ++number) {
      drop(folder_ / "in", "step" + std::to_string(number) + ".safetensors", encoded(chain(1, 2, number)));
      ASSERT_EQ(publisher.next_json()["version"], number);
    }
  }

  Ended newcomer(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"subscribe", "net", "--out", folder_ / "new", "--count", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run_to_end(words);
  }

  /// Of the next line on stderr that has one.
  static std::string next_address(Running& serving) {
    for (;;) {
      const std::optional<std::string> line = serving.next_error_line();
      EXPECT_TRUE(line) << "it ended, and said no address";
      if (!line) return "";
      const std::size_t at = line->find("tcp://");
      if (at != std::string::npos) return line->substr(at);
    }
  }

  /// Looks again and again until the publisher's state is so.
  Json top_until(const std::function<bool(const Json&)>& is_so) const {
    Running top = start({"top", "net", "--interval", "0.05"});
    for (;;) {
      const Json stat = top.next_json();
      if (!stat.is_object() || is_so(stat)) return stat;
    }
  }

  static bool all_have_reported(const Json& stat, std::size_t subscribers, int version) {
    const Json& list = stat["subscribers"];
    return list.size() == subscribers &&
           std::all_of(list.begin(), list.end(), [&](const Json& one) { return one["serving"] == version; });
  }
};

TEST_F(ActivationCommands, RollbackHoldsUntilRelease) {
  Running publisher = publish();
  make(publisher, 1, 3);
  Running subscriber = start({"subscribe", "net", "--out", folder_ / "out"});
  ASSERT_EQ(subscriber.next_json()["version"], 3);

  const Ended back = run_to_end({"rollback", "net@1"});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  const Json report = back.json();
  EXPECT_EQ(report["model"], "net");
  EXPECT_EQ(report["version"], 1);
  EXPECT_EQ(report["epoch"], 1);
  EXPECT_EQ(report["hold"], true);
  EXPECT_EQ(report["members"], 0);
  EXPECT_TRUE(report["mixed_ms"].is_number());
  // The answer means the files, too.
  EXPECT_EQ(report["behind"], 0);
  EXPECT_EQ(model_in(folder_ / "out/latest"), chain(1, 2, 1));
  EXPECT_EQ(subscriber.next_json()["version"], 1);

  // What is published under the hold is kept, and served to nobody, newcomers included.
  make(publisher, 4, 4);
  EXPECT_EQ(newcomer().json()["version"], 1);
  EXPECT_EQ(model_in(folder_ / "new/latest"), chain(1, 2, 1));
  const Ended top = run({"top", "net", "--once"}, environment());
  EXPECT_THAT(top.out, HasSubstr("@1 is current and held, epoch 1"));

  const Ended released = run_to_end({"release", "net"});
  ASSERT_EQ(released.exit_code, 0) << released.err;
  EXPECT_EQ(released.json()["version"], 4);
  EXPECT_EQ(released.json()["hold"], false);
  EXPECT_EQ(released.json()["epoch"], 2);
  EXPECT_EQ(subscriber.next_json()["version"], 4);
  make(publisher, 5, 5);
  EXPECT_EQ(subscriber.next_json()["version"], 5);
}

TEST_F(ActivationCommands, AWordForPeople) {
  Running publisher = publish();
  make(publisher, 1, 2);
  EXPECT_EQ(run({"rollback", "net@1"}, environment()).out, "net@1 is current and held, epoch 1\n");
  EXPECT_EQ(run({"release", "net"}, environment()).out, "net@2 is current, epoch 2\n");
}

TEST_F(ActivationCommands, AStoppedSubscriberIsCountedAsOftenAsItIsAskedFor) {
  Running publisher = publish();
  make(publisher, 1, 2);
  Running stopped = start({"subscribe", "net", "--out", folder_ / "stopped"});
  Running other = start({"subscribe", "net", "--out", folder_ / "other"});
  ASSERT_EQ(stopped.next_json()["version"], 2);
  ASSERT_EQ(other.next_json()["version"], 2);
  top_until([](const Json& stat) { return all_have_reported(stat, 2, 2); });
  stopped.signal(SIGSTOP);
  // The first time it may still be waited for, the second time it is silent for sure.
  for (const char* time : {"first", "second"}) {
    const Ended back = run_to_end({"rollback", "net@1"});
    EXPECT_EQ(back.exit_code, 0) << back.err;
    EXPECT_EQ(back.json()["behind"], 1) << time;
    EXPECT_EQ(back.json()["mixed_ms"], 0.0) << time;
  }
  EXPECT_EQ(other.next_json()["version"], 1);
  EXPECT_EQ(model_in(folder_ / "stopped/latest"), chain(1, 2, 2));
  EXPECT_EQ(run({"rollback", "net@1"}, environment()).out,
            "net@1 is current and held, epoch 1; 1 follower does not serve it yet, those behind relays counted too "
            "(`freshet top` names them)\n");
  stopped.signal(SIGCONT);
  EXPECT_EQ(stopped.next_json()["version"], 1);
  EXPECT_EQ(run_to_end({"rollback", "net@1"}).json()["behind"], 0);
}

TEST_F(ActivationCommands, RollbackWithoutAHoldLetsTheNextPublishBeServed) {
  Running publisher = publish();
  make(publisher, 1, 2);
  Running subscriber = start({"subscribe", "net", "--out", folder_ / "out"});
  ASSERT_EQ(subscriber.next_json()["version"], 2);
  const Ended back = run_to_end({"rollback", "net@1", "--no-hold"});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.json()["hold"], false);
  EXPECT_EQ(subscriber.next_json()["version"], 1);
  make(publisher, 3, 3);
  EXPECT_EQ(subscriber.next_json()["version"], 3);
}

TEST_F(ActivationCommands, ReleaseMayNameAVersion) {
  Running publisher = publish();
  make(publisher, 1, 3);
  ASSERT_EQ(run_to_end({"rollback", "net@1"}).exit_code, 0);
  const Ended released = run_to_end({"release", "net@2"});
  ASSERT_EQ(released.exit_code, 0) << released.err;
  EXPECT_EQ(released.json()["version"], 2);
  EXPECT_EQ(newcomer().json()["version"], 2);
}

TEST_F(ActivationCommands, AHoldOutlivesThePublisherAndSaysWhatIsMissing) {
  std::optional<Running> publisher(publish());
  make(*publisher, 1, 2);
  Running subscriber = start({"subscribe", "net", "--out", folder_ / "out"});
  ASSERT_EQ(subscriber.next_json()["version"], 2);
  ASSERT_EQ(run_to_end({"rollback", "net@1"}).exit_code, 0);
  ASSERT_EQ(subscriber.next_json()["version"], 1);

  publisher.reset();  // Killed.
  std::filesystem::remove_all(folder_ / "in");
  std::filesystem::create_directory(folder_ / "in");
  publisher.emplace(publish());
  EXPECT_THAT(publisher->next_error_line().value_or(""), HasSubstr("net@1 is held (epoch 1), but not kept here"));
  make(*publisher, 3, 3);
  Running newcomer = start({"subscribe", "net", "--count", "1"});
  EXPECT_THAT(newcomer.next_error_line().value_or(""), HasSubstr("new subscribers wait for `freshet release net`"));
  const Json stat = top_until([](const Json& one) { return one["subscribers"].size() == 2; });
  EXPECT_TRUE(stat["mixed_ms"].is_number()) << stat;
  EXPECT_EQ(stat["current"], Json::parse(R"({"epoch":1,"hold":true,"kept":false,"version":1})"));
  EXPECT_THAT(
      run({"top", "net", "--once"}, environment()).out,
      HasSubstr("@1 is current and held, epoch 1, but not kept here: new subscribers wait for `freshet release net`"));
  // Whoever had it serves it all along.
  const Json had = top_until([](const Json& one) {
    return std::any_of(one["subscribers"].begin(), one["subscribers"].end(),
                       [](const Json& two) { return two["serving"] == 1; });
  });
  EXPECT_EQ(had["newest"], 3);

  ASSERT_EQ(run_to_end({"release", "net"}).exit_code, 0);
  EXPECT_EQ(subscriber.next_json()["version"], 3);
  const Ended came = newcomer.wait();
  EXPECT_EQ(came.exit_code, 0) << came.err;
  EXPECT_EQ(came.json()["version"], 3);
}

TEST_F(ActivationCommands, WhatCannotBeIsOneLineAndChangesNothing) {
  EXPECT_EQ(run_to_end({"rollback", "net"}).exit_code, 2);
  EXPECT_EQ(run_to_end({"commit", "net"}).exit_code, 2);
  EXPECT_EQ(run_to_end({"release"}).exit_code, 2);
  EXPECT_EQ(run_to_end({"rollback", "net@1", "--at", "tcp://10.0.0.1:1"}).exit_code, 2);
  EXPECT_EQ(run_to_end({"rollback", "net@1"}).exit_code, 3);  // Nobody publishes it.

  Running publisher = publish({"--keep", "2"});
  make(publisher, 1, 3);
  const auto fails = [&](const std::vector<std::string>& words, int exit_code, const std::string& text) {
    const Ended ended = run_to_end(words);
    EXPECT_EQ(ended.exit_code, exit_code) << ended.err;
    EXPECT_EQ(ended.out, "");
    EXPECT_THAT(ended.err, HasSubstr(text));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  };
  fails({"rollback", "net@1"}, 3, "net@1 is not kept here; kept are @2, @3");
  fails({"rollback", "net@9"}, 3, "net@9");
  fails({"rollback", "net@2", "--epoch", "7"}, 1, "net is at epoch 0, not at epoch 7");
  fails({"release", "other"}, 3, "other");
  EXPECT_EQ(newcomer().json()["version"], 3);
}

TEST_F(ActivationCommands, CommitIsForAllMembersAtOnce) {
  Running publisher = publish({"--keep", "4", "--group-commit"});
  make(publisher, 1, 1);
  std::vector<Running> members;
  for (int i = 0; i < 2; ++i) members.push_back(start({"subscribe", "net", "--staged"}));
  for (Running& member : members) ASSERT_EQ(member.next_json()["version"], 1);
  top_until([](const Json& stat) { return all_have_reported(stat, 2, 1); });
  make(publisher, 2, 2);
  for (Running& member : members) ASSERT_EQ(member.next_json()["version"], 2);
  top_until([](const Json& stat) { return all_have_reported(stat, 2, 2); });

  const Ended committed = run_to_end({"commit", "net@1", "--hold"});
  ASSERT_EQ(committed.exit_code, 0) << committed.err;
  EXPECT_EQ(committed.json()["version"], 1);
  EXPECT_EQ(committed.json()["members"], 2);
  EXPECT_EQ(committed.json()["hold"], true);
  for (Running& member : members) EXPECT_EQ(member.next_json()["version"], 1);

  // A member that is stopped, but was heard a moment ago, is waited for: in vain, and so for nobody. If this test was
  // so slow that the member has lapsed meanwhile, the other one is the group.
  members[0].signal(SIGSTOP);
  const Ended missed = run_to_end({"commit", "net@2", "--within", "0.3"});
  members[0].signal(SIGCONT);
  if (missed.exit_code == 0) {
    EXPECT_EQ(missed.json()["members"], 1);
  } else {
    EXPECT_EQ(missed.exit_code, 5) << missed.out;
    EXPECT_THAT(missed.err, HasSubstr(std::to_string(members[0].pid())));
    EXPECT_EQ(newcomer().json()["version"], 1);
  }
}

TEST_F(ActivationCommands, ARelayBesideItsPublisherNeedsARunFolderOfItsOwn) {
  Running publisher = publish({"--at", "tcp://127.0.0.1:*"});
  const std::string at = next_address(publisher);
  make(publisher, 1, 1);
  const std::vector<std::string> words = {"relay", "net", "--at", at, "--listen", "tcp://127.0.0.1:*", "--json"};
  const Ended beside = run(words, environment());
  EXPECT_EQ(beside.exit_code, 1);
  EXPECT_THAT(beside.err,
              HasSubstr("net is already published on this host, by process " + std::to_string(publisher.pid()) +
                        "; a relay beside that publisher needs a run "
                        "folder of its own: set FRESHET_RUN_DIR"));
  EXPECT_EQ(std::count(beside.err.begin(), beside.err.end(), '\n'), 1) << beside.err;

  Running relay(words, {{"FRESHET_RUN_DIR", folder_ / "elsewhere"}});
  const std::string again = next_address(relay);
  EXPECT_EQ(relay.next_json()["version"], 1);
  EXPECT_EQ(newcomer({"--at", again}).json()["version"], 1);
}

TEST_F(ActivationCommands, ARelayTakesARollbackToItsNeighbours) {
  Running publisher = publish({"--keep", "4", "--at", "tcp://127.0.0.1:*"});
  const std::string at = next_address(publisher);
  // A relay has the model's name in a directory of its own, as on another host.
  const Environment elsewhere = {{"FRESHET_RUN_DIR", folder_ / "elsewhere"}};
  Running relay({"relay", "net", "--at", at, "--keep", "3", "--channel", "zmq", "--json"}, elsewhere);
  for (char number = 1; number <= 3; ++number) {
    make(publisher, number, number);
    EXPECT_EQ(relay.next_json()["version"], number);
  }
  Running leaf({"subscribe", "net", "--out", folder_ / "leaf", "--json"}, elsewhere);
  ASSERT_EQ(leaf.next_json()["version"], 3);

  // Not the relay's to decide.
  const Ended refused = run({"rollback", "net@1", "--json"}, elsewhere);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("relayed here"));

  ASSERT_EQ(run_to_end({"rollback", "net@1"}).exit_code, 0);
  EXPECT_EQ(relay.next_json()["version"], 1);
  EXPECT_EQ(leaf.next_json()["version"], 1);
  EXPECT_EQ(model_in(folder_ / "leaf/latest"), chain(1, 2, 1));
}

}  // namespace
}  // namespace freshet::cli_test
