// SPDX-License-Identifier: Apache-2.0
#include "tests/support/net/lab/network.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>
#include <thread>

#include "tests/support/net/tcp_pair.h"

namespace freshet::lab {
namespace {

using std::chrono::milliseconds;

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_lab().empty()) GTEST_SKIP() << why_no_lab();
    auto made = Network::create({"a", "b"});
    ASSERT_TRUE(made) << made.error().message();
    network = std::move(*made);
  }
  Host& a() { return network->host("a"); }
  Host& b() { return network->host("b"); }

  std::unique_ptr<Network> network;
};

/// One byte there and back, over and over; the shortest time.
Duration shortest_round_trip(const TcpPair& pair, int rounds) {
  Duration shortest = Duration::max();
  for (int i = 0; i < rounds; ++i) {
    const Time start = system_clock().now();
    char byte = 'x';
    EXPECT_EQ(::write(pair.client.get(), &byte, 1), 1);
    EXPECT_EQ(::read(pair.server.get(), &byte, 1), 1);
    EXPECT_EQ(::write(pair.server.get(), &byte, 1), 1);
    EXPECT_EQ(::read(pair.client.get(), &byte, 1), 1);
    shortest = std::min(shortest, system_clock().now() - start);
  }
  return shortest;
}

/// Sends so many bytes and has all of them read; how long that took.
Duration transfer(const TcpPair& pair, std::size_t bytes) {
  const Time start = system_clock().now();
  std::thread sender([&] {
    const std::vector<char> block(std::size_t{1} << 16, 'x');
    for (std::size_t sent = 0; sent < bytes;) {
      const ssize_t n = ::write(pair.client.get(), block.data(), std::min(block.size(), bytes - sent));
      if (n <= 0) return;
      sent += static_cast<std::size_t>(n);
    }
  });
  std::array<char, 65536> buffer;
  std::size_t received = 0;
  for (ssize_t n; received < bytes && (n = ::read(pair.server.get(), buffer.data(), buffer.size())) > 0;) {
    received += static_cast<std::size_t>(n);
  }
  const Duration took = system_clock().now() - start;
  sender.join();
  EXPECT_EQ(received, bytes);
  return took;
}

TEST_F(NetworkTest, HostsAreStrangersThatReachEachOther) {
  EXPECT_NE(std::filesystem::read_symlink(a().space().path()), std::filesystem::read_symlink(b().space().path()));
  const auto pair = connect_tcp(a().space(), b().space(), b().address());
  ASSERT_TRUE(pair) << pair.error().message();
  EXPECT_GT(shortest_round_trip(*pair, 3), Duration::zero());
  EXPECT_FALSE(a().counters("switch0")) << "the bridge is in a namespace of its own";
}

TEST_F(NetworkTest, CountersSeeEveryByte) {
  const auto pair = connect_tcp(a().space(), b().space(), b().address());
  ASSERT_TRUE(pair) << pair.error().message();
  EXPECT_FALSE(b().bytes_from(a())) << "nobody asked to count";
  ASSERT_TRUE(b().count_from(a()));
  const auto before = b().counters();
  ASSERT_TRUE(before) << before.error().message();
  constexpr std::size_t kBytes = 4'000'000;
  transfer(*pair, kBytes);
  const auto after = b().counters();
  ASSERT_TRUE(after);
  EXPECT_GE(after->received_bytes - before->received_bytes, kBytes);
  EXPECT_LT(after->received_bytes - before->received_bytes, kBytes * 11 / 10);
  EXPECT_LT(after->sent_bytes - before->sent_bytes, kBytes / 10);
  const auto counted = b().bytes_from(a());
  ASSERT_TRUE(counted) << counted.error().message();
  EXPECT_GE(*counted, kBytes);
  EXPECT_LE(*counted, after->received_bytes - before->received_bytes);
}

TEST_F(NetworkTest, ARateIsKept) {
  ASSERT_TRUE(a().set_rate(40'000'000));  // 5 MB/s
  const auto pair = connect_tcp(a().space(), b().space(), b().address());
  ASSERT_TRUE(pair) << pair.error().message();
  // Without the bucket's first 256 kB, 1.24 MB take 248 ms at least, on a slow machine longer.
  EXPECT_GE(transfer(*pair, 1'500'000), milliseconds(240));
}

