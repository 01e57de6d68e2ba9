// SPDX-License-Identifier: Apache-2.0
// usage: crash_writer PLACE. Puts version after version into the RocksDB repository in that folder, or into the one in
// that bucket (s3://…) or pool (rados://…), going on where it stands, and prints each one's number when it is
// acknowledged, until it is killed.
//
// usage: crash_writer FOLDER SEED STEPS JOURNAL SYNC before|after. Goes on with a script (crash_script.h) of which
// STEPS were taken, prints the number of each step that is done, and kills itself before or after the sync number SYNC.
// Each sync is noted in the file JOURNAL.
#include "tests/fault/crash_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "repo/bucket/bucket_backend.h"
#include "repo/rados/rados_store.h"
#include "repo/s3/s3_store.h"
#include "tests/fault/crash_script.h"
#include "tests/fault/unsynced_files.h"

namespace {

int journal = -1;
bool die_after = false;
std::atomic<std::uint64_t> die_at{0};  // 0: not yet.
std::atomic<std::uint64_t> syncs{0};

void die() {
  ::kill(::getpid(), SIGKILL);
  while (true) ::pause();
}

int noted_sync(long call, int fd) {
  if (journal < 0) return static_cast<int>(::syscall(call, fd));
  const std::uint64_t at = die_at;
  const bool last = at != 0 && ++syncs == at;
  if (last && !die_after) die();
  struct stat status = {};
  const bool is_file = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const int result = static_cast<int>(::syscall(call, fd));
  if (result == 0 && is_file) {
    const freshet::SyncedFile file{.inode = static_cast<std::uint64_t>(status.st_ino),
                                   .bytes = static_cast<std::uint64_t>(status.st_size)};
    if (::write(journal, &file, sizeof(file)) != sizeof(file)) std::abort();
  }
  if (last) die();
  return result;
}

freshet::Result<std::unique_ptr<freshet::Backend>> open_backend(const char* place) {
  if (freshet::is_rados_address(place)) {
    FRESHET_ASSIGN(const freshet::RadosAddress address, freshet::parse_rados_address(place));
    FRESHET_ASSIGN(std::shared_ptr<freshet::ObjectStore> store, freshet::open_rados_store(address));
    return freshet::open_bucket_backend(std::move(store), {});
  }
  if (!freshet::is_s3_address(place)) return freshet::open_rocks_backend({.folder = place});
  FRESHET_ASSIGN(const freshet::S3Address address, freshet::parse_s3_address(place));
  FRESHET_ASSIGN(std::shared_ptr<freshet::ObjectStore> store, freshet::open_s3_store(address));
  return freshet::open_bucket_backend(std::move(store), {});
}

std::unique_ptr<freshet::Repository> open(const char* place) {
  auto backend = open_backend(place);
  if (!backend) {
    std::fprintf(stderr, "%s\n", backend.error().message().c_str());
    std::exit(1);
  }
  auto repository = freshet::Repository::open(std::move(*backend), {});
  if (!repository) {
    std::fprintf(stderr, "%s\n", repository.error().message().c_str());
    std::exit(1);
  }
  return std::move(*repository);
}

int put_without_end(const char* folder) {
  using namespace freshet;
  const auto repository = open(folder);
  const VersionNumber stored = repository->latest("crash").value_or(0);
  dprintf(STDOUT_FILENO, "ready\n");
  for (std::uint64_t sequence = stored + 1;; ++sequence) {
    const TestVersion version = crash_version(sequence);
    const auto name = put(*repository, version);
    if (!name) {
      std::fprintf(stderr, "%s\n", name.error().message().c_str());
      return 1;
    }
    dprintf(STDOUT_FILENO, "%llu\n", static_cast<unsigned long long>(name->number));
  }
}

int follow_script(char** words) {
  using namespace freshet;
  CrashScript script(std::strtoull(words[2], nullptr, 10));
  const std::uint64_t taken = std::strtoull(words[3], nullptr, 10);
  while (script.step() < taken) static_cast<void>(script.take(nullptr));
  journal = ::open(words[4], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (journal < 0) return 1;
  const auto repository = open(words[1]);
  die_after = std::string_view(words[6]) == "after";
  dprintf(STDOUT_FILENO, "ready\n");
  die_at = std::strtoull(words[5], nullptr, 10);
  while (true) {
    if (Status done = script.take(repository.get()); !done) {
      std::fprintf(stderr, "step %llu: %s\n", static_cast<unsigned long long>(script.step()),
                   done.error().message().c_str());
      return 1;
    }
    dprintf(STDOUT_FILENO, "%llu\n", static_cast<unsigned long long>(script.step()));
  }
}

}  // namespace

// What libraries call in this program.
extern "C" int fsync(int fd) { return noted_sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return noted_sync(SYS_fdatasync, fd); }

int main(int count, char** words) {
  if (count == 2) return put_without_end(words[1]);
  if (count == 7) return follow_script(words);
  return 2;
}
