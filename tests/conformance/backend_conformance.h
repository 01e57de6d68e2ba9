// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What every backend must do. A backend's test instantiates BackendConformance with a BackendCase.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "repo/backend/backend.h"
#include "tests/support/seeded_bytes.h"
#include "tests/support/temporary_folder.h"

namespace freshet {

struct BackendCase {
  std::string name;
  /// Opens the backend in the folder; again, after the one before is gone, when it is durable.
  std::function<Result<std::unique_ptr<Backend>>(const std::string& folder)> open;
  /// Non-empty: this machine has no such medium.
  std::function<std::string()> why_not = {};
};

class BackendConformance : public testing::TestWithParam<BackendCase> {
 protected:
  using Blobs = std::vector<std::pair<std::string, std::uint64_t>>;
  using Records = std::vector<std::pair<std::string, std::string>>;

  void SetUp() override {
    const std::string why_not = GetParam().why_not ? GetParam().why_not() : "";
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    open();
  }

  void open() {
    backend_.reset();
    auto opened = GetParam().open(folder_ / "store");
    ASSERT_TRUE(opened) << opened.error().message();
    backend_ = std::move(*opened);
  }

  static std::vector<std::byte> some_bytes(std::size_t count, std::uint64_t seed) {
    return test::seeded_bytes(count, seed);
  }

  void write(const std::vector<std::pair<std::string, std::vector<std::byte>>>& blobs) {
    auto writer = backend_->write_blobs();
    ASSERT_TRUE(writer) << writer.error().message();
    for (const auto& [key, bytes] : blobs) ASSERT_TRUE((*writer)->write(key, bytes));
    const Status status = (*writer)->commit();
    ASSERT_TRUE(status) << status.error().message();
  }

  std::vector<std::byte> read(const std::string& key, std::uint64_t offset, std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    const Status status = backend_->read_blob(key, offset, out);
    EXPECT_TRUE(status) << status.error().message();
    return out;
  }

  Code read_code(const std::string& key, std::uint64_t offset, std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    const Status status = backend_->read_blob(key, offset, out);
    EXPECT_FALSE(status);
    return status ? Code::cancelled : status.error().code();
  }

  Blobs blobs() {
    Blobs found;
    EXPECT_TRUE(backend_->list_blobs([&](std::string_view key, std::uint64_t bytes) {
      found.emplace_back(key, bytes);
      return true;
    }));
    return found;
  }

  Records scan(const std::string& prefix) {
    Records found;
    EXPECT_TRUE(backend_->scan(prefix, [&](std::string_view key, std::string_view value) {
      found.emplace_back(key, value);
      return true;
    }));
    return found;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(BackendConformance, StartsEmpty) {
  EXPECT_TRUE(blobs().empty());
  EXPECT_TRUE(scan("").empty());
  EXPECT_FALSE(backend_->read_only());
}

TEST_P(BackendConformance, BlobsOfAllSizesReadBack) {
  constexpr std::size_t kMiB = 1 << 20;
  std::vector<std::pair<std::string, std::vector<std::byte>>> all;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4095}, kMiB - 1, kMiB, kMiB + 1, 8 * kMiB + 13}) {
    all.emplace_back("blob " + std::to_string(bytes), some_bytes(bytes, bytes));
    write({all.back()});  // Each as a put of its own …
  }
  for (const auto& [key, bytes] : all) EXPECT_TRUE(test::same_bytes(read(key, 0, bytes.size()), bytes)) << key;
  for (auto& [key, bytes] : all) key += " again";
  write(all);  // … and all in one.
  for (const auto& [key, bytes] : all) EXPECT_TRUE(test::same_bytes(read(key, 0, bytes.size()), bytes)) << key;
}

