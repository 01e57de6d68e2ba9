// SPDX-License-Identifier: Apache-2.0
/// Tensors that a client brings into the store itself: over a store in memory.

#include "repo/serve/client/direct_puts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/log.h"
#include "repo/bucket/bucket_backend.h"
#include "repo/object_store/memory_object_store.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

constexpr std::uint64_t kPutMiB = std::uint64_t{1} << 20;

/// A client's line to a store in memory.
class PutLine final : public SignedObjects {
 public:
  explicit PutLine(std::shared_ptr<MemoryObjectStore> store) : store_(std::move(store)) {}

  Status read(const SignedRequest& request, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    ++reads;
    if (is_cut) return fail(Code::unavailable, "no connection");
    return store_->read(request, offset, out, deadline);
  }
  Creation create(const SignedRequest& request, Bytes bytes, Time deadline) override {
    ++creations;
    if (reads_only) {
      return {.outcome = Created::refused, .error = Error(Code::failed_precondition, "no right to write")};
    }
    if (loses && loses(bytes.size())) return {.outcome = Created::created};
    return store_->create(request, bytes, deadline);
  }

  mutable std::atomic<int> reads{0};
  std::atomic<int> creations{0};
  bool is_cut = false;  ///< Changed while nobody asks.
  bool reads_only = false;
  std::function<bool(std::size_t bytes)> loses;  ///< It says that it did, and did not.

 private:
  const std::shared_ptr<MemoryObjectStore> store_;
};

class DirectPutsTest : public testing::Test {
 protected:
  void SetUp() override {
    open();
    serve();
  }
  void TearDown() override { set_log_hook(nullptr); }
  void open() {
    auto backend = open_bucket_backend(store_, {});
    ASSERT_TRUE(backend) << backend.error().message();
    local_ = open_or_die(std::move(*backend));
  }
  void serve() {
    auto server = RepositoryServer::open(*local_, {.address = "ipc://" + folder_.path() + "/socket"});
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    RemoteRepositoryOptions options;
    options.signed_objects = line_;
    auto client = connect_repository(server_->address(), std::move(options));
    ASSERT_TRUE(client) << client.error().message();
    client_ = std::move(*client);
  }
  /// What the owner has of it.
  void expect_stored(const TestVersion& version, const VersionName& name) {
    const auto record = local_->get(name);
    ASSERT_TRUE(record) << record.error().message();
    std::vector<std::vector<std::byte>> came;
    for (const auto& bytes : version.bytes) came.emplace_back(bytes.size());
    std::vector<Repository::TensorRead> reads;
    for (std::uint32_t i = 0; i < came.size(); ++i) reads.push_back({.tensor = i, .out = came[i]});
    const Status read = local_->read(*record, reads);
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_TRUE(came == version.bytes);
  }
  /// Brings the version's first tensor without a client.
  BroughtTensor bring_first(const TestVersion& version) {
    const Bytes bytes = version.bytes.front();
    const PartToBring part{.bytes = bytes.size(), .crc32c = crc32c_of(bytes)};
    const auto all = local_->sign_uploads(std::vector{part}, std::chrono::minutes(1));
    EXPECT_TRUE(all) << all.error().message();
    const auto& upload = all->uploads.front();
    EXPECT_EQ(store_->create(upload.request, bytes, deadline_in(std::chrono::minutes(1))).outcome, Created::created);
    return {.tensor = 0, .parts = {{upload.object, part.bytes, part.crc32c, digest_of(bytes)}}};
  }
  /// Asks for no bytes but those of the others.
  std::function<Result<Bytes>(std::uint32_t)> others_of(const TestVersion& version, int& asked_for_first) {
    return [&version, &asked_for_first](std::uint32_t tensor) -> Result<Bytes> {
      if (tensor == 0) ++asked_for_first;
      return Bytes(version.bytes[tensor]);
    };
  }
  TestVersion make(std::uint64_t sequence) {
    return make_version("net", test_id(sequence), test_architecture({2 * kPutMiB, 100, 3 * kPutMiB}), nullptr, {},
                        random_);
  }

