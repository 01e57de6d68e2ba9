// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/host_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "tests/support/refused.h"
#include "tests/transport/model_fixture.h"
#include "transport/directory/host_watch.h"

namespace freshet {
namespace {

using namespace freshet::test;

/// An environment variable, for as long as this stands.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() {
    if (before_)
      ::setenv(name_, before_->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class HostDirectoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<HostDirectory> open() {
    auto directory = HostDirectory::open(folder_.path());
    EXPECT_TRUE(directory) << directory.error().message();
    return directory ? std::move(*directory) : nullptr;
  }
  static std::unique_ptr<Directory::Claim> claim(Directory& directory) {
    auto claimed = directory.claim("demo");
    EXPECT_TRUE(claimed) << claimed.error().message();
    return std::move(*claimed);
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << text;
  }
  static Directory::Entry entry(std::uint64_t incarnation) {
    return {.model = "demo", .pid = ::getpid(), .incarnation = incarnation, .control = "ipc:///somewhere"};
  }

  TemporaryFolder folder_;
  std::vector<std::unique_ptr<Directory::Claim>> claims_;
};

TEST_F(HostDirectoryTest, AClaimIsExclusiveAndItsNumbersLast) {
  const auto directory = open();
  {
    auto held = claim(*directory);
    EXPECT_EQ(held->last_number(), 0U);
    EXPECT_TRUE(is_refused(directory->claim("demo"), Code::already_exists, std::to_string(::getpid())));
    ASSERT_TRUE(held->record_number(41));
    EXPECT_EQ(held->last_number(), 41U);
    EXPECT_EQ(held->begin_incarnation(1000), 1000U);
  }
  auto again = claim(*directory);
  EXPECT_EQ(again->last_number(), 41U);
  // The clock went back; incarnations do not.
  EXPECT_EQ(again->begin_incarnation(5), 1001U);
  EXPECT_EQ(again->last_number(), 41U);
}

TEST_F(HostDirectoryTest, AnEntryLivesAsLongAsItsClaim) {
  const auto directory = open();
  EXPECT_EQ(directory->lookup("demo").error().code(), Code::not_found);
  {
    auto held = claim(*directory);
    EXPECT_EQ(directory->lookup("demo").error().code(), Code::not_found);
    ASSERT_TRUE(held->advertise(entry(7)));
    const auto found = directory->lookup("demo");
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(found->incarnation, 7U);
    EXPECT_EQ(found->control, "ipc:///somewhere");
    ASSERT_EQ(directory->list()->size(), 1U);
    EXPECT_EQ(directory->list()->front().pid, ::getpid());
  }
  EXPECT_EQ(directory->lookup("demo").error().code(), Code::not_found);
  EXPECT_TRUE(directory->list()->empty());
  // An entry that its publisher could not remove (kill -9) is nobody's.
  write("demo.entry", R"({"model":"demo","pid":1,"incarnation":7,"control":"ipc:///x"})");
  EXPECT_EQ(directory->lookup("demo").error().code(), Code::not_found);
}

TEST_F(HostDirectoryTest, HostileEntriesAreRefused) {
  const auto directory = open();
  auto held = claim(*directory);
  const char* bad[] = {"",
                       "garbage",
                       "[1,2]",
                       R"({"model":"other","pid":1,"incarnation":7,"control":"ipc:///x"})",
                       R"({"model":"demo","pid":-1,"incarnation":7,"control":"ipc:///x"})",
                       R"({"model":"demo","pid":99999999999,"incarnation":7,"control":"ipc:///x"})",
                       R"({"model":"demo","pid":1,"incarnation":"7","control":"ipc:///x"})",
                       R"({"model":"demo","pid":1,"incarnation":7,"control":""})",
                       R"({"model":"demo","pid":1,"incarnation":7})"};
  for (const char* text : bad) {
    write("demo.entry", text);
    EXPECT_EQ(directory->lookup("demo").error().code(), Code::corrupt) << text;
  }
  write("demo.entry", std::string(1'000'000, ' '));
  EXPECT_EQ(directory->lookup("demo").error().code(), Code::corrupt);
  // Links are not followed, and pipes are not waited for.
  std::filesystem::remove(folder_.path() + "/demo.entry");
  std::filesystem::create_symlink("/etc/passwd", folder_.path() + "/demo.entry");
  EXPECT_FALSE(directory->lookup("demo"));
  std::filesystem::remove(folder_.path() + "/demo.entry");
  ASSERT_EQ(::mkfifo((folder_.path() + "/demo.entry").c_str(), 0600), 0);
  EXPECT_FALSE(directory->lookup("demo"));
}

TEST_F(HostDirectoryTest, HostileNumbersAreRefused) {
  const auto directory = open();
  write("demo.number", "123");
  EXPECT_EQ(directory->claim("demo").error().code(), Code::corrupt);
  write("demo.number", std::string(16, '\xFF'));
  EXPECT_EQ(directory->claim("demo").error().code(), Code::corrupt);
  write("demo.number", std::string(17, '\0'));
  EXPECT_EQ(directory->claim("demo").error().code(), Code::corrupt);
  EXPECT_EQ(directory->claim("../demo").error().code(), Code::invalid_argument);
}

/// For whoever reads an error there are many run folders, and one disk that is full.
TEST_F(HostDirectoryTest, ErrorsNameFilesByTheirWholePaths) {
  const auto directory = open();
  const auto why = [](const auto& result) { return result ? std::string() : result.error().message(); };
  const auto names = [&](const std::string& message, const std::string& file) {
    EXPECT_NE(message.find(folder_ / file), std::string::npos) << message;
  };
  write("torn.number", "123");
  names(why(directory->claim("torn")), "torn.number");
  write("other.lock", "");
  ASSERT_EQ(::chmod((folder_ / "other.lock").c_str(), 0666), 0);
  names(why(directory->claim("other")), "other.lock");
  auto held = claim(*directory);
  // No file may grow, as on a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const std::string claimed = why(directory->claim("full"));
  const std::string recorded = why(held->record_number(1));
  const std::string advertised = why(held->advertise(entry(7)));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  names(claimed, "full.lock");
  names(recorded, "demo.number");
  EXPECT_NE(advertised.find(folder_.path()), std::string::npos) << advertised;
}

TEST_F(HostDirectoryTest, ARecordThatLostItsBytesIsNone) {
  const auto directory = open();
  const CurrentVersion first{.epoch = 1, .version = 1};
  write("demo.current", "");
  const auto current = directory->current("demo");
  ASSERT_TRUE(current) << current.error().message();
  EXPECT_EQ(*current, CurrentVersion{});
  const auto swapped = directory->compare_and_swap_current("demo", {}, first);
  ASSERT_TRUE(swapped) << swapped.error().message();
  EXPECT_EQ(*directory->current("demo"), first);
}

TEST_F(HostDirectoryTest, TheDefaultFoldersNumbersOutliveTheFolder) {
  const std::string run = folder_ / "run";
  const ScopedVariable run_variable("FRESHET_RUN_DIR", run);
  const ScopedVariable state_variable("XDG_STATE_HOME", folder_ / "state");
  const auto claim_default = [](const std::string& model) {
    auto directory = HostDirectory::open("");
    EXPECT_TRUE(directory) << directory.error().message();
    auto claimed = (*directory)->claim(model);
    EXPECT_TRUE(claimed) << claimed.error().message();
    return std::move(*claimed);
  };
  ASSERT_TRUE(claim_default("demo")->record_number(41));
  ASSERT_TRUE(claim_default("demo")->begin_incarnation(1000));
  // As a restart of the host leaves it.
  std::filesystem::remove_all(run);
  EXPECT_EQ(claim_default("demo")->last_number(), 41U);
  EXPECT_EQ(claim_default("demo")->begin_incarnation(5), 1001U);
  EXPECT_EQ(claim_default("other")->last_number(), 0U);
  {
    // As another host of the same home folder writes it, while this one publishes.
    auto claimed = claim_default("shared");
    ASSERT_TRUE(claimed->record_number(1));
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "state/freshet")) {
      if (!entry.path().filename().string().starts_with("shared.")) continue;
      const std::uint64_t numbers[] = {100, 1};
      std::ofstream(entry.path(), std::ios::binary).write(reinterpret_cast<const char*>(numbers), sizeof numbers);
    }
    ASSERT_TRUE(claimed->record_number(2));
    claimed.reset();
    std::filesystem::remove_all(run);
    EXPECT_EQ(claim_default("shared")->last_number(), 100U);
  }
  {
    // Another run folder has numbers of its own, and a folder that was named keeps its numbers itself.
    const ScopedVariable another("FRESHET_RUN_DIR", folder_ / "another");
    EXPECT_EQ(claim_default("demo")->last_number(), 0U);
  }
  ASSERT_TRUE(claim(*open())->record_number(7));
  EXPECT_EQ(claim_default("demo")->last_number(), 41U);
  // Without a place for the second record, the first one is enough.
  write("not-a-folder", "");
  const ScopedVariable no_place("XDG_STATE_HOME", folder_ / "not-a-folder");
  ASSERT_TRUE(claim_default("demo")->record_number(43));
  EXPECT_EQ(claim_default("demo")->last_number(), 43U);
}

TEST_F(HostDirectoryTest, TheFolderMustBeClosedToOthers) {
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0777), 0);
  EXPECT_TRUE(is_refused(HostDirectory::open(folder_.path()), Code::failed_precondition, folder_.path()));
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0700), 0);
  std::filesystem::create_symlink(folder_.path(), folder_.path() + "/link");
  EXPECT_FALSE(HostDirectory::open(folder_.path() + "/link"));
  // A file that others may write is not ours.
  write("demo.lock", "");
  ASSERT_EQ(::chmod((folder_.path() + "/demo.lock").c_str(), 0666), 0);
  EXPECT_EQ(open()->claim("demo").error().code(), Code::failed_precondition);
}

