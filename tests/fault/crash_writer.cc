// usage: crash_writer FOLDER. Puts version after version into the RocksDB repository there, going on where it stands,
// and prints each one's number when it is acknowledged, until it is killed.
#include "tests/fault/crash_writer.h"

#include <unistd.h>

#include <cstdio>

int main(int count, char** words) {
  using namespace freshet;
  if (count != 2) return 2;
  auto backend = open_rocks_backend({.folder = words[1]});
  if (!backend) {
    std::fprintf(stderr, "%s\n", backend.error().message().c_str());
    return 1;
  }
  auto repository = Repository::open(std::move(*backend), {});
  if (!repository) {
    std::fprintf(stderr, "%s\n", repository.error().message().c_str());
    return 1;
  }
  const VersionNumber stored = (*repository)->latest("crash").value_or(0);
  dprintf(STDOUT_FILENO, "ready\n");
  for (std::uint64_t sequence = stored + 1;; ++sequence) {
    const TestVersion version = crash_version(sequence);
    const auto name = put(**repository, version);
    if (!name) {
      std::fprintf(stderr, "%s\n", name.error().message().c_str());
      return 1;
    }
    dprintf(STDOUT_FILENO, "%llu\n", static_cast<unsigned long long>(name->number));
  }
}
