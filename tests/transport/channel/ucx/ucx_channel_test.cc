// SPDX-License-Identifier: Apache-2.0
/// What is the UCX channel's own; what it shares with others is in tests/conformance.

#include "transport/channel/ucx/ucx_channel.h"

#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/channel_conformance.h"
#include "tests/support/refused.h"
#include "transport/channel/ucx/address.h"

namespace freshet::channel {
namespace {

TEST(UcxAddress, IsNumericWithAPort) {
  for (const std::string good : {"ucx://127.0.0.1:7000", "ucx://127.3.2.1:1", "ucx://[::1]:65535"}) {
    const auto address = ucx::parse_address(good, false);
    ASSERT_TRUE(address) << good;
    EXPECT_TRUE(address->loopback) << good;
    EXPECT_EQ(ucx::to_string(address->storage), good);
  }
  for (const std::string good : {"ucx://10.0.0.1:7000", "ucx://0.0.0.0:1", "ucx://[::]:1", "ucx://[fe80::1]:1",
                                 "ucx://[::ffff:127.0.0.1]:1", "ucx://128.0.0.1:1"}) {
    const auto address = ucx::parse_address(good, false);
    ASSERT_TRUE(address) << good;
    EXPECT_FALSE(address->loopback) << good;
  }
  EXPECT_TRUE(ucx::parse_address("ucx://127.0.0.1:0", true));
  for (const std::string bad :
       {"", "ucx://", "ucx://:1", "ucx://127.0.0.1", "ucx://127.0.0.1:", "ucx://127.0.0.1:0", "ucx://127.0.0.1:65536",
        "ucx://127.0.0.1:-1", "ucx://127.0.0.1:7x", "ucx://127.0.0.1: 7", "ucx://::1:7", "ucx://[::1:7", "ucx://[]:7",
        "ucx://localhost:7", "ucx://127.1:7", "tcp://127.0.0.1:7", "UCX://127.0.0.1:7"}) {
    const auto address = ucx::parse_address(bad, false);
    ASSERT_FALSE(address) << bad;
    EXPECT_EQ(address.error().code(), Code::invalid_argument) << bad;
  }
}

class UcxChannel : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto version = ucx_version(); !version) GTEST_SKIP() << version.error().message();
  }
  static FetchRequest request_for(std::uint64_t number, std::uint64_t bytes) {
    return {.request = number,
            .session = MemorySource::kSession,
            .lease = MemorySource::kLease,
            .version = MemorySource::kVersion,
            .pieces = {{.tensor = 0, .offset = 0, .bytes = bytes}}};
  }
};

TEST_F(UcxChannel, OnlyATrustedFabricIsReachedBeyondLoopback) {
  MemorySource source({10});
  for (const std::string address : {"ucx://0.0.0.0:0", "ucx://[::]:0", "ucx://10.1.2.3:0"}) {
    EXPECT_TRUE(is_refused(open_ucx_server(source, {.address = address}), Code::failed_precondition, "trusted"));
  }
  EXPECT_TRUE(is_refused(open_ucx_client("ucx://10.1.2.3:7"), Code::failed_precondition));
  const auto open = open_ucx_server(source, {.address = "ucx://0.0.0.0:0", .trusted_fabric = true});
  EXPECT_TRUE(open) << open.error().message();
}

TEST_F(UcxChannel, OptionsAreChecked) {
  MemorySource source({10});
  for (const UcxServerOptions& options :
       {UcxServerOptions{.chunk_bytes = 1000}, UcxServerOptions{.chunk_bytes = std::uint64_t{1} << 40},
        UcxServerOptions{.sends_in_flight = 0}, UcxServerOptions{.sends_in_flight = 100'000}}) {
    EXPECT_TRUE(is_refused(open_ucx_server(source, options), Code::invalid_argument));
  }
  const auto first = open_ucx_server(source);
  ASSERT_TRUE(first);
  const auto second = open_ucx_server(source, {.address = (*first)->address()});
  EXPECT_FALSE(second) << "two servers have one port";
}

/// The local addresses of this process's listening TCP sockets, as /proc writes them.
std::vector<std::string> listening() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> found;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      if (state == "0A" && inodes.contains(inode)) found.push_back(local);
    }
  }
  return found;
}