TEST_F(HostDirectoryTest, AClaimPutsBackWhatSomebodyRemoved) {
  const std::string run = folder_ / "run";
  const auto open_run = [&] { return std::move(*HostDirectory::open(run)); };
  const auto directory = open_run();
  const auto other = open_run();
  auto held = claim(*directory);
  ASSERT_TRUE(held->record_number(5));
  ASSERT_TRUE(held->compare_and_swap_current({}, {.epoch = 2, .version = 4, .hold = true}));
  ASSERT_TRUE(held->advertise(entry(7)));
  EXPECT_EQ(held->tend(), false);
  const auto is_whole = [&] {
    EXPECT_EQ(other->lookup("demo")->incarnation, 7U);
    EXPECT_EQ(other->claim("demo").error().code(), Code::already_exists);
    EXPECT_EQ(other->current("demo")->version, 4U);
    EXPECT_EQ(open_run()->lookup("demo")->incarnation, 7U);
  };
  for (const char* name : {"demo.lock", "demo.number", "demo.entry", "demo.current"}) {
    std::filesystem::remove(run + "/" + name);
    EXPECT_EQ(held->tend(), true) << name;
    EXPECT_EQ(held->tend(), false) << name;
    is_whole();
  }
  std::filesystem::remove_all(run);
  EXPECT_EQ(other->lookup("demo").error().code(), Code::not_found);
  EXPECT_EQ(directory->tend(), true);
  EXPECT_EQ(directory->tend(), false);
  EXPECT_EQ(held->tend(), true);
  is_whole();
  ASSERT_TRUE(held->record_number(6));
  held.reset();
  EXPECT_EQ(other->lookup("demo").error().code(), Code::not_found);
  EXPECT_EQ(claim(*other)->last_number(), 6U);
}