  TemporaryFolder folder_;
  std::mt19937_64 random_{3};
  const std::shared_ptr<MemoryObjectStore> store_ = std::make_shared<MemoryObjectStore>();
  const std::shared_ptr<PutLine> line_ = std::make_shared<PutLine>(store_);
  std::unique_ptr<ProviderRepository> local_;
  std::unique_ptr<RepositoryServer> server_;
  std::unique_ptr<ProviderRepository> client_;
};

TEST_F(DirectPutsTest, LargeTensorsGoToTheStoreItself) {
  const TestVersion version = make(1);
  const auto name = put(*client_, version);
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(line_->creations, 2);
  EXPECT_EQ(line_->reads, 1) << "it proved the way";
  expect_stored(version, *name);
  EXPECT_EQ(put(*client_, version).error().code(), Code::already_exists);
  EXPECT_EQ(line_->creations, 2) << "who may not put brings nothing";
  const TestVersion next = make_version("net", test_id(2), version.manifest.architecture, &version, {0}, random_);
  const auto later = put(*client_, next);
  ASSERT_TRUE(later) << later.error().message();
  EXPECT_EQ(line_->creations, 3) << "what it inherits is there";
  expect_stored(next, *later);
}

TEST_F(DirectPutsTest, AStoreThatIsNotReachedIsTriedOnceAndSaidOnce) {
  std::atomic<int> lines{0};
  set_log_hook([&lines](LogLevel, const std::string&) { ++lines; });
  line_->is_cut = true;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const TestVersion version = make(i);
    const auto name = put(*client_, version);
    ASSERT_TRUE(name) << name.error().message();
    expect_stored(version, *name);
  }
  EXPECT_EQ(line_->reads, 1);
  EXPECT_EQ(line_->creations, 0);
  EXPECT_EQ(lines, 1);
  set_log_hook(nullptr);
}

TEST_F(DirectPutsTest, WhoMayNotWriteReadsOnFromTheStoreItself) {
  std::atomic<int> lines{0};
  set_log_hook([&lines](LogLevel, const std::string&) { ++lines; });
  line_->reads_only = true;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const TestVersion version = make(i);
    const auto name = put(*client_, version);
    ASSERT_TRUE(name) << name.error().message();
    expect_stored(version, *name);
    const int reads = line_->reads;
    const auto record = client_->get(*name);
    ASSERT_TRUE(record) << record.error().message();
    std::vector<std::byte> came(2 * kPutMiB);
    ASSERT_TRUE(client_->read(*record, std::vector<Repository::TensorRead>{{.tensor = 0, .out = came}}));
    EXPECT_TRUE(came == version.bytes[0]);
    EXPECT_EQ(line_->reads, reads + 1) << "after put " << i;
  }
  EXPECT_LE(line_->creations, 2) << "of the first put";
  EXPECT_EQ(lines, 1);
  set_log_hook(nullptr);
}

TEST_F(DirectPutsTest, TheOwnerAsksForWhatIsNotThere) {
  line_->loses = [](std::size_t bytes) { return bytes == 3 * kPutMiB; };
  const TestVersion version = make(1);
  const auto name = put(*client_, version);
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(line_->creations, 2);
  expect_stored(version, *name);
}

TEST_F(DirectPutsTest, BytesThatAreNotTheManifestsAreRefused) {
  TestVersion version = make(1);
  version.bytes[0][5] ^= std::byte{1};
  EXPECT_TRUE(is_refused(put(*client_, version), Code::corrupt));
  EXPECT_EQ(line_->creations, 1) << "the other one alone";
}

TEST_F(DirectPutsTest, ATakeoverLosesNoUpload) {
  const TestVersion version = make(1);
  const BroughtTensor brought = bring_first(version);
  client_.reset();
  server_.reset();
  local_.reset();
  open();  // The next owner.
  int asked = 0;
  const auto name = local_->put_brought(version.manifest, others_of(version, asked), {}, std::vector{brought});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(asked, 0);
  expect_stored(version, *name);
}

