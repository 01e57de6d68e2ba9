// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/shards/share.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <vector>

namespace freshet::levels {
namespace {

/// Whether it is mapped here. It may have 4 MiB.
bool is_mapped(const ShareMemory& memory) {
  unsigned char resident[1024];
  return ::mincore(memory.data(), memory.bytes(), resident) == 0 || errno != ENOMEM;
}

TEST(ShareMemory, ItIsWholePagesThatAreZero) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4097}, std::uint64_t{2} << 20,
                                    (std::uint64_t{2} << 20) + 1}) {
    const auto memory = ShareMemory::allocate(bytes);
    ASSERT_TRUE(memory) << memory.error().message();
    EXPECT_GE(memory->bytes(), bytes);
    EXPECT_EQ(memory->bytes() % 4096, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 4096, 0u);
    EXPECT_EQ(std::vector<std::byte>(memory->data(), memory->data() + memory->bytes()),
              std::vector<std::byte>(memory->bytes()));
  }
}

TEST(ShareMemory, AChildDoesNotHaveIt) {
  const auto memory = ShareMemory::allocate(std::uint64_t{3} << 20);
  ASSERT_TRUE(memory) << memory.error().message();
  ASSERT_TRUE(is_mapped(*memory));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(is_mapped(*memory) ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the child has the pages";
}

}  // namespace
}  // namespace freshet::levels
