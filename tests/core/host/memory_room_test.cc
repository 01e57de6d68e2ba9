// SPDX-License-Identifier: Apache-2.0
#include "core/host/memory_room.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

// A machine of the test's own: files as the kernel shows them, under a folder that stands for the root.

namespace freshet {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class MemoryRoom : public testing::Test {
 protected:
  void SetUp() override {
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
  }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void write_group(const std::string& path, const std::string& max, std::uint64_t current, std::uint64_t cache = 0,
                   const std::string& high = "max") {
    const std::string group = "sys/fs/cgroup/" + path + "/";
    write(group + "memory.max", max + "\n");
    write(group + "memory.high", high + "\n");
    write(group + "memory.current", std::to_string(current) + "\n");
    write(group + "memory.stat", "anon 5\ninactive_file " + std::to_string(cache) + "\nactive_file 0\n");
  }
  std::uint64_t available() { return available_memory_bytes(folder_ / "").value_or(0) / kMiB; }

  TemporaryFolder folder_;
};

constexpr char kMount2[] = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_F(MemoryRoom, WithoutGroupsItIsTheMachines) { EXPECT_EQ(available(), 8192u); }

TEST_F(MemoryRoom, NobodySays) {
  std::filesystem::remove_all(folder_ / "proc");
  EXPECT_FALSE(available_memory_bytes(folder_ / "").has_value());
}

TEST_F(MemoryRoom, TheTightestGroupOnTheWayUpDecides) {
  write("proc/self/cgroup", "0::/pod/trainer/main\n");
  write("proc/self/mountinfo", kMount2);
  write_group("pod", std::to_string(2048 * kMiB), 512 * kMiB);
  write_group("pod/trainer", "max", 512 * kMiB);
  write_group("pod/trainer/main", std::to_string(4096 * kMiB), 512 * kMiB);
  EXPECT_EQ(available(), 1536u) << "the pod's";
  write_group("pod/trainer", "max", 512 * kMiB, 0, std::to_string(1024 * kMiB));
  EXPECT_EQ(available(), 512u) << "memory.high of the trainer";
  write_group("pod/trainer/main", std::to_string(600 * kMiB), 512 * kMiB, 100 * kMiB);
  EXPECT_EQ(available(), 188u) << "page cache is given back before anybody is killed";
  write_group("pod/trainer/main", std::to_string(600 * kMiB), 700 * kMiB);
  EXPECT_EQ(available(), 0u);
}

TEST_F(MemoryRoom, AContainerSeesItselfAsTheRoot) {
  write("proc/self/cgroup", "0::/\n");
  write("proc/self/mountinfo", kMount2);
  write_group(".", std::to_string(256 * kMiB), 56 * kMiB);
  EXPECT_EQ(available(), 200u);
}

TEST_F(MemoryRoom, Version1IsAskedToo) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/docker/12ab\n4:memory:/docker/12ab/inner\n0::/docker/12ab\n");
  write("proc/self/mountinfo",
        "31 24 0:27 /docker/12ab /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 24 0:28 /docker/12ab /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n");
  const auto write_one = [&](const std::string& group, const std::string& limit) {
    write("sys/fs/cgroup/memory/" + group + "memory.limit_in_bytes", limit);
    write("sys/fs/cgroup/memory/" + group + "memory.usage_in_bytes", std::to_string(100 * kMiB));
    write("sys/fs/cgroup/memory/" + group + "memory.stat", "total_inactive_file 0\n");
  };
  write_one("", std::to_string(1000 * kMiB));
  write_one("inner/", "9223372036854771712");
  EXPECT_EQ(available(), 900u);
  write_one("inner/", std::to_string(300 * kMiB));
  EXPECT_EQ(available(), 200u);
}

TEST_F(MemoryRoom, WhatIsNoNumberIsNoLimit) {
  write("proc/self/cgroup", "nonsense\n0::/a/../../etc\n");
  write("proc/self/mountinfo", std::string("short\n") + kMount2);
  write_group(".", "lots", 0);
  EXPECT_EQ(available(), 8192u);
}

}  // namespace
}  // namespace freshet