TEST_F(NetworkTest, LostPacketsAreCountedAndTcpGetsThrough) {
  ASSERT_TRUE(a().set_big_packets(false));
  ASSERT_TRUE(b().set_loss(0.02));
  const auto pair = connect_tcp(a().space(), b().space(), b().address());
  ASSERT_TRUE(pair) << pair.error().message();
  const auto before = b().counters();
  transfer(*pair, 3'000'000);  // About 2000 frames.
  const auto after = b().counters();
  ASSERT_TRUE(before && after);
  const auto lost = b().lost_packets();
  ASSERT_TRUE(lost) << lost.error().message();
  const double share = static_cast<double>(*lost) / static_cast<double>(after->received_packets);
  EXPECT_GT(share, 0.005) << *lost << " of " << after->received_packets;
  EXPECT_LT(share, 0.06) << *lost << " of " << after->received_packets;
  ASSERT_TRUE(b().set_loss(0));
  EXPECT_EQ(*b().lost_packets(), 0u);
}

TEST_F(NetworkTest, ACableThatIsCutIsHalfOpenAndMends) {
  const auto pair = connect_tcp(a().space(), b().space(), b().address());
  ASSERT_TRUE(pair) << pair.error().message();
  ASSERT_TRUE(b().set_loss(1));
  char byte = 'x';
  ASSERT_EQ(::write(pair->client.get(), &byte, 1), 1) << "nobody told the sender";
  ASSERT_TRUE(b().set_loss(0));
  EXPECT_EQ(::read(pair->server.get(), &byte, 1), 1) << "sent again by TCP";
}

TEST_F(NetworkTest, ALongLineHasItsDelay) {
  const LineShape shape{.delay = milliseconds(15)};
  const auto line = network->add_line("a", "b", {.there = shape, .back = shape});
  ASSERT_TRUE(line) << line.error().message();
  const auto slow = connect_tcp(a().space(), b().space(), "10.78.0.2");
  ASSERT_TRUE(slow) << slow.error().message();
  const Duration slowly = shortest_round_trip(*slow, 5);
  EXPECT_GE(slowly, milliseconds(30));
  const auto quick = connect_tcp(a().space(), b().space(), b().address());
  ASSERT_TRUE(quick) << quick.error().message();
  EXPECT_LT(shortest_round_trip(*quick, 20), slowly) << "by the switch";
  EXPECT_GT((*line)->there().packets, 5u);
  EXPECT_EQ((*line)->there().lost, 0u);
}

TEST_F(NetworkTest, ALongLineHasItsRate) {
  const LineShape shape{.delay = milliseconds(2), .bits_per_second = 80'000'000};  // 10 MB/s
  const auto line = network->add_line("a", "b", {.there = shape, .back = shape});
  ASSERT_TRUE(line) << line.error().message();
  const auto pair = connect_tcp(a().space(), b().space(), "10.78.0.2");
  ASSERT_TRUE(pair) << pair.error().message();
  EXPECT_GE(transfer(*pair, 2'000'000), milliseconds(200));
  EXPECT_GE((*line)->there().bytes, 2'000'000u);
}

TEST_F(NetworkTest, TcpGetsThroughLossAndReordering) {
  const LineShape shape{.delay = milliseconds(1), .reordered = 0.05, .reorder_delay = milliseconds(3), .lost = 0.01};
  const auto line = network->add_line("a", "b", {.there = shape, .back = shape});
  ASSERT_TRUE(line) << line.error().message();
  const auto pair = connect_tcp(a().space(), b().space(), "10.78.0.2");
  ASSERT_TRUE(pair) << pair.error().message();
  transfer(*pair, 1'000'000);
  EXPECT_GT((*line)->there().packets, 600u) << "single frames, so that each is lost on its own";
  EXPECT_GT((*line)->there().lost, 0u);
  EXPECT_GT((*line)->there().reordered, 0u);
}

TEST_F(NetworkTest, NothingIsLeftWhenItsMakerIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto made = Network::create({"c"});
    const std::string link =
        made ? std::filesystem::read_symlink((*made)->host("c").space().path()).string() : std::string("failed");
    if (::write(ends[1], link.data(), link.size()) > 0) ::raise(SIGKILL);
    ::_exit(1);
  }
  std::array<char, 64> link{};
  ASSERT_GT(::read(ends[0], link.data(), link.size() - 1), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(std::string(link.data()).rfind("net:[", 0), 0u) << link.data();
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    std::error_code gone;
    const auto space = std::filesystem::read_symlink(process.path() / "ns/net", gone);
    EXPECT_NE(space.string(), link.data()) << process.path();
  }
}

}  // namespace
}  // namespace freshet::lab