TEST_P(BackendConformance, DigestsAreThoseOfTheBytes) {
  constexpr std::size_t kMiB = 1 << 20;
  for (const std::size_t tall : {std::size_t{0}, 9 * kMiB + 3}) {  // A small put, and a large one.
    auto writer = backend_->write_blobs();
    ASSERT_TRUE(writer);
    std::deque<std::vector<std::byte>> contents;  // They stay where they are until the commit.
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{77}, kMiB, kMiB + 1, tall}) {
      const auto& content = contents.emplace_back(some_bytes(bytes, bytes));
      EXPECT_EQ((*writer)->write_and_digest("b" + std::to_string(bytes), content).value(), digest_of(content));
    }
    ASSERT_TRUE((*writer)->commit());
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{77}, kMiB, kMiB + 1, tall}) {
      std::vector<std::byte> out(bytes + 1);
      const MutableBytes room = MutableBytes(out).subspan(1);  // Not aligned.
      EXPECT_EQ(backend_->read_and_digest("b" + std::to_string(bytes), room).value(),
                digest_of(some_bytes(bytes, bytes)));
      EXPECT_EQ(digest_of(room), digest_of(some_bytes(bytes, bytes)));
    }
    std::vector<std::byte> out(78);
    EXPECT_EQ(backend_->read_and_digest("b77", out).error().code(), Code::corrupt);
    EXPECT_EQ(backend_->read_and_digest("none", out).error().code(), Code::not_found);
  }
}

/// Another process changes the bytes meanwhile. The digest is of the bytes that were kept, or the put fails.
TEST_P(BackendConformance, ADigestIsOfTheKeptBytes) {
  constexpr std::size_t kBytes = (std::size_t{24} << 20) + 5;
  void* const shared = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const words = static_cast<std::atomic<std::uint32_t>*>(shared);
  auto writer = backend_->write_blobs();
  ASSERT_TRUE(writer);
  const pid_t child = ::fork();
  if (child == 0) {
    for (std::uint32_t round = 1;; ++round) {
      for (std::size_t i = 0; i < kBytes / sizeof(*words); i += 1024) words[i] = round;
    }
  }
  ASSERT_GT(child, 0);
  while (words[0] == 0) std::this_thread::yield();  // It runs.
  const Result<Digest> digest = (*writer)->write_and_digest("b", Bytes(static_cast<const std::byte*>(shared), kBytes));
  const Status committed = (*writer)->commit();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (digest && committed) {
    EXPECT_EQ(digest_of(read("b", 0, kBytes)), *digest);
  }
  ::munmap(shared, kBytes);
}

/// Blobs of a writer that finished: with their records, or before them, and never with another batch.
TEST_P(BackendConformance, FinishedBlobsComeWithTheirRecords) {
  const auto small = some_bytes(1000, 1);
  const auto tall = some_bytes((1 << 20) + 1, 2);
  for (const bool with_erasure : {false, true}) {
    auto writer = backend_->write_blobs();
    ASSERT_TRUE(writer);
    ASSERT_TRUE((*writer)->write("small", small));
    ASSERT_TRUE((*writer)->write_and_digest("tall", tall));
    const Result<bool> waits = (*writer)->finish();
    ASSERT_TRUE(waits) << waits.error().message();
    ASSERT_TRUE((*writer)->check_finished());
    ASSERT_TRUE(backend_->apply({Backend::Put{"other", "1"}}));
    EXPECT_EQ(blobs().size(), *waits ? 0u : 2u);
    Backend::Batch batch{Backend::Put{"r", "1"}};
    if (*waits) batch.push_back(Backend::NewBlobs{writer->get()});
    ASSERT_TRUE(backend_->apply(batch));
    writer->reset();
    if (backend_->durable()) open();
    EXPECT_EQ(read("small", 0, small.size()), small);
    EXPECT_TRUE(test::same_bytes(read("tall", 0, tall.size()), tall));
    if (with_erasure) continue;
    ASSERT_TRUE(backend_->erase_blob("small"));
    ASSERT_TRUE(backend_->erase_blob("tall"));
    EXPECT_TRUE(blobs().empty());
  }
  auto given_up = backend_->write_blobs();
  ASSERT_TRUE(given_up);
  ASSERT_TRUE((*given_up)->write("never", small));
  given_up->reset();
  EXPECT_EQ(blobs().size(), 2u);
}

