// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/arrivals.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "core/base/file_descriptor.h"
#include "tests/support/eventually.h"

namespace freshet {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A connection over loopback; its bytes are read as ZeroMQ reads them, and none is ever a whole message.
struct Pair {
  void open() {
    const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof at;
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &bytes), 0);
    there_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(there_.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
    here_ = FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(here_);
    // Always unread, so that the kernel tells of each arrival however soon the rest of it is read.
    ASSERT_EQ(::send(there_.get(), "", 1, MSG_NOSIGNAL), 1);
  }
  void bring(std::size_t bytes) {
    std::vector<char> chunk(64 << 10);
    for (std::size_t done = 0; done < bytes; done += chunk.size()) {
      ASSERT_EQ(::send(there_.get(), chunk.data(), chunk.size(), MSG_NOSIGNAL), static_cast<ssize_t>(chunk.size()));
      ASSERT_EQ(::recv(here_.get(), chunk.data(), chunk.size(), MSG_WAITALL), static_cast<ssize_t>(chunk.size()));
    }
  }
  FileDescriptor here_, there_;
};

class HalfMessages : public testing::Test, public Pair {
 protected:
  void SetUp() override { open(); }
};

/// Memory that is there.
class Grown {
 public:
  explicit Grown(std::size_t bytes)
      : bytes_(bytes), memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(memory_, MAP_FAILED);
    if (memory_ != MAP_FAILED) std::memset(memory_, 1, bytes_);
  }
  ~Grown() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, bytes_);
  }
  Grown(const Grown&) = delete;
  Grown& operator=(const Grown&) = delete;

 private:
  const std::size_t bytes_;
  void* const memory_;
};

TEST_F(HalfMessages, EndWhenTheirMemoryIsManyTimesWhatCame) {
  Arrivals arrivals({.connection_bytes = 64 * kMiB, .all_bytes = 64 * kMiB, .growth_bytes = 8 * kMiB});
  arrivals.add(here_.get());
  bring(kMiB);
  ASSERT_TRUE(came_true([&] { return arrivals.look().empty() && arrivals.waiting(here_.get()) == kMiB; }));
  bring(5 * kMiB);
  ASSERT_TRUE(came_true([&] { return arrivals.look().empty() && arrivals.waiting(here_.get()) == 6 * kMiB; }))
      << "so much may wait";
  // As ZeroMQ does, with a message of very many very small parts.
  const Grown grown(64 * kMiB);
  bring(kMiB);
  EXPECT_TRUE(came_true([&] {
    const auto excess = arrivals.look();
    return excess.size() == 1 && excess[0].connection == here_.get();
  }));
}

TEST_F(HalfMessages, AreNotABacklogThatIsReceivedHoweverMuchTheProcessGrows) {
  Arrivals arrivals({.connection_bytes = 64 * kMiB, .all_bytes = 64 * kMiB, .growth_bytes = 8 * kMiB});
  Pair honest;
  honest.open();
  arrivals.add(here_.get());
  arrivals.add(honest.here_.get());
  honest.bring(10 * kMiB);
  ASSERT_TRUE(came_true([&] {
    arrivals.took(honest.here_.get(), 1);
    return arrivals.look().empty() && arrivals.waiting(honest.here_.get()) > 9 * kMiB;
  }));
  const Grown grown(96 * kMiB);
  bring(5 * kMiB);
  EXPECT_TRUE(came_true([&] {
    arrivals.took(honest.here_.get(), 1);
    const auto excess = arrivals.look();
    for (const auto& one : excess) EXPECT_EQ(one.connection, here_.get()) << "it has less, and nothing is received";
    return !excess.empty();
  }));
  arrivals.remove(here_.get());
  here_ = FileDescriptor();
  arrivals.took(honest.here_.get(), 1);
  EXPECT_TRUE(arrivals.look().empty());
}

}  // namespace
}  // namespace freshet