TEST_F(HostDirectoryTest, AClaimIsLostToWhoTookTheNameInANewFolder) {
  const std::string run = folder_ / "run";
  const auto directory = std::move(*HostDirectory::open(run));
  auto held = claim(*directory);
  ASSERT_TRUE(held->advertise(entry(7)));
  std::filesystem::remove_all(run);
  const auto fresh = std::move(*HostDirectory::open(run));
  auto taken = claim(*fresh);
  ASSERT_TRUE(taken->advertise(entry(8)));
  EXPECT_TRUE(is_refused(held->tend(), Code::failed_precondition, "demo is already published"));
  EXPECT_EQ(held->standing().error().code(), Code::failed_precondition);
  EXPECT_EQ(held->record_number(9).error().code(), Code::failed_precondition);
  held.reset();
  EXPECT_EQ(directory->lookup("demo")->incarnation, 8U);
}

TEST_F(HostDirectoryTest, AClaimIsLostIfAnotherPublisherGaveNumbersMeanwhile) {
  const std::string run = folder_ / "run";
  const auto directory = std::move(*HostDirectory::open(run));
  auto held = claim(*directory);
  ASSERT_TRUE(held->record_number(100));
  std::filesystem::remove_all(run);
  ASSERT_TRUE(claim(*std::move(*HostDirectory::open(run)))->record_number(150));
  EXPECT_TRUE(is_refused(held->tend(), Code::failed_precondition, "demo@150"));
  EXPECT_EQ(held->record_number(101).error().code(), Code::failed_precondition);
}

