// SPDX-License-Identifier: Apache-2.0
/// The RocksDB backend's folder: how it is made, refused and shared.

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include <rocksdb/db.h>
#include "core/base/file_descriptor.h"
#include "repo/repository.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

TEST(RocksFolder, IsMadeOnlyWhenAsked) {
  const TemporaryFolder folder;
  const std::string store = folder / "a/b/store";
  const auto missing = open_rocks_backend({.folder = store, .create = false});
  ASSERT_TRUE(is_refused(missing, Code::not_found));
  EXPECT_EQ(missing.error().message(), store + " holds no repository");
  EXPECT_EQ(open_rocks_backend({.folder = store, .read_only = true}).error().code(), Code::not_found);
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_TRUE(open_rocks_backend({.folder = store}));
  EXPECT_TRUE(open_rocks_backend({.folder = store, .create = false}));
  EXPECT_EQ(open_rocks_backend({.folder = ""}).error().code(), Code::invalid_argument);
}

TEST(RocksFolder, IsItsOwnersAloneUntilTheOwnerSaysOtherwise) {
  const TemporaryFolder folder;
  const auto mode_of = [](const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777U : 0;
  };
  const mode_t before = ::umask(0022);
  for (const char* name : {"a/b/store", "with-a-slash/", "./dotted/./store"}) {
    const std::string store = folder / name;
    EXPECT_TRUE(open_rocks_backend({.folder = store}));
    EXPECT_EQ(mode_of(store), 0700U) << name;
    ASSERT_EQ(::chmod(store.c_str(), 0750), 0);
    EXPECT_TRUE(open_rocks_backend({.folder = store}));
    EXPECT_EQ(mode_of(store), 0750U) << name;
  }
  EXPECT_EQ(mode_of(folder / "a/b"), 0755U);
  // One that its owner made before.
  ASSERT_EQ(::mkdir((folder / "made").c_str(), 0755), 0);
  EXPECT_TRUE(open_rocks_backend({.folder = folder / "made"}));
  EXPECT_EQ(mode_of(folder / "made"), 0755U);
  (void)::umask(before);
}

TEST(RocksFolder, OneThatIsFullOfSomethingElseIsLeftAlone) {
  const TemporaryFolder folder;
  std::ofstream(folder / "thesis.txt") << "precious";
  const auto refused = open_rocks_backend({.folder = folder.path()});
  ASSERT_TRUE(is_refused(refused, Code::failed_precondition));
  EXPECT_EQ(refused.error().message(), folder.path() + " is not empty and holds no repository (it has thesis.txt)");
  EXPECT_FALSE(std::filesystem::exists(folder / "CURRENT"));
  const auto file = open_rocks_backend({.folder = folder / "thesis.txt"});
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().message().find("thesis.txt"), std::string::npos);
}

/// What lies in a folder: each file's bytes by its name.
std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path()] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

void expect_left_alone(const std::string& format, const std::string& writer) {
  const TemporaryFolder folder;
  const std::string store = folder / "store";
  {
    const auto repository = Repository::open(open_rocks_backend({.folder = store}).value(), {});
    ASSERT_TRUE(repository) << repository.error().message();
  }
  {
    const auto backend = open_rocks_backend({.folder = store});
    ASSERT_TRUE(backend);
    ASSERT_TRUE((*backend)->apply({Backend::Put{"format", format}}));
  }
  std::ofstream(store + "/incoming/7.sst") << "a put of the other build";
  const auto before = files_in(store);
  const auto refused = open_rocks_backend({.folder = store});
  ASSERT_TRUE(is_refused(refused, Code::unsupported));
  EXPECT_TRUE(refused.error().message().starts_with("open the repository " + store +
                                                    ": the repository was written by " + writer + " Freshet (format " +
                                                    format + "); this Freshet reads format 3. "))
      << refused.error().message();
  EXPECT_EQ(files_in(store), before);
}

TEST(RocksFolder, OneOfANewerFormatIsLeftAsItIs) { expect_left_alone("4", "a newer"); }
TEST(RocksFolder, OneOfAnOlderFormatIsLeftAsItIs) { expect_left_alone("2", "an older"); }

TEST(RocksFolder, IsOwnedOnce) {
  const TemporaryFolder folder;
  const auto owner = open_rocks_backend({.folder = folder / "store"});
  ASSERT_TRUE(owner);
  const auto second = open_rocks_backend({.folder = folder / "store"});
  ASSERT_TRUE(is_refused(second, Code::unavailable));
  EXPECT_EQ(second.error().message(), "the repository " + (folder / "store") + " is open already in this process");
  EXPECT_TRUE(open_rocks_backend({.folder = folder / "store", .read_only = true}));
}

TEST(RocksFolder, ADamagedDatabaseIsSaidToBe) {
  const TemporaryFolder folder;
  ASSERT_TRUE(open_rocks_backend({.folder = folder / "store"}));
  std::ofstream(folder / "store/CURRENT", std::ios::trunc) << "MANIFEST-999999\n";
  const auto refused = open_rocks_backend({.folder = folder / "store"});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find(folder / "store"), std::string::npos) << refused.error().message();
  EXPECT_EQ(refused.error().code(), Code::corrupt) << refused.error().message();
}

