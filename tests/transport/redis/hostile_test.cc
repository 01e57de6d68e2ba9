// SPDX-License-Identifier: Apache-2.0
// Wrong passwords, junk where ours should be, and a server that is none.

#include <thread>

#include "core/base/file_descriptor.h"
#include "tests/support/refused.h"
#include "tests/transport/redis/redis_fixture.h"

namespace freshet {
namespace {

using namespace freshet::test;

class RedisHostile : public RedisTest {};

class RedisPassword : public RedisTest {
 protected:
  RedisPassword() : RedisTest({.password = "hunter2"}) {}
};

TEST_F(RedisPassword, IsAskedForAndNeverTold) {
  ::testing::internal::CaptureStderr();
  const std::string place = server_.tcp_address().substr(server_.tcp_address().find('@') + 1);
  for (const std::string& text : {"redis://" + place, "redis://:wrong-secret@" + place}) {
    const auto directory = open_at(text);
    const auto lookup = directory->lookup("demo");
    ASSERT_TRUE(is_refused(lookup, Code::failed_precondition));
    for (const std::string& said : {lookup.error().message(), directory->health(), directory->text()}) {
      EXPECT_EQ(said.find("secret"), std::string::npos) << said;
    }
  }
  const auto right = open();
  const auto lookup = right->lookup("demo");
  ASSERT_TRUE(is_refused(lookup, Code::not_found));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("password"), std::string::npos) << said;
  for (const std::string& text : {said, right->text(), right->health(), lookup.error().message()}) {
    EXPECT_EQ(text.find("hunter2"), std::string::npos) << text;
    EXPECT_EQ(text.find("secret"), std::string::npos) << text;
  }
}

TEST_F(RedisHostile, JunkInTheRecordIsCorruptAndChangesNothing) {
  const auto directory = open();
  const auto junk = [&](const std::vector<std::string>& words) {
    command({"DEL", "freshet:demo:record", "freshet:demo:claim"});
    EXPECT_EQ(command(words).find("error"), std::string::npos);
    const auto claimed = directory->claim("demo");
    EXPECT_FALSE(claimed) << words.back();
    if (!claimed) {
      EXPECT_EQ(claimed.error().code(), Code::corrupt) << claimed.error().message();
    }
    return claimed.error().message();
  };
  junk({"SET", "freshet:demo:record", "junk"});
  junk({"HSET", "freshet:demo:record", "number", "abc"});
  EXPECT_NE(junk({"HSET", "freshet:demo:record", "epoch", "0000000000000000000x"}).find("epoch"), std::string::npos);
  junk({"HSET", "freshet:demo:record", "number", "-0000000000000000001"});
  junk({"HSET", "freshet:demo:record", "hold", "maybe"});
  junk({"HSET", "freshet:demo:record", "version", "000000000000000000001"});
  // Well-formed, but with no room to count on.
  junk({"HSET", "freshet:demo:record", "number", "09999999999999999999"});
  junk({"LPUSH", "freshet:demo:claim", "junk"});
  command({"DEL", "freshet:demo:record", "freshet:demo:claim"});
  grow_old();
  claim(*directory);
}

TEST_F(RedisHostile, JunkEntriesAreCorruptAndWatchesRecover) {
  const auto directory = open();
  const auto held = claim(*directory);
  ASSERT_TRUE(held->advertise(entry(7)));
  const auto watch = directory->watch("demo");
  ASSERT_TRUE(hears(**watch, [&] { return (*watch)->entry().has_value(); }));
  for (const std::string& junk : {std::string("junk"), std::string("{}"), std::string(1'000'000, '['),
                                  std::string(R"({"model":"other","pid":1,"incarnation":7,"control":"ipc:///x"})"),
                                  std::string(R"({"model":"demo","pid":1,"incarnation":7,"control":"a\nb"})")}) {
    // A renewal puts the right entry back: another key's expiry must not decide.
    const auto lookup = [&] {
      command({"HSET", "freshet:demo:claim", "entry", junk});
      return directory->lookup("demo");
    };
    EXPECT_TRUE(eventually([&] {
      const auto found = lookup();
      return !found && found.error().code() == Code::corrupt;
    })) << junk.substr(0, 80);
  }
  EXPECT_TRUE(hears(**watch, [&] { return (*watch)->entry().has_value(); }));
  EXPECT_EQ((*watch)->entry()->incarnation, 7U);
}

TEST_F(RedisHostile, JunkServersAndNamesAreNotBelieved) {
  const auto directory = open();
  command({"SADD", "freshet:models", "../x", "a:b", std::string(1000, 'y')});
  command({"HSET", "freshet:../x:claim", "entry", R"({"model":"../x","pid":1,"incarnation":7,"control":"ipc:///x"})"});
  EXPECT_TRUE(directory->list()->empty());
  command({"ZADD", "freshet:demo:servers", "99999999999999", "tcp://10.0.0.1:1"});
  EXPECT_EQ(directory->servers("demo")->size(), 1U);
  command({"HSET", "freshet:demo:versions", "tcp://10.0.0.1:1", "junk"});
  EXPECT_EQ(directory->servers("demo").error().code(), Code::corrupt);
  command({"HSET", "freshet:demo:versions", "tcp://10.0.0.1:1", "00000000000000000005"});
  command({"ZADD", "freshet:demo:servers", "99999999999999", std::string("bell\a")});
  EXPECT_EQ(directory->servers("demo").error().code(), Code::corrupt);
}

TEST_F(RedisHostile, TheSetOfServersHasALimit) {
  const auto directory = open();
  std::vector<std::string> words = {"ZADD", "freshet:demo:servers"};
  for (int i = 0; i < 1024; ++i) words.insert(words.end(), {"99999999999999", "tcp://10.0.0.1:" + std::to_string(i)});
  command(words);
  EXPECT_TRUE(is_refused(directory->serve("demo", {.address = "tcp://10.0.0.2:1"}, std::chrono::minutes(1)),
                         Code::out_of_space));
}

TEST_F(RedisHostile, AnnouncementsAreHeardAndFloodsAreCut) {
  const auto directory = open();
  const auto other = open();
  const auto watch = other->watch_commits("demo");
  const auto deaf = other->watch("demo");
  ASSERT_TRUE(watch);
  std::vector<std::string> heard;
  const std::string message("a\0b\xFF", 4);
  // Said again until the subscription stands.
  ASSERT_TRUE(eventually([&] {
    directory->announce("demo", message);
    directory->announce("demo-2", "not this one");
    for (std::string& text : (*watch)->take_announcements()) heard.push_back(std::move(text));
    return !heard.empty();
  }));
  EXPECT_EQ(heard.front(), message);
  EXPECT_TRUE((*deaf)->take_announcements().empty());
  for (int i = 0; i < 1000; ++i) command({"PUBLISH", "freshet:0:demo:commits", "flood"});
  command({"PUBLISH", "freshet:0:demo:commits", std::string(100'000, 'x')});
  directory->announce("demo", "last");
  ASSERT_TRUE(hears(**watch, [&] {
    heard = (*watch)->take_announcements();
    return !heard.empty() && heard.back() == "last";
  }));
  EXPECT_LE(heard.size(), 64U);
}

/// Accepts connections, and says the same to all.
class FalseServer {
 public:
  explicit FalseServer(std::string says) : says_(std::move(says)) {
    listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    ::listen(listener_.get(), 16);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~FalseServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string address() const { return "redis://127.0.0.1:" + std::to_string(port_); }

 private:
  void run() {
    std::vector<FileDescriptor> open;
    for (;;) {
      FileDescriptor connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!connection) return;
      ::send(connection.get(), says_.data(), says_.size(), MSG_NOSIGNAL);
      open.push_back(std::move(connection));
      if (open.size() > 8) open.erase(open.begin());
    }
  }
  const std::string says_;
  FileDescriptor listener_;
  int port_ = 0;
  std::thread thread_;
};

TEST_F(RedisHostile, AServerThatIsNoneIsLeft) {
  const std::string endless = "$2000000000\r\n" + std::string(200'000, 'x');
  for (const std::string& says :
       {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("*2000000000\r\n$1\r\nx\r\n"), endless,
        std::string("+OK\r\n+OK\r\n+OK\r\n"), std::string("-ERR unknown command 'SELECT' with args 'x'\r\n"),
        std::string("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"), std::string(":12\r\n:13\r\n"),
        std::string("")}) {
    const FalseServer server(says);
    const auto directory = open_at(server.address());
    const auto lookup = directory->lookup("demo");
    ASSERT_FALSE(lookup) << says.substr(0, 40);
    EXPECT_NE(lookup.error().code(), Code::not_found) << lookup.error().message();
    const auto claimed = directory->claim("demo");
    EXPECT_FALSE(claimed) << says.substr(0, 40);
  }
}

}  // namespace
}  // namespace freshet