TEST_F(HostDirectoryTest, TheFolderIsLockedAgainstCleaners) {
  const auto directory = open();
  const FileDescriptor cleaner(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_NE(::flock(cleaner.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(errno, EWOULDBLOCK);
}

TEST_F(HostDirectoryTest, NoNameOfAModelIsAnothersFile) {
  const auto directory = open();
  const Directory::Server server{.address = "tcp://127.0.0.1:7", .number = 3};
  const auto files = [&](const std::string& model) {
    const auto before = std::filesystem::directory_iterator(folder_.path());
    std::set<std::string> known, made;
    for (const auto& file : before) known.insert(file.path().filename().string());
    auto held = directory->claim(model);
    EXPECT_TRUE(held) << model << ": " << held.error().message();
    if (!held) return made;
    EXPECT_TRUE((*held)->compare_and_swap_current({}, {.epoch = 1, .version = 1})) << model;
    Directory::Entry its = entry(1);
    its.model = model;
    EXPECT_TRUE((*held)->advertise(its));
    EXPECT_TRUE(directory->serve(model, server, std::chrono::minutes(1)));
    for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
      if (!known.contains(file.path().filename().string())) made.insert(file.path().filename().string());
    }
    claims_.push_back(std::move(*held));
    return made;
  };
  const std::size_t each = files("demo").size();
  EXPECT_EQ(each, 6U);
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
    names.push_back(file.path().filename().string());  // Each could be a model's name,
    names.push_back(file.path().stem().string());      // and so could what stands before its last dot.
  }
  for (const std::string& name : names) {
    if (name == "demo") continue;
    EXPECT_EQ(files(name).size(), each) << name;
  }
}

TEST_F(HostDirectoryTest, TwoProcessesMayServeOneAddress) {
  constexpr VersionNumber kRecords = 500;
  const auto serve = [&](VersionNumber first) {
    const auto directory = open();
    for (VersionNumber number = first; number < first + kRecords; ++number) {
      const Status served =
          directory->serve("demo", {.address = "tcp://127.0.0.1:7", .number = number}, std::chrono::minutes(1));
      ASSERT_TRUE(served) << served.error().message();
      const auto servers = directory->servers("demo");
      ASSERT_TRUE(servers) << servers.error().message();
      ASSERT_EQ(servers->size(), 1U) << "one record or the other, never a part of one";
    }
  };
  std::jthread one([&] { serve(1); });
  std::jthread other([&] { serve(1000); });
}

TEST_F(HostDirectoryTest, WhatDeadProcessesLeftAsideIsRemoved) {
  const auto directory = open();
  const std::string left = "m.server.0123456789abcdef.new";
  const std::string young = "m.entry.0123456789abcdef.new";
  const std::vector<std::string> others = {"config.new", "0123456789abcdef.new", "m.entry.0123456789ABCDEF.new",
                                           "m.txt.0123456789abcdef.new", "m.server.new"};
  const auto path_of = [&](const std::string& name) { return std::filesystem::path(folder_.path()) / name; };
  const auto write_an_hour_ago = [&](const std::string& name) {
    write(name, "half a rec");
    std::filesystem::last_write_time(path_of(name),
                                     std::filesystem::last_write_time(path_of(name)) - std::chrono::hours(1));
  };
  write_an_hour_ago(left);
  for (const std::string& name : others) write_an_hour_ago(name);
  write(young, "half a rec");
  EXPECT_TRUE(directory->list());
  EXPECT_FALSE(std::filesystem::exists(path_of(left)));
  EXPECT_TRUE(std::filesystem::exists(path_of(young))) << "its process may live";
  for (const std::string& name : others) EXPECT_TRUE(std::filesystem::exists(path_of(name))) << name << " is no record";
}

TEST_F(HostDirectoryTest, AWatchHearsOfEntries) {
  const auto directory = open();
  auto watch = HostWatch::open(directory->folder());
  ASSERT_TRUE(watch) << watch.error().message();
  auto held = claim(*directory);
  EXPECT_FALSE(watch->take("demo"));
  ASSERT_TRUE(held->advertise(entry(1)));
  EXPECT_FALSE(watch->take("other"));
  ASSERT_TRUE(held->advertise(entry(2)));
  EXPECT_TRUE(watch->take("demo"));
  EXPECT_FALSE(watch->take("demo"));
}

TEST(Directories, OneOnRedisIsOpenedOrSaidToBeMissing) {
  const auto directory = open_directory("redis://:secret@127.0.0.1:1");
  if (directory) return;  // The server need not be there.
  EXPECT_EQ(directory.error().code(), Code::unsupported);
  EXPECT_NE(directory.error().message().find("redis://"), std::string::npos) << directory.error().message();
  EXPECT_NE(directory.error().message().find("hiredis"), std::string::npos) << directory.error().message();
  EXPECT_EQ(directory.error().message().find("secret"), std::string::npos);
}

}  // namespace
}  // namespace freshet
