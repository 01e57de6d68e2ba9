// SPDX-License-Identifier: Apache-2.0
/// Tensors that a client without credentials brings to a real server and reads from it, and what stands before a server
/// when it breaks.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "repo/bucket/bucket_backend.h"
#include "repo/s3/s3_store.h"
#include "repo/serve/client/direct_reads.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/s3/shared_seaweed.h"
#include "tests/repo/world.h"
#include "tests/support/scripted_http_server.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

/// Over HTTP, with a count.
class CountedLine final : public SignedObjects {
 public:
  Status read(const SignedRequest& request, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    const Status read = http_->read(request, offset, out, deadline);
    if (read) bytes += out.size();
    return read;
  }
  Creation create(const SignedRequest& request, Bytes sent, Time deadline) override {
    Creation made = http_->create(request, sent, deadline);
    if (made.outcome == Created::created) sent_bytes += sent.size();
    return made;
  }
  mutable std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> sent_bytes{0};

 private:
  const std::unique_ptr<SignedObjects> http_ = std::move(*open_s3_signed_objects({}, kNoKeys));
  static const VariableEnv kNoKeys;
};
const VariableEnv CountedLine::kNoKeys = VariableEnv::with({});

TEST(SeaweedDirect, AClientWithoutCredentialsMovesTensorsToAndFromTheServerItself) {
  if (!seaweed().why_not().empty()) GTEST_SKIP() << seaweed().why_not();
  auto store = open_s3_store(a_new_place(), {}, kOwnerKeys);
  ASSERT_TRUE(store) << store.error().message();
  BucketOptions options;
  options.check_exclusion = false;
  auto backend = open_bucket_backend(std::shared_ptr<ObjectStore>(std::move(*store)), options);
  ASSERT_TRUE(backend) << backend.error().message();
  const auto local = open_or_die(std::move(*backend));
  std::mt19937_64 random(5);
  constexpr std::uint64_t kLarge = (std::uint64_t{64} << 20) + 4096;  // Of two parts.
  const TestVersion version =
      make_version("net", test_id(1), test_architecture({kLarge, 100, 2'000'000}), nullptr, {}, random);
  const TemporaryFolder folder;
  const auto server = RepositoryServer::open(*local, {.address = "ipc://" + folder.path() + "/socket"});
  ASSERT_TRUE(server) << server.error().message();
  const auto line = std::make_shared<CountedLine>();
  RemoteRepositoryOptions remote;
  remote.signed_objects = line;
  const auto client = connect_repository((*server)->address(), std::move(remote));
  ASSERT_TRUE(client) << client.error().message();
  const auto stored = put(**client, version);
  ASSERT_TRUE(stored) << stored.error().message();
  EXPECT_EQ(line->sent_bytes, kLarge + 2'000'000);
  EXPECT_EQ((*server)->stat().upload_bytes, 0U);
  const auto record = (*client)->get(*stored);
  ASSERT_TRUE(record);
  line->bytes = 0;
  std::vector<std::vector<std::byte>> came;
  for (const auto& bytes : version.bytes) came.emplace_back(bytes.size());
  std::vector<Repository::TensorRead> reads;
  for (std::uint32_t i = 0; i < came.size(); ++i) reads.push_back({.tensor = i, .out = came[i]});
  const Status read = (*client)->read(*record, reads);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(came == version.bytes);
  EXPECT_EQ(line->bytes, kLarge + 2'000'000) << "the way was proven by the put";
  EXPECT_EQ((*server)->stat().channel_bytes, 0U);
}

/// The tensors that are left when the store, or what stands before it, answers so.
std::size_t left_by(const ScriptedHttpServer::Script& script, int& requests) {
  ScriptedHttpServer server(script);
  VersionRecord record;
  std::mt19937_64 random(1);
  TestVersion version = make_version("net", test_id(1), test_architecture({2 << 20, 2 << 20}), nullptr, {}, random);
  record.manifest = version.manifest;
  std::vector<std::byte> out(2 << 20);
  std::vector<std::byte> other(2 << 20);
  const std::vector<Repository::TensorRead> reads = {{.tensor = 0, .out = out}, {.tensor = 1, .out = other}};
  rpc::DirectLine line(true, nullptr);
  rpc::DirectReads direct(line);
  const auto left = direct.read(record, reads, [&](const rpc::SignReads& question) -> Result<rpc::SignedReads> {
    rpc::SignedReads answer{.tensors = {}, .life = std::chrono::minutes(10)};
    for (std::size_t i = 0; i < question.tensors.size(); ++i) {
      answer.tensors.push_back(
          {{{.request = {.url = server.endpoint() + "/b/o?X-Amz-Signature=1", .headers = {}}, .bytes = 2 << 20}}});
    }
    return answer;
  });
  requests = server.requests();
  return left.size();
}

TEST(HostileDirectReads, OddAnswersLeaveTheTensorsToTheOwner) {
  const std::string page = "<html>Sign in to the network</html>";
  const auto always = [](ScriptedHttpServer::Answer answer) {
    return [answer](const ScriptedHttpServer::Request&) { return answer; };
  };
  const std::vector<std::pair<const char*, ScriptedHttpServer::Answer>> answers = {
      {"a proxy's page", ScriptedHttpServer::answer("200 OK", "Content-Type: text/html\r\n", page)},
      {"a sign-in", ScriptedHttpServer::answer("302 Found", "Location: http://127.0.0.1:1/\r\n", page)},
      {"an expired URL",
       ScriptedHttpServer::answer("403 Forbidden", "Content-Type: application/xml\r\n",
                                  "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")},
      {"another range",
       ScriptedHttpServer::answer("206 Partial Content", "Content-Range: bytes 1-1/9\r\nETag: \"x\"\r\n", "x")},
  };
  for (const auto& [what, answer] : answers) {
    int requests = 0;
    EXPECT_EQ(left_by(always(answer), requests), 2U) << what;
    EXPECT_EQ(requests, 1) << what << ": one small request found that out";
  }
}

TEST(HostileDirectReads, NoRequestGoesWhereNoneShould) {
  for (const char* url : {"file:///etc/passwd", "ftp://127.0.0.1/x", "http://127.0.0.1:1/\r\nx: y", ""}) {
    VersionRecord record;
    std::mt19937_64 random(1);
    record.manifest = make_version("net", test_id(1), test_architecture({2 << 20}), nullptr, {}, random).manifest;
    std::vector<std::byte> out(2 << 20);
    const std::vector<Repository::TensorRead> reads = {{.tensor = 0, .out = out}};
    rpc::DirectLine line(true, nullptr);
    rpc::DirectReads direct(line);
    const auto left = direct.read(record, reads, [&](const rpc::SignReads&) -> Result<rpc::SignedReads> {
      return rpc::SignedReads{.tensors = {{{{.request = {.url = url, .headers = {}}, .bytes = 2 << 20}}}},
                              .life = std::chrono::minutes(10)};
    });
    EXPECT_EQ(left.size(), 1U) << url;
  }
}

}  // namespace
}  // namespace freshet