/// A backend may read several blobs by one request. What it says it read is right; the others are read one by one.
TEST_P(BackendConformance, NeighboursAreReadAsTheyAre) {
  std::vector<std::pair<std::string, std::vector<std::byte>>> all;
  for (const std::size_t bytes : {0, 1, 100, 5000, 70'000, 300'000, 1 << 20, 77}) {
    all.emplace_back("n" + std::to_string(bytes), some_bytes(bytes, bytes));
  }
  write(all);
  std::vector<std::vector<std::byte>> outs;
  for (const auto& [key, bytes] : all) outs.emplace_back(bytes.size());
  outs.emplace_back(10);
  std::vector<Backend::WholeRead> reads;
  for (std::size_t i = all.size(); i-- > 0;) reads.push_back({.key = all[i].first, .out = outs[i]});
  reads.push_back({.key = "none", .out = outs.back()});
  const auto came = backend_->read_neighbours(reads);
  ASSERT_TRUE(came) << came.error().message();
  ASSERT_EQ(came->size(), reads.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& digest = (*came)[all.size() - 1 - i];
    if (!digest) continue;
    EXPECT_EQ(*digest, digest_of(all[i].second)) << all[i].first;
    EXPECT_TRUE(test::same_bytes(outs[i], all[i].second)) << all[i].first;
  }
  EXPECT_FALSE(came->back());
  EXPECT_TRUE(backend_->read_neighbours({})->empty());
}

TEST_P(BackendConformance, RangesOfABlob) {
  const auto bytes = some_bytes((5 << 20) + 77, 3);
  write({{"k", bytes}});
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::size_t offset = random() % (bytes.size() + 1);
    const std::size_t count = random() % (bytes.size() - offset + 1);
    ASSERT_TRUE(test::same_bytes(read("k", offset, count), Bytes(bytes).subspan(offset, count)))
        << offset << " +" << count;
  }
  EXPECT_TRUE(read("k", bytes.size(), 0).empty());
}

TEST_P(BackendConformance, ReadingWhatIsNotThere) {
  write({{"k", some_bytes(10, 1)}});
  EXPECT_EQ(read_code("other", 0, 1), Code::not_found);
  EXPECT_EQ(read_code("k", 0, 11), Code::corrupt);
  EXPECT_EQ(read_code("k", 10, 1), Code::corrupt);
  EXPECT_EQ(read_code("k", ~std::uint64_t{0}, 1), Code::corrupt);
  EXPECT_EQ(backend_->get("other").error().code(), Code::not_found);
}

TEST_P(BackendConformance, AWriterWithoutCommitLeavesNothing) {
  {
    auto writer = backend_->write_blobs();
    ASSERT_TRUE(writer);
    ASSERT_TRUE((*writer)->write("small", some_bytes(100, 1)));
    ASSERT_TRUE((*writer)->write("tall", some_bytes(6 << 20, 2)));
    EXPECT_EQ(read_code("small", 0, 1), Code::not_found);
  }
  EXPECT_TRUE(blobs().empty());
  EXPECT_EQ(read_code("tall", 0, 1), Code::not_found);
}

TEST_P(BackendConformance, ABlobIsReplaced) {
  for (const std::size_t bytes :
       {std::size_t{9} << 20, std::size_t{50}, std::size_t{7} << 20, (std::size_t{7} << 20) + 5}) {
    const auto content = some_bytes(bytes, bytes);
    write({{"k", content}});
    EXPECT_EQ(read("k", 0, bytes), content);
    EXPECT_EQ(blobs(), (Blobs{{"k", bytes}}));
  }
}

