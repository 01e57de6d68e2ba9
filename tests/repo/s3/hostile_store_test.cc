// SPDX-License-Identifier: Apache-2.0
/// Stores, and what stands before them, when they break: each answer is written byte by byte.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/interruption.h"
#include "repo/s3/s3_store.h"
#include "tests/support/refused.h"
#include "tests/support/scripted_http_server.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/variable_env.h"

namespace freshet {
namespace {

using testing::HasSubstr;
using testing::Not;
using Server = ScriptedHttpServer;

const VariableEnv kSomeKeys = VariableEnv::with({{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}});
constexpr const char* kTag = "ETag: \"x\"\r\nx-amz-request-id: 1\r\nLast-Modified: Fri, 27 Nov 2026 08:00:00 GMT\r\n";

std::unique_ptr<ObjectStore> store_at(const std::string& endpoint, const Env& env = kSomeKeys) {
  auto opened = open_s3_store({.bucket = "bucket", .prefix = "p", .endpoint = endpoint, .region = "here"}, {}, env);
  EXPECT_TRUE(opened) << opened.error().message();
  return opened ? std::move(*opened) : nullptr;
}
Bytes hello() { return bytes_of("hello", 5); }
Time in_seconds(int seconds) { return deadline_in(std::chrono::seconds(seconds)); }
Server::Answer refusal(const std::string& status, const std::string& code, const std::string& headers = "") {
  return Server::answer(status, "Content-Type: application/xml\r\n" + headers,
                        "<Error><Code>" + code + "</Code><Message>why</Message></Error>");
}
Server::Answer done() { return Server::answer("200 OK", kTag, ""); }

/// The answers in turn; the last one again and again.
Server::Script in_turn(std::vector<Server::Answer> answers) {
  return [answers](const Server::Request& request) {
    return answers[std::min<std::size_t>(static_cast<std::size_t>(request.number), answers.size() - 1)];
  };
}

void expect_one_line(const Error& error) {
  EXPECT_EQ(error.message().find('\n'), std::string::npos) << error.message();
  EXPECT_THAT(error.message(), Not(HasSubstr("secret")));
}

TEST(HostileStore, AProxysPageIsNoAnswer) {
  for (const char* status : {"200 OK", "403 Forbidden", "404 Not Found", "302 Found", "407 Authenticate"}) {
    Server server(in_turn({Server::answer(status, "Content-Type: text/html\r\nServer: squid\r\nETag: \"1\"\r\n",
                                          "<html><body>Log in\n</body></html>")}));
    const auto store = store_at(server.endpoint());
    const Creation creation = store->create("log/1", hello(), in_seconds(10));
    EXPECT_EQ(creation.outcome, Created::unsettled) << status;
    EXPECT_EQ(creation.error.code(), Code::unavailable) << status;
    EXPECT_THAT(creation.error.message(), HasSubstr("is there a proxy between")) << status;
    EXPECT_THAT(creation.error.message(), HasSubstr("squid")) << status;
    expect_one_line(creation.error);
    std::byte out{};
    EXPECT_EQ(store->get("log/1", 10, in_seconds(10)).error().code(), Code::unavailable) << status;
    EXPECT_EQ(store->read("log/1", 0, MutableBytes(&out, 1), in_seconds(10)).error().code(), Code::unavailable);
    EXPECT_EQ(store->head("log/1", in_seconds(10)).error().code(), Code::unavailable) << status;
    EXPECT_EQ(store->list("", "", 1, in_seconds(10)).error().code(), Code::unavailable) << status;
    EXPECT_EQ(store->remove("log/1", in_seconds(10)).error().code(), Code::unavailable) << status;
  }
}

TEST(HostileStore, ABusyOneIsAskedAgain) {
  Server server(in_turn({refusal("503 Slow Down", "SlowDown"), refusal("500 Oh", "InternalError"),
                         refusal("409 Conflict", "ConditionalRequestConflict"), done()}));
  EXPECT_EQ(store_at(server.endpoint())->create("log/1", hello(), in_seconds(60)).outcome, Created::created);
  EXPECT_EQ(server.requests(), 4);
  EXPECT_EQ(server.connections(), 1) << "a connection is used again";
}

TEST(HostileStore, AskingAgainEnds) {
  Server busy(in_turn({refusal("503 Slow Down", "SlowDown")}));
  const auto store = store_at(busy.endpoint());
  const Creation creation = store->create("log/1", hello(), in_seconds(60));
  EXPECT_EQ(creation.outcome, Created::unsettled) << "a gateway's 503 may hide that it was done";
  EXPECT_EQ(creation.error.code(), Code::unavailable);
  EXPECT_THAT(creation.error.message(), HasSubstr("too busy"));
  EXPECT_THAT(creation.error.message(), HasSubstr("tried 6 times"));
  EXPECT_EQ(busy.requests(), 6);
  // A pause that the deadline forbids is not begun.
  Server later(in_turn({refusal("503 Slow Down", "SlowDown", "Retry-After: 4\r\n")}));
  EXPECT_EQ(store_at(later.endpoint())->get("log/1", 10, in_seconds(3)).error().code(), Code::unavailable);
  EXPECT_EQ(later.requests(), 1);
  Server conflict(in_turn({refusal("409 Conflict", "ConditionalRequestConflict", "Retry-After: 4\r\n")}));
  EXPECT_EQ(store_at(conflict.endpoint())->create("log/1", hello(), in_seconds(3)).outcome, Created::refused)
      << "nothing is on its way";
}

TEST(HostileStore, ALostAnswerIsSettledByTheObjectOnly) {
  const Server::Answer cut{.bytes = "HTTP/1.1 200", .close = true};
  Server made(in_turn({cut, refusal("412 Precondition Failed", "PreconditionFailed")}));
  EXPECT_EQ(store_at(made.endpoint())->create("log/1", hello(), in_seconds(60)).outcome, Created::exists);
  Server refused(in_turn({cut, refusal("403 Forbidden", "AccessDenied")}));
  const Creation creation = store_at(refused.endpoint())->create("log/1", hello(), in_seconds(60));
  EXPECT_EQ(creation.outcome, Created::unsettled) << "the first request may still be done";
  EXPECT_EQ(creation.error.code(), Code::failed_precondition);
  Server at_once(in_turn({refusal("403 Forbidden", "AccessDenied")}));
  EXPECT_EQ(store_at(at_once.endpoint())->create("log/1", hello(), in_seconds(60)).outcome, Created::refused);
}

/// libcurl itself sends on a new connection what got no answer on a used one. What becomes of the second sending tells
/// nothing of the first.
TEST(HostileStore, ASilentlyRepeatedRequestMayHaveBeenDone) {
  const Server::Answer listed =
      Server::answer("200 OK", kTag, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>");
  const auto create_after = [](Server& server) {
    const auto store = store_at(server.endpoint());
    EXPECT_TRUE(store->list("", "", 1, in_seconds(60)));
    const Creation creation = store->create("log/1", hello(), in_seconds(2));
    EXPECT_EQ(creation.outcome, Created::unsettled) << creation.error.message();
    expect_one_line(creation.error);
  };
  Server gone(in_turn({listed, {.bytes = "", .close = true, .leave = true}}));
  create_after(gone);
  EXPECT_EQ(gone.requests(), 2);
  EXPECT_EQ(gone.connections(), 1) << "the second connection was refused";
  Server refusing(in_turn({listed, {.bytes = "", .close = true}, refusal("403 Forbidden", "AccessDenied")}));
  create_after(refusing);
  EXPECT_EQ(refusing.requests(), 3);
}

TEST(HostileStore, AConnectionCutAmidAnUploadIsTriedAgain) {
  const std::vector<std::byte> bytes(8 << 20);
  Server server(in_turn({done()}), /*body_bytes_max=*/1 << 20);
  const Creation creation = store_at(server.endpoint())->create("blobs/a", bytes, in_seconds(2));
  EXPECT_EQ(creation.outcome, Created::unsettled);
  EXPECT_EQ(creation.error.code(), Code::unavailable) << creation.error.message();
  EXPECT_GT(server.connections(), 1);
  expect_one_line(creation.error);
}

TEST(HostileStore, ADownloadThatEndsEarlyIsReadAgain) {
  const auto range = [](const std::string& bytes) {
    return "HTTP/1.1 206 Partial Content\r\n" + std::string(kTag) +
           "Content-Range: bytes 3-7/100\r\nContent-Length: 5\r\n\r\n" + bytes;
  };
  Server server(in_turn({{.bytes = range("he"), .close = true}, {.bytes = range("hello")}}));
  std::vector<std::byte> out(5);
  const Status read = store_at(server.endpoint())->read("blobs/a", 3, out, in_seconds(60));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(std::memcmp(out.data(), "hello", 5), 0);
  EXPECT_EQ(server.requests(), 2);
}

TEST(HostileStore, OtherBytesThanTheAskedOnesAreNotTaken) {
  const auto read_of = [](const std::string& status, const std::string& headers, const std::string& body) {
    Server server(in_turn({Server::answer(status, kTag + headers, body)}));
    std::vector<std::byte> out(5);
    const Status read = store_at(server.endpoint())->read("blobs/a", 3, out, in_seconds(10));
    return read ? Code::already_exists : read.error().code();
  };
  EXPECT_EQ(read_of("206 Partial", "Content-Range: bytes 0-4/100\r\n", "hello"), Code::unavailable) << "another range";
  EXPECT_EQ(read_of("206 Partial", "", "hello"), Code::unavailable) << "no range";
  EXPECT_EQ(read_of("206 Partial", "Content-Range: bytes 3-9/100\r\n", "hello, "), Code::unavailable) << "too much";
  EXPECT_EQ(read_of("206 Partial", "Content-Range: bytes 3-5/6\r\n", "hel"), Code::corrupt) << "the object is shorter";
  EXPECT_EQ(read_of("200 OK", "", "0123456789"), Code::unsupported) << "no ranges at all";
  EXPECT_EQ(read_of("206 Partial", "Content-Range: bytes 3-7/100\r\n", "hello"), Code::already_exists);
  Server flood(in_turn({Server::answer("200 OK", kTag, std::string(4 << 20, 'x'))}));
  EXPECT_EQ(store_at(flood.endpoint())->get("log/1", 1000, in_seconds(10)).error().code(), Code::out_of_space);
  Server damaged(
      in_turn({Server::answer("200 OK", kTag + std::string("x-amz-checksum-crc32c: AAAAAA==\r\n"), "hello")}));
  EXPECT_EQ(store_at(damaged.endpoint())->get("log/1", 1000, in_seconds(10)).error().code(), Code::corrupt);
}

TEST(HostileStore, FoldersOfAConsoleAreNoObjects) {
  const auto listed = [](const std::string& key, const char* more) {
    return Server::answer("200 OK", kTag,
                          "<ListBucketResult><IsTruncated>" + std::string(more) + "</IsTruncated><Contents><Key>" +
                              key +
                              "</Key><LastModified>2026-11-27T09:00:00.000Z</LastModified><Size>0</Size></Contents>"
                              "</ListBucketResult>");
  };
  // A store: "p/" and "p/log/" are folders, "p/log/7" is an object. It lists one key a page.
  Server server([&](const Server::Request& request) {
    if (request.head.find("start-after=p%2Flog%2F") != std::string::npos) return listed("p/log/7", "false");
    if (request.head.find("start-after=p%2F") != std::string::npos) return listed("p/log/", "true");
    return listed("p/", "true");
  });
  const auto page = store_at(server.endpoint())->list("", "", 1, in_seconds(60));
  ASSERT_TRUE(page) << page.error().message();
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, "log/7");
  EXPECT_FALSE(page->more);
  EXPECT_EQ(server.requests(), 3);
  Server only(in_turn({listed("p/", "false")}));
  const auto none = store_at(only.endpoint())->list("", "", 1, in_seconds(60));
  ASSERT_TRUE(none) << none.error().message();
  EXPECT_TRUE(none->objects.empty());
  Server endless(in_turn({listed("p/", "true")}));
  EXPECT_EQ(store_at(endless.endpoint())->list("", "", 1, in_seconds(60)).error().code(), Code::corrupt);
  EXPECT_EQ(endless.requests(), 2);
}

TEST(HostileStore, SilenceEndsAtTheDeadline) {
  Server silent(in_turn({{.bytes = "", .hang = true}}));
  const auto store = store_at(silent.endpoint());
  const Creation creation = store->create("log/1", hello(), in_seconds(1));
  EXPECT_EQ(creation.outcome, Created::unsettled);
  EXPECT_EQ(creation.error.code(), Code::timed_out);
  std::stop_source stop;
  const std::jthread stopper([&] { stop.request_stop(); });
  const StopInterrupts interrupts(stop.get_token());
  EXPECT_EQ(store->get("log/1", 10, in_seconds(600)).error().code(), Code::cancelled);
}

TEST(HostileStore, NothingListensThere) {
  std::string endpoint;
  { endpoint = Server(in_turn({done()})).endpoint(); }
  const Creation creation = store_at(endpoint)->create("log/1", hello(), in_seconds(2));
  EXPECT_EQ(creation.outcome, Created::refused) << "nothing was sent";
  EXPECT_EQ(creation.error.code(), Code::unavailable);
  EXPECT_THAT(creation.error.message(), HasSubstr("s3://bucket/p at " + endpoint + ": create log/1: "));
  EXPECT_TRUE(is_refused(store_at("http://no-such-host.invalid")->get("a", 1, in_seconds(2)), Code::unavailable));
}

TEST(HostileStore, AClockThatIsOffIsNamed) {
  for (const char* code : {"RequestTimeTooSkewed", "SignatureDoesNotMatch", "AccessDenied"}) {
    Server server(in_turn({refusal("403 Forbidden", code, "Date: Fri, 27 Nov 2015 08:00:00 GMT\r\n")}));
    EXPECT_TRUE(is_refused(store_at(server.endpoint())->get("log/1", 10, in_seconds(10)), Code::failed_precondition,
                           "s ahead of the store's"));
  }
}

TEST(HostileStore, ReasonsAreToldWithTheirCure) {
  const auto message_of = [](const Server::Answer& answer) {
    Server server(in_turn({answer}));
    const auto got = store_at(server.endpoint())->get("log/1", 10, in_seconds(10));
    EXPECT_EQ(got.error().code(), Code::failed_precondition) << got.error().message();
    expect_one_line(got.error());
    return got.error().message();
  };
  EXPECT_THAT(message_of(refusal("403 No", "InvalidAccessKeyId")), HasSubstr("access key ID of AWS_ACCESS_KEY_ID"));
  EXPECT_THAT(message_of(refusal("403 No", "ExpiredToken")), HasSubstr("token has ended"));
  EXPECT_THAT(message_of(refusal("403 No", "AccessDenied")), HasSubstr("no right to do this in bucket bucket"));
  EXPECT_THAT(message_of(refusal("404 No", "NoSuchBucket")), HasSubstr("there is no bucket bucket; make it first"));
  EXPECT_THAT(message_of(refusal("301 No", "PermanentRedirect", "x-amz-bucket-region: there\r\n")),
              HasSubstr("is in region there, not here; give ?region=there"));
  EXPECT_THAT(message_of(refusal("400 No", "KeyTooLongError")), HasSubstr("HTTP 400 KeyTooLongError: why"));
  Server full(in_turn({refusal("507 Full", "XMinioStorageFull")}));
  EXPECT_EQ(store_at(full.endpoint())->put("a", hello(), in_seconds(10)).error().code(), Code::out_of_space);
  Server old(in_turn({refusal("501 No", "NotImplemented")}));
  const Creation creation = store_at(old.endpoint())->create("a", hello(), in_seconds(10));
  EXPECT_EQ(creation.outcome, Created::refused);
  EXPECT_EQ(creation.error.code(), Code::unsupported);
}

TEST(HostileStore, EndedCredentialsAreReadAgain) {
  TemporaryFolder folder;
  const std::string path = folder / "credentials";
  std::ofstream(path) << "[default]\naws_access_key_id=old\naws_secret_access_key=s\naws_session_token=t\n";
  const VariableEnv env = VariableEnv::with({{"AWS_SHARED_CREDENTIALS_FILE", path}});
  Server server([&](const Server::Request& request) {
    if (request.head.find("Credential=newer/") != std::string::npos) return done();
    std::ofstream(path) << "[default]\naws_access_key_id=newer\naws_secret_access_key=s\n";
    return refusal("403 Forbidden", "ExpiredToken");
  });
  const auto store = store_at(server.endpoint(), env);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->create("log/1", hello(), in_seconds(60)).outcome, Created::created);
  EXPECT_EQ(server.requests(), 2);
}

TEST(HostileStore, HeadersThatDoNotEndAreCut) {
  std::string flood = "HTTP/1.1 200 OK\r\n";
  for (int i = 0; i < 2000; ++i) flood += "X-" + std::to_string(i) + ": y\r\n";
  Server server(in_turn({{.bytes = flood + "Content-Length: 0\r\n\r\n", .close = true}}));
  EXPECT_EQ(store_at(server.endpoint())->get("a", 10, in_seconds(1)).error().code(), Code::unavailable);
}

TEST(HostileStore, ASignedRequestFromOutsideIsChecked) {
  auto sender = open_s3_signed_objects();
  ASSERT_TRUE(sender) << sender.error().message();
  for (const SignedRequest& request :
       {SignedRequest{.url = "file:///etc/passwd", .headers = {}},
        SignedRequest{.url = "http://h/\r\nx: y", .headers = {}},
        SignedRequest{.url = "http://h/", .headers = {{"a", "b\r\nc: d"}}}, SignedRequest{}}) {
    std::byte out{};
    EXPECT_EQ((*sender)->read(request, 0, MutableBytes(&out, 1), in_seconds(5)).error().code(), Code::invalid_argument);
    EXPECT_EQ((*sender)->create(request, hello(), in_seconds(5)).outcome, Created::refused);
  }
  Server server(in_turn({refusal("403 Forbidden", "AccessDenied")}));
  std::byte out{};
  const Status read = (*sender)->read({.url = server.endpoint() + "/b/k?X-Amz-Signature=abc", .headers = {}}, 0,
                                      MutableBytes(&out, 1), in_seconds(5));
  EXPECT_EQ(read.error().code(), Code::failed_precondition);
  EXPECT_THAT(read.error().message(), Not(HasSubstr("abc"))) << "a signature lets its reader in";
}

}  // namespace
}  // namespace freshet