TEST_F(UcxChannel, OnLoopbackNothingListensElsewhere) {
  if (std::getenv("UCX_NET_DEVICES") != nullptr) GTEST_SKIP() << "UCX_NET_DEVICES says where to listen";
  MemorySource source({100});
  const auto server = open_ucx_server(source);
  ASSERT_TRUE(server);
  const auto client = open_ucx_client((*server)->address());
  ASSERT_TRUE(client);
  CollectingSink sink;
  ASSERT_TRUE((*client)->fetch(request_for(1, 100), sink));
  ASSERT_TRUE(drive({client->get()}, [&] { return sink.ended(1) != nullptr; }));
  const std::vector<std::string> addresses = listening();
  EXPECT_FALSE(addresses.empty());
  for (const std::string& address : addresses) {
    const bool loopback4 = address.size() < 20 && address.substr(6, 2) == "7F";
    const bool loopback6 = address.starts_with("00000000000000000000000001000000");
    EXPECT_TRUE(loopback4 || loopback6) << address;
  }
}

TEST_F(UcxChannel, CrashSignalsStayTheProcesss) {
  if (std::getenv("UCX_HANDLE_ERRORS") != nullptr) GTEST_SKIP() << "UCX_HANDLE_ERRORS wants them";
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP, SIGABRT}) {
    struct sigaction action {};
    ASSERT_EQ(::sigaction(signal, nullptr, &action), 0);
    Dl_info where{};
    if (::dladdr(reinterpret_cast<void*>(action.sa_sigaction), &where) == 0) continue;
    EXPECT_EQ(std::string(where.dli_fname).find("libuc"), std::string::npos) << signal << " is UCX's";
  }
}

TEST_F(UcxChannel, LargeAnswersByRendezvous) {
  constexpr std::uint64_t kBytes = (9 << 20) + 77;
  MemorySource source({kBytes});
  const auto server = open_ucx_server(source, {.rendezvous = UcxRendezvous::always});
  ASSERT_TRUE(server);
  const auto client = open_ucx_client((*server)->address());
  ASSERT_TRUE(client);
  CollectingSink sink;
  ASSERT_TRUE((*client)->register_memory({}));
  for (std::uint64_t number : {1, 2}) ASSERT_TRUE((*client)->fetch(request_for(number, kBytes), sink));
  ASSERT_TRUE(drive({client->get()}, [&] { return sink.ended_count() == 2; }));
  for (std::uint64_t number : {1, 2}) {
    ASSERT_TRUE(*sink.ended(number)) << sink.ended(number)->error().message();
    EXPECT_TRUE(sink.find(number, 0)->content() == source.tensor(0));
  }
  EXPECT_EQ(sink.faults(), "");
  EXPECT_EQ(source.faults(), "");
}

// A delta that takes longer than silence may last: its client waits, everybody else is served.
TEST_F(UcxChannel, ASlowDeltaHoldsNobodyUp) {
  constexpr std::uint64_t kBytes = 3 << 20;
  MemorySource source({kBytes});
  const auto server = open_ucx_server(source);
  ASSERT_TRUE(server);
  const auto client = open_ucx_client((*server)->address());
  const auto other = open_ucx_client((*server)->address());
  ASSERT_TRUE(client);
  ASSERT_TRUE(other);
  source.hold_deltas(true);
  FetchRequest slow = request_for(1, kBytes);
  slow.pieces.push_back(slow.pieces[0]);
  slow.pieces.push_back(slow.pieces[0]);
  slow.pieces[1].base = SegmentName{.writer = {.sequence = 9}, .tensor = 0};
  slow.pieces[2].base = SegmentName{.writer = {.sequence = 10}, .tensor = 0};
  CollectingSink sink;
  CollectingSink other_sink;
  ASSERT_TRUE((*client)->fetch(slow, sink));
  const Time end = system_clock().now() + kPeerSilence + kPeerSilence / 2;
  std::uint64_t served = 0;
  while (system_clock().now() < end) {
    ASSERT_TRUE((*other)->fetch(request_for(++served, kBytes), other_sink));
    ASSERT_TRUE(drive({client->get(), other->get()}, [&] { return other_sink.ended(served) != nullptr; }));
    ASSERT_TRUE(*other_sink.ended(served)) << other_sink.ended(served)->error().message();
    ASSERT_EQ(sink.ended(1), nullptr);
  }
  source.hold_deltas(false);
  ASSERT_TRUE(drive({client->get()}, [&] { return sink.ended(1) != nullptr; }));
  ASSERT_TRUE(*sink.ended(1)) << sink.ended(1)->error().message();
  for (std::size_t piece = 0; piece < 3; ++piece) {
    EXPECT_TRUE(sink.find(1, piece)->content() == source.expected(slow.pieces[piece])) << piece;
  }
  EXPECT_EQ(source.faults(), "");
}