TEST(RocksFolder, OneWithoutATableIsDamaged) {
  const TemporaryFolder folder;
  const std::string store = folder / "store";
  {
    auto repository = open_or_die(std::move(*open_rocks_backend({.folder = store})));
    std::mt19937_64 random(1);
    ASSERT_TRUE(put(*repository, make_version("net", test_id(1), test_architecture({100}), nullptr, {}, random)));
    ASSERT_TRUE(repository->gc({}, {}));
  }
  std::size_t gone = 0;
  for (const auto& entry : std::filesystem::directory_iterator(store)) {
    if (entry.path().extension() == ".sst") gone += std::filesystem::remove(entry.path()) ? 1 : 0;
  }
  ASSERT_GT(gone, 0u);
  for (const bool read_only : {false, true}) {
    EXPECT_TRUE(is_refused(open_rocks_backend({.folder = store, .read_only = read_only}), Code::corrupt));
  }
}

TEST(RocksFolder, AnotherProgramsDatabaseIsLeftAlone) {
  const TemporaryFolder folder;
  rocksdb::Options options;
  options.create_if_missing = true;
  rocksdb::DB* made = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(options, folder / "other", &made).ok());
  rocksdb::ColumnFamilyHandle* family = nullptr;
  ASSERT_TRUE(made->CreateColumnFamily({}, "theirs", &family).ok());
  made->DestroyColumnFamilyHandle(family);
  delete made;
  EXPECT_TRUE(
      is_refused(open_rocks_backend({.folder = folder / "other"}), Code::failed_precondition, "not a repository"));
}

TEST(RocksFolder, AReserveIsLaidByAndNotCounted) {
  const TemporaryFolder folder;
  const std::string store = folder / "store";
  const auto backend = open_rocks_backend({.folder = store});
  ASSERT_TRUE(backend);
  if (std::filesystem::space(store).available < 64 << 20) GTEST_SKIP() << "the temporary folder has no room";
  EXPECT_EQ(std::filesystem::file_size(store + "/reserve"), 8u << 20);
  EXPECT_LT((*backend)->disk_use()->bytes, 1u << 20);
}

TEST(RocksFolder, ALargePayloadIsWrittenOnce) {
  const TemporaryFolder folder;
  auto repository = open_or_die(std::move(*open_rocks_backend({.folder = folder / "store"})));
  std::mt19937_64 random(1);
  const auto architecture = test_architecture({20'000'000, 100});
  TestVersion version = make_version("net", test_id(1), architecture, nullptr, {}, random);
  ASSERT_TRUE(put(*repository, version));
  EXPECT_LT(repository->stat()->disk_bytes, 20'000'000u + (1 << 20));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "store/incoming"));

  version = make_version("net", test_id(2), architecture, nullptr, {}, random);
  version.bytes.front().back() ^= std::byte{1};
  EXPECT_TRUE(is_refused(put(*repository, version), Code::corrupt));
}

TEST(RocksFolder, HalfWrittenTablesGoWhenTheOwnerOpens) {
  const TemporaryFolder folder;
  ASSERT_TRUE(open_rocks_backend({.folder = folder / "store"}));
  std::ofstream(folder / "store/incoming/7.sst") << "half";
  ASSERT_TRUE(open_rocks_backend({.folder = folder / "store", .read_only = true}));
  EXPECT_TRUE(std::filesystem::exists(folder / "store/incoming/7.sst"));
  ASSERT_TRUE(open_rocks_backend({.folder = folder / "store"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "store/incoming/7.sst"));
}

// Readers on other threads see whole versions only, while puts go on.
TEST(RocksFolder, ReadersRunBesidePuts) {
  const TemporaryFolder folder;
  const auto repository = open_or_die(std::move(*open_rocks_backend({.folder = folder / "store"})));
  std::mt19937_64 random(1);
  const auto architecture = test_architecture({1'500'000, 4'000'000, 10});
  std::vector<TestVersion> versions;
  for (std::uint64_t sequence = 1; sequence <= 8; ++sequence) {
    versions.push_back(make_version("net", test_id(sequence), architecture,
                                    versions.empty() ? nullptr : &versions.back(),
                                    {static_cast<std::uint32_t>(sequence % 3)}, random));
    versions.back().manifest.name.number = sequence;
  }
  ASSERT_TRUE(put(*repository, versions[0]));
  std::atomic<int> wrong{0};
  std::vector<std::jthread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&](const std::stop_token& stop) {
      do {
        const VersionNumber newest = repository->latest("net").value_or(0);
        const auto bytes = read_all(*repository, {.model = "net", .number = newest});
        if (!bytes || *bytes != versions[newest - 1].bytes) ++wrong;
        if (repository->lineage({.model = "net", .number = newest})->size() != newest) ++wrong;
      } while (!stop.stop_requested());
    });
  }
  for (std::size_t i = 1; i < versions.size(); ++i) EXPECT_TRUE(put(*repository, versions[i]));
  readers.clear();
  EXPECT_EQ(wrong, 0);
}

// So that each block comes from the disk and goes from thread to thread.
TEST(RocksFolder, ReadersTakeTheSameTensorFromTheDisk) {
  const TemporaryFolder folder;
  const auto repository = open_or_die(std::move(*open_rocks_backend({.folder = folder / "store"})));
  std::mt19937_64 random(1);
  const TestVersion version = make_version("net", test_id(1), test_architecture({6'000'000}), nullptr, {}, random);
  ASSERT_TRUE(put(*repository, version));
  std::atomic<int> wrong{0};
  for (int round = 0; round < 5; ++round) {
    for (const auto& entry : std::filesystem::directory_iterator(folder / "store")) {
      if (entry.path().extension() != ".sst") continue;
      const FileDescriptor table(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      ::posix_fadvise(table.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    std::vector<std::jthread> readers;
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&] {
        const auto bytes = read_all(*repository, version.manifest.name);
        if (!bytes || *bytes != version.bytes) ++wrong;
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace freshet
