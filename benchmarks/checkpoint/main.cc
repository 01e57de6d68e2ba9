// SPDX-License-Identifier: Apache-2.0
/// checkpoint: for how long a rank stands still for a checkpoint, until a version is at each level, and until it is
/// back, against one memcpy of the rank's share and against a plain file.
///
/// usage: checkpoint [--quick] [--json] [--folder DIR]

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>

#include "benchmarks/checkpoint/groups.h"
#include "benchmarks/checkpoint/state.h"
#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "bindings/runtime/repository_folder.h"
#include "core/base/format.h"
#include "repo/levels/checkpointer.h"

namespace freshet::benchmarks {
namespace {

constexpr auto kLong = std::chrono::minutes(10);

struct Options {
  bool quick = false;
  bool json = false;
  std::string folder = std::filesystem::temp_directory_path();
};

double ms_of(const std::function<Status()>& work, Status& status) {
  const auto started = std::chrono::steady_clock::now();
  status = work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
}
double ms_of(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

Status write_and_sync(const std::string& path, const std::vector<Bytes>& parts) {
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return fail_errno(errno, path);
  Status status;
  for (Bytes rest : parts) {
    while (!rest.empty() && status) {
      const ssize_t written = ::write(file, rest.data(), std::min<std::size_t>(rest.size(), std::size_t{8} << 20));
      if (written < 0) status = fail_errno(errno, path);
      if (written > 0) rest = rest.subspan(static_cast<std::size_t>(written));
    }
  }
  if (status && ::fsync(file) != 0) status = fail_errno(errno, path);
  ::close(file);
  return status;
}

/// From the disk: the page cache forgets it first.
Status forget(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    ::fsync(file);
    [[maybe_unused]] const int done = ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
  return {};
}

Status read_file(const std::string& path, const std::vector<MutableBytes>& parts) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail_errno(errno, path);
  Status status;
  for (MutableBytes rest : parts) {
    while (!rest.empty() && status) {
      const ssize_t got = ::read(file, rest.data(), std::min<std::size_t>(rest.size(), std::size_t{1} << 20));
      if (got <= 0) status = fail_errno(got == 0 ? EIO : errno, path);
      if (got > 0) rest = rest.subspan(static_cast<std::size_t>(got));
    }
  }
  ::close(file);
  return status;
}

std::uint64_t bytes_on_disk(const std::string& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

class Benchmark {
 public:
  explicit Benchmark(Options options) : options_(std::move(options)) {}

  Status run() {
    struct Case {
      const char* name;
      std::uint64_t bytes;
      std::size_t tensors;
    };
    // The models of DeepFreeze's Figures 5 and 6, and one of many small tensors.
    const std::vector<Case> cases =
        options_.quick ? std::vector<Case>{{"9_tensors_60MB", 60'000'000, 9}, {"1000_tensors_4MB", 4'096'000, 1000}}
                       : std::vector<Case>{{"9_tensors_600MB", 600'000'000, 9},
                                           {"27_tensors_100MB", 100'000'000, 27},
                                           {"10000_tensors_41MB", 40'960'000, 10'000}};
    for (const Case& one : cases) {
      std::string folder = options_.folder + "/freshet-checkpoint-XXXXXX";
      if (::mkdtemp(folder.data()) == nullptr) return fail_errno(errno, folder);
      Status status = measure(one.name, folder, one.bytes, one.tensors);
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
      if (!status) return fail(std::move(status).error().with_context(one.name));
    }
    // In memory, where there is such a folder: the disk would hide what a group costs.
    std::string groups =
        (std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : options_.folder) + "/freshet-groups-XXXXXX";
    if (::mkdtemp(groups.data()) == nullptr) return fail_errno(errno, groups);
    const Status measured = measure_groups(groups, options_.quick, report_);
    std::error_code ignored;
    std::filesystem::remove_all(groups, ignored);
    FRESHET_TRY(measured);
    report_.skip("veloc", "this benchmark does not run VELOC yet");
    std::cout << (options_.json ? "" : report_.table() + "\n") << report_.json() << std::endl;
    return {};
  }

 private:
  Result<std::unique_ptr<Checkpointer>> open(const std::string& folder, const State& state) {
    Checkpointer::Options options{.model = "model", .local = {folder + "/local"}};
    options.external = [place = folder + "/runs"]() -> Result<std::shared_ptr<Repository>> {
      FRESHET_ASSIGN(OpenedRepository opened, open_repository(place, {.access = RepositoryAccess::create}));
      return std::shared_ptr<Repository>(std::move(opened));
    };
    return Checkpointer::open(std::move(options), state.laid());
  }

  Status measure(const std::string& name, const std::string& folder, std::uint64_t bytes, std::size_t tensors) {
    State state(bytes, tensors);
    std::vector<std::byte> copy(state.bytes());
    const std::string file = folder + "/file";
    Samples blocked;
    Samples memcpy_ms;
    Samples file_ms;
    Samples local;
    Samples external;
    const int repetitions = options_.quick ? 3 : 5;
    {
      FRESHET_ASSIGN(const auto checkpointer, open(folder, state));
      const auto writable = state.writable();
      FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer->restore(writable));
      for (int i = 0; i <= repetitions; ++i) {  // The first one warms up.
        const auto step = static_cast<std::uint64_t>(i + 1);
        state.write(step);
        Status status;
        const double memcpy_time = ms_of(
            [&]() -> Status {
              std::size_t at = 0;
              for (const Bytes& view : state.views()) {
                std::memcpy(copy.data() + at, view.data(), view.size());
                at += view.size();
              }
              return {};
            },
            status);
        const double file_time = ms_of([&] { return write_and_sync(file, state.views()); }, status);
        FRESHET_TRY(status);
        const auto views = state.views();
        FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(step, views));
        const auto ended = std::chrono::steady_clock::now();
        const auto since = [&] {
          return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - ended).count();
        };
        FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::local, kLong));
        const double local_time = since();
        FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::external, kLong));
        const double external_time = since() - local_time;
        if (i == 0) continue;
        memcpy_ms.add(memcpy_time);
        file_ms.add(file_time);
        blocked.add(ms_of(captured.blocked));
        local.add(local_time);
        external.add(external_time);
      }
      FRESHET_TRY(checkpointer->finish(kLong));
    }
    report_.add_row(name, "freshet_blocked", "ms", blocked);
    report_.add_row(name, "memcpy", "ms", memcpy_ms);
    report_.add_row(name, "file_synced", "ms", file_ms);
    report_.add_row(name, "freshet_local", "ms", local);
    report_.add_row(name, "freshet_external", "ms", external);
    FRESHET_TRY(measure_restore(name, folder, file, state, repetitions));
    FRESHET_TRY(measure_quarter(name, folder, bytes, tensors));
    if (ratios_are_set_) return {};
    ratios_are_set_ = true;  // By the first case.
    report_.set_ratio("blocked_vs_memcpy", memcpy_ms.median() / blocked.median());
    report_.set_ratio("blocked_vs_file", file_ms.median() / blocked.median());
    report_.set_ratio("local_vs_disk", file_ms.median() / local.median());
    report_.set_ratio("external_vs_disk", file_ms.median() / external.median());
    report_.set_ratio("restore_vs_read", report_.median(name, "read_cold") / report_.median(name, "freshet_restore"));
    return {};
  }

  Status measure_restore(const std::string& name, const std::string& folder, const std::string& file, State& state,
                         int repetitions) {
    Samples restore;
    Samples read;
    const auto writable = state.writable();
    for (int i = 0; i < repetitions; ++i) {
      FRESHET_TRY(forget(folder));
      Status status;
      const double read_time = ms_of([&] { return read_file(file, writable); }, status);
      FRESHET_TRY(status);
      FRESHET_ASSIGN(const auto checkpointer, open(folder, state));
      FRESHET_TRY(forget(folder + "/local"));
      const double restore_time = ms_of(
          [&]() -> Status {
            FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable));
            return restored ? Status() : fail(Code::not_found, "nothing was restored");
          },
          status);
      FRESHET_TRY(status);
      FRESHET_TRY(checkpointer->finish(kLong));
      restore.add(restore_time);
      read.add(read_time);
    }
    report_.add_row(name, "freshet_restore", "ms", restore);
    report_.add_row(name, "read_cold", "ms", read);
    return {};
  }

  /// What a version costs of which a quarter changed, in percent of the state.
  Status measure_quarter(const std::string& name, const std::string& folder, std::uint64_t bytes, std::size_t tensors) {
    State state(bytes, tensors);
    Checkpointer::Options options{.model = "quarter", .local = {folder + "/quarter"}};
    options.keep[CheckpointLevel::local] = 8;
    FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), state.laid()));
    const auto writable = state.writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer->restore(writable));
    Samples stored;
    std::uint64_t before = 0;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      state.write(step, step == 1 ? 1 : 0.25);
      const auto views = state.views();
      FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(step, views));
      FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::local, kLong));
      const std::uint64_t now = bytes_on_disk(folder + "/quarter");
      if (step > 1) stored.add(100.0 * static_cast<double>(now - before) / static_cast<double>(state.bytes()));
      before = now;
    }
    FRESHET_TRY(checkpointer->finish(kLong));
    report_.add_row(name, "quarter_changed_stored", "percent", stored);
    return {};
  }

  const Options options_;
  bool ratios_are_set_ = false;
  Report report_{"checkpoint"};
};

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  return run_benchmark(
      count, words,
      {.name = "checkpoint",
       .about = "For how long a rank stands still for a checkpoint, until each level has it, and until it is back",
       .quick = &options.quick,
       .json = &options.json,
       .add_options =
           [&](CLI::App& app) { app.add_option("--folder", options.folder, "Where shards and files are made"); }},
      [&] { return Benchmark(options).run(); });
}
