// SPDX-License-Identifier: Apache-2.0
/// Children that a publisher's process forks, as data loaders are, and that outlive it.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "core/base/file_descriptor.h"
#include "core/base/fork_guard.h"
#include "tests/transport/model_fixture.h"

namespace freshet {
namespace {

using namespace freshet::test;

/// What a trainer's process tells once its loader runs.
struct Told {
  pid_t loader = 0;
  bool all_refused = false;  ///< Every call of what the loader inherited.
  char address[128] = {};
};

bool is_refused(const auto& result) { return !result && result.error().code() == Code::failed_precondition; }

/// In the loader: inherited objects know where they are, and can be destroyed.
bool refuses(std::unique_ptr<Publisher> publisher, std::unique_ptr<Subscriber> subscriber, const StampedModel& model) {
  const bool publisher_refuses =
      is_refused(publisher->publish(model.views(), {})) && is_refused(publisher->release()) &&
      is_refused(publisher->wait_committed(1, kPatience)) && publisher->stat().versions_published == 0;
  const bool subscriber_refuses = !subscriber->snapshot() && is_refused(subscriber->wait_for(1, kPatience)) &&
                                  is_refused(subscriber->snapshot_at_least({})) && !subscriber->status().connected;
  publisher.reset();
  subscriber.reset();
  return publisher_refuses && subscriber_refuses;
}

/// Publishes a version, forks a loader that lives until `hold` ends, tells, and waits for its own end.
[[noreturn]] void train(const std::string& folder, int tell, int hold) {
  auto opened = Publisher::open({.model = "demo", .hub_options = {.listen = "tcp://127.0.0.1:*", .directory = folder}});
  if (!opened) ::_exit(2);
  std::unique_ptr<Publisher> publisher = std::move(*opened);
  StampedModel model(3, 512);
  if (publish(*publisher, model) == 0) ::_exit(3);
  auto subscriber = open_subscriber({.model = "demo", .directory = folder});
  if (!subscriber->wait_for(1, kPatience)) ::_exit(4);
  Told told;
  std::strncpy(told.address, publisher->address().c_str(), sizeof told.address - 1);
  const pid_t loader = ::fork();
  if (loader == 0) {
    told.loader = ::getpid();
    told.all_refused = refuses(std::move(publisher), std::move(subscriber), model);
    char byte = 0;
    const bool wrote = ::write(tell, &told, sizeof told) == sizeof told;
    ::_exit(wrote && ::read(hold, &byte, 1) == 0 ? 0 : 1);
  }
  for (;;) ::pause();
}

class Fork : public StreamTest {
 protected:
  void SetUp() override {
    int tell[2], hold[2];
    ASSERT_EQ(::pipe(tell), 0);
    ASSERT_EQ(::pipe(hold), 0);
    trainer_ = ::fork();
    if (trainer_ == 0) {
      ::close(hold[1]);
      train(folder_.path(), tell[1], hold[0]);
    }
    ::close(tell[1]);
    ::close(hold[0]);
    hold_ = FileDescriptor(hold[1]);
    const FileDescriptor tells(tell[0]);
    ASSERT_EQ(::read(tells.get(), &told_, sizeof told_), static_cast<ssize_t>(sizeof told_)) << "the trainer died";
  }
  void TearDown() override { end_trainer(); }
  void end_trainer() {
    if (trainer_ <= 0) return;
    ::kill(trainer_, SIGKILL);
    ::waitpid(trainer_, nullptr, 0);
    trainer_ = -1;
  }
  bool loader_lives() const { return ::kill(told_.loader, 0) == 0; }

  pid_t trainer_ = -1;
  FileDescriptor hold_;
  Told told_;
};

TEST_F(Fork, AChildLetsGoOfItsParentsNameAndPort) {
  end_trainer();
  ASSERT_TRUE(loader_lives());
  PublisherOptions options = publisher_options();
  options.hub_options.listen = told_.address;
  const auto successor = Publisher::open(options);
  EXPECT_TRUE(successor) << successor.error().message();
  EXPECT_TRUE(loader_lives());
}

TEST_F(Fork, AChildLetsGoOfItsParentsVersions) {
  ASSERT_TRUE(loader_lives());
  std::ifstream maps("/proc/" + std::to_string(told_.loader) + "/maps");
  int writable = 0;
  for (std::string line; std::getline(maps, line);) {
    const bool is_slab = line.find("memfd:freshet") != std::string::npos;
    if (is_slab && line.find(" rw-s ") != std::string::npos) ++writable;
  }
  EXPECT_EQ(writable, 0) << "mappings of the publisher's memory";
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(told_.loader) + "/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    EXPECT_EQ(target.find("memfd:freshet"), std::string::npos) << target;
  }
}

TEST_F(Fork, ASubscriberSeesThatTheParentIsGone) {
  const auto subscriber = open_subscriber({.model = "demo", .at = {told_.address}, .directory = folder_.path()});
  ASSERT_TRUE(subscriber->wait_for(1, kPatience));
  ASSERT_TRUE(eventually([&] { return subscriber->status().connected; }));
  end_trainer();
  EXPECT_TRUE(eventually([&] { return !subscriber->status().connected; }));
  EXPECT_TRUE(loader_lives());
}

TEST_F(Fork, WhatAChildInheritsKnowsIt) { EXPECT_TRUE(told_.all_refused); }

TEST(ForkGuard, AChildClosesWhatWasNamed) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const ParentsDescriptor named{FileDescriptor(ends[0])};
  const FileDescriptor other(ends[1]);
  const ForkMark mark;
  const pid_t child = ::fork();
  if (child == 0) {
    const bool right = ::fcntl(named.get(), F_GETFD) < 0 && ::fcntl(other.get(), F_GETFD) >= 0 && mark.is_inherited() &&
                       !ForkMark().is_inherited();
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(mark.is_inherited());
  EXPECT_GE(::fcntl(named.get(), F_GETFD), 0);
}

}  // namespace
}  // namespace freshet
