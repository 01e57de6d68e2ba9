// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tiering/reader.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/common/child.h"
#include "benchmarks/tiering/training_set.h"

namespace freshet::benchmarks {
namespace {

struct ReaderSetup {
  std::string folder;
  std::vector<std::string> names;
  unsigned readers = 1;
  std::size_t piece_bytes = 0;
  bool each_reads_all = false;
  std::int64_t work_ns = 0;
  std::string freshet;
};

struct Got {
  std::uint64_t bytes = 0;
  std::uint64_t sum = 0;
  std::int64_t waited_ns = 0;
  std::uint64_t failed = 0;
};

void compute(std::int64_t for_ns) {
  const std::int64_t until = monotonic_ns() + for_ns;
  // A trainer's work is on an accelerator: its processor is free.
  const timespec at = {.tv_sec = until / 1'000'000'000, .tv_nsec = until % 1'000'000'000};
  if (for_ns > 0) (void)::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

/// One process' part of an epoch.
Got read_share(const ReaderSetup& trainer, const std::vector<std::size_t>& order, unsigned reader) {
  Got got;
  std::vector<char> room(trainer.piece_bytes);
  for (std::size_t i = trainer.each_reads_all ? 0 : reader; i < order.size();
       i += trainer.each_reads_all ? 1 : trainer.readers) {
    const std::string path = trainer.folder + "/" + trainer.names[order[i]];
    const std::int64_t begin = monotonic_ns();
    const int fd = ::open(path.c_str(), O_RDONLY);
    Sum sum;
    ssize_t piece = fd < 0 ? -1 : 0;
    struct stat info {};
    if (fd >= 0 && ::fstat(fd, &info) != 0) piece = -1;
    for (off_t at = 0; piece >= 0 && at < info.st_size; at += piece) {
      piece = ::pread(fd, room.data(), room.size(), at);
      if (piece <= 0) break;
      got.bytes += static_cast<std::uint64_t>(piece);
      sum.add(room.data(), static_cast<std::size_t>(piece));
    }
    if (piece < 0) ++got.failed;
    if (fd >= 0) ::close(fd);
    got.waited_ns += monotonic_ns() - begin;
    got.sum += sum.value;
    compute(trainer.work_ns);
  }
  return got;
}

/// False when the command did not take the order.
bool tell_order(const ReaderSetup& trainer, const std::vector<std::size_t>& order) {
  const std::string command = "'" + trainer.freshet + "' tier upcoming";
  FILE* const told = ::popen(command.c_str(), "we");
  if (told == nullptr) return false;
  for (const std::size_t number : order)
    std::fprintf(told, "%s/%s\n", trainer.folder.c_str(), trainer.names[number].c_str());
  return ::pclose(told) == 0;
}

Got run_epoch(const ReaderSetup& trainer, unsigned epoch) {
  std::vector<std::size_t> order(trainer.names.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(epoch));
  if (!trainer.freshet.empty() && !tell_order(trainer, order)) return {.failed = 1};
  if (trainer.readers == 1) return read_share(trainer, order, 0);
  int ends[2];
  if (::pipe(ends) != 0) return {.failed = 1};
  for (unsigned reader = 0; reader < trainer.readers; ++reader) {
    if (::fork() != 0) continue;
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Got got = read_share(trainer, order, reader);
    (void)!::write(ends[1], &got, sizeof got);
    ::_exit(0);
  }
  ::close(ends[1]);
  Got all;
  Got one;
  unsigned answers = 0;
  while (::read(ends[0], &one, sizeof one) == sizeof one) {
    ++answers;
    all.bytes += one.bytes;
    all.sum += one.sum;
    all.waited_ns += one.waited_ns;
    all.failed += one.failed;
  }
  ::close(ends[0]);
  while (::wait(nullptr) > 0) {
  }
  all.failed += trainer.readers - answers;
  return all;
}

}  // namespace

int run_reader(int count, char** words) {
  if (count != 8 && count != 9) return 2;
  ReaderSetup trainer{.folder = words[2],
                      .names = {},
                      .readers = static_cast<unsigned>(std::atoi(words[4])),
                      .piece_bytes = static_cast<std::size_t>(std::atol(words[5])),
                      .each_reads_all = std::string_view(words[6]) == "1",
                      .work_ns = std::atol(words[7]) * 1000,
                      .freshet = count == 9 ? words[8] : ""};
  std::ifstream list(words[3]);
  for (std::string name; std::getline(list, name);) trainer.names.push_back(name);
  std::cout << "ready " << ::getpid() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const std::int64_t begin = monotonic_ns();
    const Got got = run_epoch(trainer, static_cast<unsigned>(std::atoi(line.c_str() + 6)));
    const double seconds = static_cast<double>(monotonic_ns() - begin) / 1e9;
    if (got.failed > 0) {
      std::cout << "failed" << std::endl;
      return 1;
    }
    std::cout << "read " << got.bytes << " " << got.sum << " " << seconds << " "
              << static_cast<double>(got.waited_ns) / 1e9 << std::endl;
  }
  return 0;
}

}  // namespace freshet::benchmarks
