// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/alone.h"

#include <unistd.h>

#include <map>

#include "benchmarks/checkpoint/disk.h"
#include "benchmarks/checkpoint/state.h"
#include "benchmarks/checkpoint/watch.h"
#include "bindings/runtime/repository_folder.h"
#include "core/base/format.h"
#include "repo/levels/checkpointer.h"

namespace freshet::benchmarks {
namespace {

Result<std::unique_ptr<Checkpointer>> open_with(const std::string& local, const std::string& external,
                                                const State& state, std::uint32_t keep = 2) {
  Checkpointer::Options options{.model = "model", .local = {local}};
  options.keep[CheckpointLevel::local] = keep;
  options.external = [external]() -> Result<std::shared_ptr<Repository>> {
    FRESHET_ASSIGN(OpenedRepository opened, open_repository(external, {.access = RepositoryAccess::create}));
    return std::shared_ptr<Repository>(std::move(opened));
  };
  return Checkpointer::open(std::move(options), state.laid());
}

/// Both levels on one disk.
Result<std::unique_ptr<Checkpointer>> open_alone(const std::string& folder, const State& state,
                                                 std::uint32_t keep = 2) {
  return open_with(folder + "/local", folder + "/runs", state, keep);
}

/// What a version costs at each level of which a quarter changed, in percent of the state.
Status measure_quarter(const std::string& name, const std::string& folder, std::uint64_t bytes, std::size_t tensors,
                       Report& report) {
  State state(bytes, tensors);
  FRESHET_ASSIGN(const auto checkpointer, open_alone(folder, state, 8));
  const auto writable = state.writable();
  FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer->restore(writable));
  std::map<std::string, Samples> stored;
  std::map<std::string, std::uint64_t> before;
  for (std::uint64_t step = 1; step <= 4; ++step) {
    state.write(step, step == 1 ? 1 : 0.25);
    const auto views = state.views();
    FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(step, views));
    FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::external, kPatience));
    for (const std::string place : {"local", "runs"}) {
      const std::uint64_t now = bytes_on_disk(format("{}/{}", folder, place));
      const double percent = 100.0 * static_cast<double>(now - before[place]) / static_cast<double>(state.bytes());
      if (step > 1) stored[place].add(percent);
      before[place] = now;
    }
  }
  FRESHET_TRY(checkpointer->finish(kPatience));
  report.add_row(name, "quarter_changed_stored", "percent", stored["local"]);
  report.add_row(name, "quarter_changed_external", "percent", stored["runs"]);
  return {};
}

class Alone {
 public:
  Alone(const CheckpointOptions& options, std::string name, std::string folder, Report& report)
      : options_(options), name_(std::move(name)), folder_(std::move(folder)), report_(report) {}

  Status run(std::uint64_t bytes, std::size_t tensors) {
    State state(bytes, tensors);
    FRESHET_TRY(measure_writing(state));
    FRESHET_TRY(measure_restore(state));
    FRESHET_ASSIGN(const auto quarter, MadeFolder::in(options_.folder));
    return measure_quarter(name_, quarter.path(), bytes, tensors, report_);
  }

  void set_ratios() {
    const auto ratio = [&](const char* ratio_name, const char* peer, const char* ours) {
      report_.set_ratio(ratio_name, report_.median(name_, peer) / report_.median(name_, ours));
    };
    ratio("blocked_vs_memcpy", "memcpy", "freshet_blocked");
    ratio("blocked_vs_file", "file_synced", "freshet_blocked");
    ratio("local_vs_disk", "file_synced", "freshet_local");
    ratio("external_vs_disk", "file_synced", "freshet_external");
    ratio("restore_vs_read", "read_cold", "freshet_restore");
  }