TEST_P(BackendConformance, KeysMayComeInAnyOrder) {
  const auto tall = some_bytes(5 << 20, 1);
  const auto small = some_bytes(3, 2);
  write({{"m", tall}, {"z", small}, {"a", tall}, {"a", small}, {"b", small}});
  EXPECT_EQ(blobs(), (Blobs{{"a", 3}, {"b", 3}, {"m", tall.size()}, {"z", 3}}));
  EXPECT_EQ(read("m", 0, tall.size()), tall);
  EXPECT_EQ(read("a", 0, 3), small);
}

TEST_P(BackendConformance, KeysAreBytes) {
  using namespace std::string_literals;
  const std::vector<std::string> keys = {"\0"s,      "\0\0"s, "\0\1"s, "\0\xff"s, "a"s,         "a\0"s,  "a\0\0"s,
                                         "a\0\xff"s, "a\1"s,  "ab"s,   "a\xff"s,  "a\xff\xff"s, "\xff"s, "\xff\xff"s};
  std::vector<std::pair<std::string, std::vector<std::byte>>> tall;
  Backend::Batch batch;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    tall.emplace_back(keys[i], some_bytes((1 << 20) + i, i));
    batch.push_back(Backend::Put{keys[i], std::to_string(i)});
  }
  write(tall);
  ASSERT_TRUE(backend_->apply(batch));
  const Blobs listed = blobs();
  const Records scanned = scan("");
  ASSERT_EQ(listed.size(), keys.size());
  ASSERT_EQ(scanned.size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(listed[i], (std::pair<std::string, std::uint64_t>(keys[i], tall[i].second.size())));
    EXPECT_EQ(scanned[i], (std::pair<std::string, std::string>(keys[i], std::to_string(i))));
    EXPECT_EQ(read(keys[i], 0, tall[i].second.size()), tall[i].second);
  }
  EXPECT_EQ(scan("a\xff"s).size(), 2u);
  EXPECT_EQ(scan("\xff"s).size(), 2u);
  // Erasing one takes none of its neighbours.
  ASSERT_TRUE(backend_->erase_blob("a\0"s));
  ASSERT_TRUE(backend_->reclaim());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == "a\0"s) continue;
    EXPECT_EQ(read(keys[i], 0, tall[i].second.size()), tall[i].second);
  }
  EXPECT_EQ(read_code("a\0"s, 0, 1), Code::not_found);
}

TEST_P(BackendConformance, ErasedBlobsAreGone) {
  write({{"a", some_bytes(10, 1)}, {"b", some_bytes(5 << 20, 2)}, {"c", some_bytes(5 << 20, 3)}});
  EXPECT_TRUE(backend_->erase_blob("a"));
  EXPECT_TRUE(backend_->erase_blob("b"));
  EXPECT_TRUE(backend_->erase_blob("never"));
  EXPECT_EQ(blobs(), (Blobs{{"c", 5 << 20}}));
  EXPECT_TRUE(backend_->reclaim());
  EXPECT_EQ(read("c", 0, 5 << 20), some_bytes(5 << 20, 3));
  EXPECT_EQ(read_code("b", 0, 1), Code::not_found);
  write({{"b", some_bytes(5 << 20, 4)}});
  EXPECT_EQ(read("b", 0, 5 << 20), some_bytes(5 << 20, 4));
}

TEST_P(BackendConformance, ErasedSpaceComesBack) {
  const std::uint64_t before = backend_->disk_use()->bytes;
  write({{"a", some_bytes(20 << 20, 1)}});
  const std::uint64_t full = backend_->disk_use()->bytes;
  EXPECT_GE(full, before + (20 << 20));
  ASSERT_TRUE(backend_->erase_blob("a"));
  ASSERT_TRUE(backend_->reclaim());
  EXPECT_LT(backend_->disk_use()->bytes, before + (2 << 20));
}

TEST_P(BackendConformance, BatchesChangeInOrder) {
  ASSERT_TRUE(backend_->apply({Backend::Put{"a", "1"}, Backend::Put{"b", "2"}, Backend::Put{"empty", ""}}));
  ASSERT_TRUE(backend_->apply({Backend::Erase{"a"}, Backend::Put{"b", "3"}, Backend::Put{"c", "4"}, Backend::Erase{"c"},
                               Backend::Erase{"d"}, Backend::Put{"d", "5"}, Backend::Erase{"none"}}));
  EXPECT_EQ(scan(""), (Records{{"b", "3"}, {"d", "5"}, {"empty", ""}}));
  EXPECT_EQ(backend_->get("empty").value_or("?"), "");
}

