// SPDX-License-Identifier: Apache-2.0
#include "transport/security/keys.h"

#include <gmock/gmock.h>

#include "tests/support/refused.h"
#include "tests/transport/security/security_fixture.h"
#include "transport/security/allow_list.h"
#include "transport/security/credentials.h"
#include "transport/zmq/address.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/named_address.h"

namespace freshet {
namespace {

using namespace freshet::test;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Keys : public SecurityTest {};

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST_F(Keys, ComeBackFromTheirFiles) {
  const auto made = KeyPair::generate();
  ASSERT_TRUE(made) << made.error().message();
  ASSERT_TRUE(made->write(path_of("server")));
  EXPECT_EQ(mode_of(path_of("server")), 0600U);
  const auto read = KeyPair::read(path_of("server"));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_STREQ(read->secret_text(), made->secret_text());
  EXPECT_EQ(read->public_key(), made->public_key());
  EXPECT_EQ(*read_public_key(path_of("server.pub")), made->public_key());
  EXPECT_EQ(*read_public_key(made->public_key().text()), made->public_key());
  // A public file is a line of an allow-list.
  const auto list = AllowList::open(path_of("server.pub"));
  ASSERT_TRUE(list) << list.error().message();
  EXPECT_EQ(*list->keys(), (AllowedKeys{{made->public_key().text(), {.label = "server"}}}));
}

TEST_F(Keys, AreNeverOverwritten) {
  const std::string first = make_keys("server");
  const std::string key = public_text(first);
  const auto other = KeyPair::generate();
  EXPECT_EQ(other->write(first).error().code(), Code::already_exists);
  EXPECT_EQ(public_text(first), key);
  write_file("half.pub", "");
  EXPECT_EQ(other->write(path_of("half")).error().code(), Code::already_exists);
  EXPECT_FALSE(std::filesystem::exists(path_of("half")));
}

TEST_F(Keys, ThatOthersCanReadAreRefused) {
  const std::string file = make_keys("server");
  for (const mode_t mode : {0640, 0604, 0602, 0610, 0666}) {
    ::chmod(file.c_str(), mode);
    EXPECT_TRUE(is_refused(KeyPair::read(file), Code::invalid_argument, file)) << mode;
  }
  EXPECT_THAT(KeyPair::read(file + ".pub").error().message(), HasSubstr("looks like a public key"));
  ::chmod(file.c_str(), 0400);
  EXPECT_TRUE(KeyPair::read(file));
}

TEST_F(Keys, SecretFilesAreNotGuessedAt) {
  const std::string file = make_keys("server");
  const auto code_of = [&](const std::string& text) {
    const auto read = KeyPair::read(write_file("bad", text, 0600));
    return read ? Code::cancelled : read.error().code();
  };
  EXPECT_EQ(code_of(""), Code::corrupt);
  EXPECT_EQ(code_of("curve-secret "), Code::corrupt);
  EXPECT_EQ(code_of(public_text(file)), Code::corrupt);
  EXPECT_EQ(code_of("curve-secret " + std::string(40, '~')), Code::corrupt);
  EXPECT_EQ(code_of("curve-secret " + std::string(40, '#')), Code::corrupt);  // Past 2^32.
  EXPECT_EQ(code_of("curve-secret " + std::string(41, '0')), Code::corrupt);
  EXPECT_EQ(code_of(std::string(10'000, 'x')), Code::invalid_argument);
  EXPECT_EQ(KeyPair::read(path_of("nowhere")).error().code(), Code::not_found);
  EXPECT_EQ(KeyPair::read(keys_.path()).error().code(), Code::invalid_argument);
  // A secret in the place of a public key is told, and not shown.
  const auto swapped = read_public_key(file);
  ASSERT_FALSE(swapped);
  EXPECT_THAT(swapped.error().message(), HasSubstr("server.pub"));
}

TEST_F(Keys, AnAllowListTellsItsBadLine) {
  const std::string key = public_text(make_keys("server"));
  const auto opened = [&](const std::string& text, mode_t mode = 0644) {
    return AllowList::open(write_file("allow", text, mode));
  };
  const auto good = opened("# servers of site A\n\n#\n" + key + "\t a label  \r\n" + key);
  ASSERT_TRUE(good) << good.error().message();
  EXPECT_EQ(*good->keys(), (AllowedKeys{{key, {}}}));
  for (const std::string& line :
       {std::string("#comment"), key + "x", key.substr(1), key + " \x01", std::string("x y")}) {
    const auto bad = opened(key + "\n# fine\n" + line + "\n");
    ASSERT_TRUE(is_refused(bad, Code::invalid_argument)) << line;
    EXPECT_THAT(bad.error().message(), HasSubstr(path_of("allow") + ":3")) << line;
  }
  EXPECT_EQ(opened(key, 0666).error().code(), Code::invalid_argument);
  EXPECT_EQ(AllowList::open(path_of("nowhere")).error().code(), Code::not_found);
}

TEST_F(Keys, AnOperatorIsNamedBeforeItsKeyAndNowhereElse) {
  const std::string key = public_text(make_keys("first"));
  const std::string other = public_text(make_keys("second"));
  const auto opened = [&](const std::string& text) { return AllowList::open(write_file("allow", text)); };
  const auto list = opened("operator " + key + " ann's laptop\n" + other + " operator\n");
  ASSERT_TRUE(list) << list.error().message();
  EXPECT_EQ(*list->keys(), (AllowedKeys{{key, {.label = "ann's laptop", .right = Right::operate}},
                                        {other, {.label = "operator", .right = Right::read}}}));
  EXPECT_EQ(opened(key + "\noperator\t" + key)->keys()->at(key).right, Right::operate);
  EXPECT_EQ(opened("operator " + key + "\n" + key)->keys()->at(key).right, Right::read);
  EXPECT_EQ(opened("writer " + key + " writer")->keys()->at(key).right, Right::write);
  EXPECT_FALSE(opened("writer operator " + key));
  for (const std::string& line : {std::string("operator"), "operator" + key, "operators " + key,
                                  "operator operator " + key, "Operator " + key, key + " operator " + key + "\x01"}) {
    EXPECT_FALSE(opened(line)) << line;
  }
}

TEST_F(Keys, AnAllowListIsReadAgainWhenItChanges) {
  const std::string first = public_text(make_keys("first"));
  const std::string second = public_text(make_keys("second"));
  auto list = AllowList::open(write_file("allow", first));
  ASSERT_TRUE(list);
  // Of the same size, in the same instant as far as the file system can tell.
  write_file("allow", second);
  ASSERT_TRUE(list->refresh());
  EXPECT_TRUE(list->keys()->contains(second));
  EXPECT_FALSE(list->keys()->contains(first));
  write_file("allow", "nonsense");
  const Status bad = list->refresh();
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message(), HasSubstr(":1"));
  EXPECT_TRUE(list->refresh()) << "told twice";
  EXPECT_TRUE(list->keys()->contains(second));
  std::filesystem::remove(path_of("allow"));
  EXPECT_FALSE(list->refresh());
  EXPECT_TRUE(list->keys()->contains(second));
  write_file("new", first + "\n" + second);
  std::filesystem::rename(path_of("new"), path_of("allow"));
  ASSERT_TRUE(list->refresh());
  EXPECT_EQ(list->keys()->size(), 2U);
}

TEST_F(Keys, HalfOfThemIsRefused) {
  const std::string file = make_keys("server");
  const auto refused = [](const auto& result) { return !result && result.error().code() == Code::invalid_argument; };
  EXPECT_TRUE(refused(server_credentials({.key_file = file})));
  EXPECT_TRUE(refused(server_credentials({.allow_file = file + ".pub"})));
  EXPECT_TRUE(refused(client_credentials({.key_file = file})));
  EXPECT_TRUE(refused(client_credentials({.server_key = file + ".pub"})));
  EXPECT_TRUE(refused(client_credentials({.key_file = file, .server_key = "not a key"})));
  EXPECT_FALSE(server_credentials({})->has_value());
  EXPECT_FALSE(client_credentials({})->has_value());
}

TEST(Addresses, ReachNoFurtherThanTheyMay) {
  const auto text_of = [](const char* address, bool for_binding, Reach reach) {
    const auto parsed = SocketAddress::parse(address, for_binding, reach);
    return parsed ? parsed->text() : "";
  };
  for (const char* address : {"tcp://127.0.0.1:7070", "tcp://127.9.9.9:1", "tcp://[::1]:65535"}) {
    EXPECT_EQ(text_of(address, true, Reach::this_host), address);
    EXPECT_EQ(text_of(address, false, Reach::this_host), address);
  }
  EXPECT_EQ(text_of("tcp://localhost:7070", false, Reach::this_host), "tcp://127.0.0.1:7070");
  for (const char* address : {"tcp://10.0.0.1:7070", "tcp://[fe80::1%eth0]:7", "tcp://[2001:db8::1]:7070"}) {
    EXPECT_EQ(text_of(address, true, Reach::this_host), "");
    EXPECT_EQ(text_of(address, false, Reach::this_host), "");
    EXPECT_EQ(text_of(address, true, Reach::any_host), address);
    EXPECT_EQ(text_of(address, false, Reach::any_host), address);
  }
  for (const char* address : {"tcp://0.0.0.0:1", "tcp://*:*", "tcp://[::]:1"}) {
    EXPECT_EQ(text_of(address, true, Reach::any_host), address);
    EXPECT_EQ(text_of(address, true, Reach::this_host), "");
    EXPECT_EQ(text_of(address, false, Reach::any_host), "") << address;
  }
  EXPECT_EQ(text_of("tcp://trainer.example:7070", false, Reach::any_host), "tcp://trainer.example:7070");
  EXPECT_EQ(text_of("tcp://trainer.example:7070", true, Reach::any_host), "");
  for (const char* address :
       {"tcp://10.0.0.1;10.0.0.2:7070", "tcp://:1", "tcp://a b:1", "tcp://[::1:1", "tcp://::1:1", "tcp://-x:1",
        "tcp://10.0.0.1:0", "tcp://10.0.0.1:65536", "tcp://[::1%]:1", "udp://a:1"}) {
    EXPECT_EQ(text_of(address, false, Reach::any_host), "") << address;
  }
}

TEST(Handshakes, APeerThatIsStoppedOrEndedIsNotTakenForOneWithAnotherKey) {
  const auto told = [](std::uint32_t reason, const std::string& server_key) {
    const HandshakeParties parties{.address = "tcp://10.0.0.1:7", .own_key = "", .server_key = server_key};
    return handshake_error({.kind = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL, .value = reason}, parties)->message();
  };
  EXPECT_THAT(told(EAGAIN, "key"), HasSubstr("stopped"));
  EXPECT_THAT(told(EAGAIN, "key"), ::testing::Not(HasSubstr("key")));
  EXPECT_THAT(told(EAGAIN, ""), HasSubstr("--server-key"));
  // A publisher that was killed looks so, too, and more often.
  EXPECT_THAT(told(EPIPE, "key"), ContainsRegex("it may have ended just then, or .*wrong one"));
  EXPECT_THAT(told(ECONNRESET, ""), ContainsRegex("it may have ended just then, or want keys"));
}

TEST(Addresses, NameAPlaceThatThePeerCanReach) {
  const auto parsed = [](const char* address) { return *SocketAddress::parse(address, true, Reach::any_host); };
  EXPECT_EQ(parsed("tcp://0.0.0.0:9").at_host_of(parsed("tcp://10.0.0.1:7")).text(), "tcp://10.0.0.1:9");
  EXPECT_EQ(parsed("tcp://[::]:9").at_host_of(parsed("tcp://[2001:db8::1]:7")).text(), "tcp://[2001:db8::1]:9");
  EXPECT_EQ(parsed("tcp://*:9").from_this_host(), "tcp://127.0.0.1:9");
  EXPECT_EQ(parsed("tcp://[::]:9").from_this_host(), "tcp://[::1]:9");
  EXPECT_EQ(parsed("tcp://10.0.0.1:9").from_this_host(), "tcp://10.0.0.1:9");
}

TEST(Addresses, AnOfferOfEveryInterfaceIsWhereThePeerWasReached) {
  const auto reached = [](const char* address) { return *SocketAddress::parse(address, false, Reach::any_host); };
  const SocketAddress trainer = reached("tcp://10.0.0.1:7070");
  EXPECT_EQ(resolve_offered("tcp://0.0.0.0:9", trainer), "tcp://10.0.0.1:9");
  EXPECT_EQ(resolve_offered("tcp://[::]:9", trainer), "tcp://10.0.0.1:9");
  EXPECT_EQ(resolve_offered("ucx://0.0.0.0:9", trainer), "ucx://10.0.0.1:9");
  EXPECT_EQ(resolve_offered("ucx://[::]:9", reached("tcp://[2001:db8::1]:7")), "ucx://[2001:db8::1]:9");
  EXPECT_EQ(resolve_offered("tcp://0.0.0.0:9", reached("tcp://trainer.example:7")), "tcp://trainer.example:9");
  for (const char* as_it_is : {"", "tcp://", "ucx://", "ucx", "tcp://10.0.0.2:9", "ucx://10.0.0.2:9",
                               "tcp://0.0.0.0:", "tcp://0.0.0.0:99999", "ipc:///tmp/a", "file:///tmp"}) {
    EXPECT_EQ(resolve_offered(as_it_is, trainer), as_it_is);
  }
  EXPECT_EQ(resolve_offered("tcp://0.0.0.0:9", reached("ipc:///tmp/a")), "tcp://0.0.0.0:9");
}

}  // namespace
}  // namespace freshet
