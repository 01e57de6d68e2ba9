// SPDX-License-Identifier: Apache-2.0
/// The one door to repositories: each kind of place, and what is refused. (The command's tests go through folders that
/// other processes own.)

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/runtime/ending_process.h"
#include "bindings/runtime/repository_folder.h"
#include "core/base/clock.h"
#include "core/base/interruption.h"
#include "repo/backend/backend.h"
#include "repo/files/import.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

using ::testing::HasSubstr;

VersionName put_one(Repository& repository) {
  const std::vector<float> values(16, 2.0F);
  const TensorView tensors[] = {
      {{.name = "w", .dtype = DType::f32, .shape = {16}}, bytes_of(values.data(), values.size())}};
  const auto staged = stage_put(repository, {.model = "net", .tensors = tensors});
  EXPECT_TRUE(staged) << staged.error().message();
  const auto name = repository.put(staged->manifest, staged->bytes_of(), staged->options);
  EXPECT_TRUE(name) << name.error().message();
  return name.value_or(VersionName{});
}

TEST(OpenRepository, InMemoryIsNewEachTime) {
  const auto one = open_repository("memory:");
  const auto other = open_repository("memory:");
  ASSERT_TRUE(one && other);
  const VersionName name = put_one(**one);
  EXPECT_TRUE((*one)->get(name));
  EXPECT_EQ((*other)->get(name).error().code(), Code::not_found);
  EXPECT_NE(one->get_deleter().own(), nullptr);
}

TEST(OpenRepository, AFolderIsMadeWhenItIsAskedFor) {
  const TemporaryFolder folder;
  const std::string place = folder / "store";
  EXPECT_EQ(open_repository(place).error().code(), Code::not_found) << "to be read, it must be there";
  VersionName name;
  {
    const auto repository = open_repository(place, {.access = RepositoryAccess::create});
    ASSERT_TRUE(repository) << repository.error().message();
    name = put_one(**repository);
  }
  const auto again = open_repository("file://" + place);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE((*again)->get(name));
}

TEST(OpenRepository, TheWaitForAFoldersOwnerCanBeInterrupted) {
  const TemporaryFolder folder;
  const auto owner = open_rocks_backend({.folder = folder / "store", .create = true, .read_only = false});
  ASSERT_TRUE(owner) << owner.error().message();
  const Interruption interruption([] { return true; });
  EXPECT_TRUE(is_refused(open_repository(folder / "store", {.access = RepositoryAccess::create}), Code::cancelled));
}

/// A process that owns a folder as RocksDB does, and whose end the kernel has begun: its first thread has exited. It
/// ends when the writing end of `goes` is closed.
pid_t start_ending_owner(const std::string& folder, const int (&goes)[2]) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::close(goes[1]);
  const int lock = ::open((folder + "/LOCK").c_str(), O_RDWR | O_CREAT, 0600);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  if (lock < 0 || ::fcntl(lock, F_SETLK, &whole) != 0) ::_exit(1);
  std::thread([end = goes[0]] {
    char byte = 0;
    (void)!::read(end, &byte, 1);
    ::_exit(0);
  }).detach();
  ::syscall(SYS_exit, 0);
  return 0;
}

/// It may take long to free its memory; who opens the folder meanwhile waits.
TEST(OpenRepository, AnOwnerThatEndsIsWaitedFor) {
  const TemporaryFolder folder;
  { ASSERT_TRUE(open_repository(folder / "store", {.access = RepositoryAccess::create})); }
  EXPECT_FALSE(is_ending(::getpid()));
  int goes[2];
  ASSERT_EQ(::pipe2(goes, O_CLOEXEC), 0);
  const pid_t owner = start_ending_owner(folder / "store", goes);
  ASSERT_GT(owner, 0);
  ::close(goes[0]);
  while (!is_ending(owner)) std::this_thread::yield();
  // Past the time in which an owner that lives comes up.
  const Time long_ago = system_clock().now() + std::chrono::milliseconds(2200);
  const Interruption interruption([&] {
    if (goes[1] >= 0 && system_clock().now() >= long_ago) ::close(std::exchange(goes[1], -1));
    return false;
  });
  const auto opened = open_repository(folder / "store", {.access = RepositoryAccess::create});
  EXPECT_TRUE(opened) << opened.error().message();
  if (goes[1] >= 0) ::close(goes[1]);
  EXPECT_TRUE(is_ending(owner)) << "it has ended, and nobody has waited for it";
  EXPECT_EQ(::waitpid(owner, nullptr, 0), owner);
  EXPECT_TRUE(is_ending(owner));
}

TEST(OpenRepository, AddressesAreOfProviders) {
  using Addresses = std::vector<std::string>;
  for (const Addresses& addresses : {Addresses{}, Addresses{"/data/runs"}, Addresses{"tcp://a:1,tcp://b:2"}}) {
    EXPECT_EQ(open_repository(addresses).error().code(), Code::invalid_argument);
  }
  EXPECT_THAT(open_repository(Addresses{"/data/runs"}).error().message(), HasSubstr("/data/runs"));
  EXPECT_EQ(open_repository("tcp://127.0.0.1:1", {.access = RepositoryAccess::own}).error().code(),
            Code::invalid_argument);
}

TEST(ServeRepository, MakesAProviderThatOthersJoin) {
  const TemporaryFolder folder;
  const auto one = open_repository(folder / "one", {.access = RepositoryAccess::own});
  const auto other = open_repository(folder / "other", {.access = RepositoryAccess::own});
  ASSERT_TRUE(one && other);
  const auto door = serve_repository(*one, {.address = "tcp://127.0.0.1:*"});
  const auto other_door = serve_repository(*other, {.address = "tcp://127.0.0.1:*"});
  ASSERT_TRUE(door && other_door) << door.error().message();
  const auto alone = open_repository((*door)->address());
  ASSERT_TRUE(alone) << alone.error().message();
  EXPECT_EQ(serve_repository(*alone, {.address = "tcp://127.0.0.1:*"}).error().code(), Code::failed_precondition);
  EXPECT_EQ(join_repository(*alone, "tcp://127.0.0.1:1", {(*other_door)->address()}).error().code(),
            Code::failed_precondition);
  EXPECT_EQ(join_repository(*other, (*other_door)->address(), {}).error().code(), Code::invalid_argument);
  EXPECT_FALSE(is_part(*other));
  const Status joined = join_repository(*other, (*other_door)->address(), {(*door)->address()});
  ASSERT_TRUE(joined) << joined.error().message();
  EXPECT_TRUE(is_part(*one));
  EXPECT_TRUE(is_part(*other));
  const auto both = open_repository(std::vector<std::string>{(*door)->address(), (*other_door)->address()});
  ASSERT_TRUE(both) << both.error().message();
  EXPECT_TRUE((*both)->get(put_one(**both)));
}

}  // namespace
}  // namespace freshet