TEST_F(UcxChannel, AServerEndsWhileADeltaIsMade) {
  constexpr std::uint64_t kBytes = 3 << 20;
  MemorySource source({kBytes});
  auto server = open_ucx_server(source);
  ASSERT_TRUE(server);
  const auto client = open_ucx_client((*server)->address());
  ASSERT_TRUE(client);
  source.hold_deltas(true);
  FetchRequest slow = request_for(1, kBytes);
  slow.pieces[0].base = SegmentName{};
  CollectingSink sink;
  ASSERT_TRUE((*client)->fetch(slow, sink));
  ASSERT_TRUE(drive({client->get()}, [&] { return source.open_now() == 1; }));
  std::thread ending([&] { server->reset(); });
  EXPECT_FALSE(drive({client->get()}, [] { return false; })) << "the connection should be dead";
  source.hold_deltas(false);
  ending.join();
  EXPECT_EQ(source.open_now(), 0u);
}

TEST_F(UcxChannel, MemoryIsRegisteredFromAnyThread) {
  MemorySource source({1 << 20});
  const auto server = open_ucx_server(source);
  ASSERT_TRUE(server);
  std::thread([&] {
    EXPECT_TRUE((*server)->register_memory(source.tensor(0)));
    EXPECT_TRUE((*server)->register_memory(source.tensor(0))) << "told of twice";
    EXPECT_TRUE((*server)->register_memory({}));
  }).join();
  EXPECT_EQ((*server)->stat().bytes_registered, std::uint64_t{1} << 20);
  const std::vector<std::byte> other(100);
  (*server)->forget_memory(other);
  EXPECT_EQ((*server)->stat().bytes_registered, std::uint64_t{1} << 20);
  (*server)->forget_memory(source.tensor(0));
  EXPECT_EQ((*server)->stat().bytes_registered, 0u);
  // What is sent need not be registered.
  const auto client = open_ucx_client((*server)->address());
  ASSERT_TRUE(client);
  CollectingSink sink;
  ASSERT_TRUE((*client)->fetch(request_for(1, 1 << 20), sink));
  ASSERT_TRUE(drive({client->get()}, [&] { return sink.ended_count() == 1; }));
  EXPECT_TRUE(*sink.ended(1));
}

TEST_F(UcxChannel, NoMorePeersThanAllowed) {
  MemorySource source({1000});
  const auto server = open_ucx_server(source, {.peers_max = 1});
  ASSERT_TRUE(server);
  const auto first = open_ucx_client((*server)->address());
  ASSERT_TRUE(first);
  CollectingSink sink;
  ASSERT_TRUE((*first)->fetch(request_for(1, 1000), sink));
  ASSERT_TRUE(drive({first->get()}, [&] { return sink.ended(1) != nullptr; }));
  const auto second = open_ucx_client((*server)->address());
  ASSERT_TRUE(second);
  EXPECT_FALSE(drive({second->get()}, [] { return false; })) << "the connection should be refused";
  ASSERT_TRUE((*first)->fetch(request_for(2, 1000), sink));
  ASSERT_TRUE(drive({first->get()}, [&] { return sink.ended(2) != nullptr; }));
  EXPECT_TRUE(*sink.ended(2));
}

}  // namespace
}  // namespace freshet::channel