TEST_F(DirectPutsTest, GcLeavesAnUploadWhoseTokenLives) {
  const TestVersion version = make(1);
  const BroughtTensor brought = bring_first(version);
  ASSERT_TRUE(local_->gc({}, {}));
  int asked = 0;
  const auto name = local_->put_brought(version.manifest, others_of(version, asked), {}, std::vector{brought});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(asked, 0);
  expect_stored(version, *name);
}

/// A writer vouches for a digest, and for nothing else.
TEST_F(DirectPutsTest, WhatAWriterSaysIsLookedAt) {
  const std::vector<std::function<void(BroughtTensor&)>> lies = {
      [](BroughtTensor& one) { one.parts[0].object = "objects/no-such-name"; },
      [](BroughtTensor& one) { one.parts[0].object = "log/0000000000000001"; },
      [](BroughtTensor& one) { one.parts[0].object.back() ^= 1; },
      [](BroughtTensor& one) { one.parts[0].bytes -= 1; },
      [](BroughtTensor& one) { one.parts[0].digest.low ^= 1; },
      [](BroughtTensor& one) { one.parts.push_back(one.parts[0]); },
      [](BroughtTensor& one) { one.parts.clear(); },
      [](BroughtTensor& one) { one.tensor = 7; },
  };
  std::uint64_t sequence = 0;
  for (const auto& lie : lies) {
    const TestVersion version = make(++sequence);
    BroughtTensor brought = bring_first(version);
    lie(brought);
    int asked = 0;
    const auto name = local_->put_brought(version.manifest, others_of(version, asked), {}, std::vector{brought});
    ASSERT_TRUE(name) << sequence << ": " << name.error().message();
    EXPECT_EQ(asked, 1) << sequence << ": the owner asks for the bytes";
    expect_stored(version, *name);
  }
}

TEST_F(DirectPutsTest, ADedupPutTakesNoWritersWordForBytes) {
  for (const bool is_next_owner : {false, true}) {
    const TestVersion honest = make(is_next_owner ? 3 : 1);
    TestVersion other = honest;
    other.manifest.id = test_id(is_next_owner ? 4 : 2);
    other.manifest.owners = OwnerMap::all_written_by(other.manifest.id, 3);
    other.bytes[0][5] ^= std::byte{1};
    BroughtTensor brought = bring_first(other);
    brought.parts[0].digest = honest.manifest.digests[0];
    int asked = 0;
    ASSERT_TRUE(local_->put_brought(other.manifest, others_of(other, asked), {}, std::vector{brought}));
    ASSERT_EQ(asked, 0);
    if (is_next_owner) {
      client_.reset();
      server_.reset();
      local_.reset();
      open();
    }
    const auto name = local_->put(honest.manifest, others_of(honest, asked), {.dedup = true});
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_EQ(asked, 1) << "no other writer's bytes are taken for these";
    expect_stored(honest, *name);
    // What was proved once is inherited.
    TestVersion again = honest;
    again.manifest.id = test_id(is_next_owner ? 6 : 5);
    again.manifest.owners = OwnerMap::all_written_by(again.manifest.id, 3);
    const auto third = local_->put(again.manifest, others_of(again, asked), {.dedup = true});
    ASSERT_TRUE(third) << third.error().message();
    EXPECT_EQ(asked, 1);
    expect_stored(again, *third);
  }
}

TEST_F(DirectPutsTest, AnObjectThatIsCondemnedIsNamedNoMore) {
  const TestVersion version = make(1);
  const BroughtTensor brought = bring_first(version);
  int asked = 0;
  const auto name = local_->put_brought(version.manifest, others_of(version, asked), {}, std::vector{brought});
  ASSERT_TRUE(name) << name.error().message();
  ASSERT_TRUE(local_->retire(*name, {}));
  ASSERT_TRUE(local_->gc({}, {}));
  TestVersion again = version;
  again.manifest.id = test_id(2);
  again.manifest.owners = OwnerMap::all_written_by(again.manifest.id, 3);
  const auto second = local_->put_brought(again.manifest, others_of(again, asked), {}, std::vector{brought});
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(asked, 1);
  expect_stored(again, *second);
}

}  // namespace
}  // namespace freshet
