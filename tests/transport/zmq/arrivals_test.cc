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
class HalfMessages : public testing::Test {
 protected:
  void SetUp() override {
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

TEST_F(HalfMessages, EndWhenTheirMemoryIsManyTimesWhatCame) {
  Arrivals arrivals({.connection_bytes = 64 * kMiB, .all_bytes = 64 * kMiB, .growth_bytes = 8 * kMiB});
  arrivals.add(here_.get());
  bring(kMiB);
  ASSERT_TRUE(came_true([&] { return arrivals.look().empty() && arrivals.waiting(here_.get()) == kMiB; }));
  bring(5 * kMiB);
  ASSERT_TRUE(came_true([&] { return arrivals.look().empty() && arrivals.waiting(here_.get()) == 6 * kMiB; }))
      << "so much may wait";
  // As ZeroMQ does, with a message of very many very small parts.
  constexpr std::size_t kGrown = 64 * kMiB;
  void* const memory = ::mmap(nullptr, kGrown, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kGrown);
  bring(kMiB);
  EXPECT_TRUE(came_true([&] {
    const auto excess = arrivals.look();
    return excess.size() == 1 && excess[0].connection == here_.get();
  }));
  ::munmap(memory, kGrown);
}

}  // namespace
}  // namespace freshet