TEST_P(BackendConformance, ScansStopAndMayGet) {
  ASSERT_TRUE(backend_->apply({Backend::Put{"p/1", "a"}, Backend::Put{"p/2", "b"}, Backend::Put{"p/3", "c"},
                               Backend::Put{"o", ""}, Backend::Put{"q", ""}}));
  EXPECT_EQ(scan("p/"), (Records{{"p/1", "a"}, {"p/2", "b"}, {"p/3", "c"}}));
  int seen = 0;
  ASSERT_TRUE(backend_->scan("p/", [&](std::string_view key, std::string_view value) {
    EXPECT_EQ(backend_->get(key).value_or("?"), value);
    return ++seen < 2;
  }));
  EXPECT_EQ(seen, 2);
}

// A reader of two records that every batch changes together must never see them differ, whatever it meets.
TEST_P(BackendConformance, ReadersRunBesideAWriter) {
  ASSERT_TRUE(backend_->apply({Backend::Put{"x/1", "0"}, Backend::Put{"x/2", "0"}}));
  const auto fixed = some_bytes((3 << 20) + 1, 11);
  write({{"fixed", fixed}});
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::atomic<int> passes{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      std::vector<std::byte> out(fixed.size());
      do {
        std::map<std::string, std::string> pair;
        const Status status = backend_->scan("x/", [&](std::string_view key, std::string_view value) {
          pair.emplace(key, value);
          return true;
        });
        if (!status || pair["x/1"] != pair["x/2"]) ++wrong;
        if (!backend_->read_blob("fixed", 0, out) || out != fixed) ++wrong;
        ++passes;
      } while (!done);
    });
  }
  for (int i = 1; i <= 20 || passes < 6; ++i) {
    write({{"other " + std::to_string(i % 20), some_bytes((i % 3) * (3 << 20), static_cast<std::uint64_t>(i))}});
    ASSERT_TRUE(backend_->apply({Backend::Put{"x/1", std::to_string(i)}, Backend::Put{"x/2", std::to_string(i)}}));
  }
  done = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

/// For backends that keep what they acknowledged.
class DurableBackendConformance : public BackendConformance {};

TEST_P(DurableBackendConformance, WhatWasAcknowledgedIsThereAfterReopening) {
  ASSERT_TRUE(backend_->durable());
  const auto small = some_bytes(1000, 1);
  const auto tall = some_bytes((9 << 20) + 1, 2);
  write({{"small", small}});
  write({{"tall", tall}, {"with", small}});
  ASSERT_TRUE(backend_->apply({Backend::Put{"r", "1"}}));
  open();
  EXPECT_EQ(blobs(), (Blobs{{"small", small.size()}, {"tall", tall.size()}, {"with", small.size()}}));
  EXPECT_EQ(read("tall", 0, tall.size()), tall);
  EXPECT_EQ(read("small", 0, small.size()), small);
  EXPECT_EQ(scan(""), (Records{{"r", "1"}}));
  ASSERT_TRUE(backend_->erase_blob("tall"));
  ASSERT_TRUE(backend_->apply({Backend::Erase{"r"}}));
  open();
  EXPECT_EQ(blobs().size(), 2u);
  EXPECT_TRUE(scan("").empty());
}

TEST_P(BackendConformance, RecoveringFromNothingHarmsNothing) {
  write({{"k", some_bytes(10, 1)}});
  ASSERT_TRUE(backend_->apply({Backend::Put{"r", "1"}}));
  EXPECT_TRUE(backend_->recover());
  EXPECT_EQ(blobs().size(), 1u);
  EXPECT_EQ(scan("").size(), 1u);
}

}  // namespace freshet