 private:
  Status measure_writing(State& state) {
    std::vector<std::byte> copy(state.bytes());
    std::map<std::string, Samples> ms;
    FRESHET_ASSIGN(const auto checkpointer, open_alone(folder_, state));
    FRESHET_ASSIGN(const auto memory, MadeFolder::in(options_.memory_folder()));
    FRESHET_ASSIGN(const auto from_memory, open_with(memory.path(), folder_ + "/runs_of_memory", state));
    const auto writable = state.writable();
    FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer->restore(writable));
    FRESHET_ASSIGN([[maybe_unused]] const auto also, from_memory->restore(writable));
    for (int i = 0; i <= options_.repetitions(); ++i) {
      const auto step = static_cast<std::uint64_t>(i + 1);
      state.write(step);
      const Watch memcpy_watch;
      state.copy_to(copy);
      const double memcpy_ms = memcpy_watch.ms();
      const auto views = state.views();
      // Before each of ours: a disk that is a part of another one may slow down after so many bytes. A new file each
      // time, as ours are: such a disk may write faster where it wrote before.
      const auto write_file = [&]() -> Result<double> {
        const std::string before = file();
        ++files_;
        FRESHET_ASSIGN(const double took_ms, timed_ms([&] { return write_and_sync(file(), views); }));
        ::unlink(before.c_str());
        return took_ms;
      };
      FRESHET_ASSIGN(const double file_ms, write_file());
      FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(step, views));
      const Watch since_captured;
      FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::local, kPatience));
      const double local_ms = since_captured.ms();
      FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::external, kPatience));
      const double both_ms = since_captured.ms();
      FRESHET_ASSIGN(const double file_again_ms, write_file());
      FRESHET_ASSIGN(const auto in_memory, from_memory->checkpoint(step, views));
      const Watch since_in_memory;
      FRESHET_TRY(from_memory->wait(in_memory.version, CheckpointLevel::external, kPatience));
      const double external_ms = since_in_memory.ms();
      if (i == 0) continue;  // It warms up.
      ms["memcpy"].add(memcpy_ms);
      ms["file_synced"].add(file_ms);
      ms["file_synced"].add(file_again_ms);
      ms["freshet_blocked"].add(ms_of(captured.blocked));
      ms["freshet_local"].add(local_ms);
      ms["freshet_local_and_external"].add(both_ms);
      ms["freshet_external"].add(external_ms);
    }
    FRESHET_TRY(checkpointer->finish(kPatience));
    FRESHET_TRY(from_memory->finish(kPatience));
    for (const char* subject : {"freshet_blocked", "memcpy", "file_synced", "freshet_local", "freshet_external",
                                "freshet_local_and_external"}) {
      report_.add_row(name_, subject, "ms", ms[subject]);
    }
    return {};
  }

  Status measure_restore(State& state) {
    Samples restore;
    Samples read;
    const auto writable = state.writable();
    for (int i = 0; i < options_.repetitions(); ++i) {
      FRESHET_TRY(forget(folder_));
      FRESHET_ASSIGN(const double read_ms, timed_ms([&] { return read_file(file(), writable); }));
      FRESHET_ASSIGN(const auto checkpointer, open_alone(folder_, state));
      FRESHET_TRY(forget(folder_ + "/local"));
      const Watch watch;
      FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable));
      const double restore_ms = watch.ms();
      if (!restored) return fail(Code::not_found, "nothing was restored");
      FRESHET_TRY(checkpointer->finish(kPatience));
      restore.add(restore_ms);
      read.add(read_ms);
    }
    report_.add_row(name_, "freshet_restore", "ms", restore);
    report_.add_row(name_, "read_cold", "ms", read);
    return {};
  }

  std::string file() const { return format("{}/file{}", folder_, files_); }

  const CheckpointOptions& options_;
  const std::string name_;
  const std::string folder_;
  int files_ = 0;
  Report& report_;
};

}  // namespace

Status measure_alone(const CheckpointOptions& options, Report& report) {
  struct Case {
    const char* name;
    std::uint64_t bytes;
    std::size_t tensors;
  };
  // The models of DeepFreeze's Figures 5 and 6, and one of many small tensors.
  const std::vector<Case> cases =
      options.quick ? std::vector<Case>{{"9_tensors_60MB", 60'000'000, 9}, {"1000_tensors_4MB", 4'096'000, 1000}}
                    : std::vector<Case>{{"9_tensors_600MB", 600'000'000, 9},
                                        {"27_tensors_100MB", 100'000'000, 27},
                                        {"10000_tensors_41MB", 40'960'000, 10'000}};
  for (const Case& one : cases) {
    FRESHET_ASSIGN(const auto folder, MadeFolder::in(options.folder));
    Alone alone(options, one.name, folder.path(), report);
    const Status measured = alone.run(one.bytes, one.tensors);
    if (!measured) return fail(Error(measured.error()).with_context(one.name));
    if (&one == &cases.front()) alone.set_ratios();
  }
  return {};
}

Status measure_blocked_in_memory(const CheckpointOptions& options, const std::string& name, std::uint64_t bytes,
                                 std::size_t tensors, Report& report) {
  FRESHET_ASSIGN(const auto folder, MadeFolder::in(options.memory_folder()));
  State state(bytes, tensors);
  Checkpointer::Options opened{.model = "model", .local = {folder.path()}};
  FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(opened), state.laid()));
  const auto writable = state.writable();
  FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer->restore(writable));
  Samples blocked;
  for (int i = 0; i <= options.repetitions(); ++i) {
    const auto step = static_cast<std::uint64_t>(i + 1);
    state.write(step);
    const auto views = state.views();
    FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(step, views));
    FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::local, kPatience));
    if (i > 0) blocked.add(ms_of(captured.blocked));
  }
  FRESHET_TRY(checkpointer->finish(kPatience));
  report.add_row(name, "freshet_blocked", "ms", blocked);
  return {};
}

}  // namespace freshet::benchmarks
