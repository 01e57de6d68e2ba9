// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/groups.h"

#include <algorithm>
#include <filesystem>

#include "benchmarks/checkpoint/disk.h"
#include "benchmarks/checkpoint/job.h"
#include "benchmarks/checkpoint/peers.h"
#include "benchmarks/checkpoint/watch.h"
#include "core/base/format.h"
#include "repo/levels/checkpointer.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint32_t kHosts = 4;

struct Way {
  const char* name;
  levels::GroupScheme scheme;
};

class Groups {
 public:
  Groups(const CheckpointOptions& options, Report& report)
      : options_(options),
        bytes_(options.quick ? 32'000'000 : 256'000'000),
        name_(options.quick ? "4_ranks_32MB" : "4_ranks_256MB"),
        report_(report) {}

  const std::string& name() const { return name_; }
  std::uint64_t bytes() const { return bytes_; }

  Status measure(const Way& way) {
    FRESHET_ASSIGN(const auto folder, MadeFolder::in(options_.memory_folder()));
    Job job({.ranks = kHosts, .folder = folder.path(), .bytes = bytes_, .group = way.scheme});
    FRESHET_TRY(measure_encoding(job, way));
    FRESHET_TRY(measure_rebuild(job, way));
    return measure_quarter(way);
  }

 private:
  std::string row(const Way& way, const char* what) const { return format("{}_{}", way.name, what); }

  Status measure_encoding(Job& job, const Way& way) {
    Samples local;
    Samples group;
    const Job::Life life = [&](std::uint32_t rank, Checkpointer& checkpointer, State& state) -> Status {
      const auto writable = state.writable();
      FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer.restore(writable));
      for (int i = 0; i <= options_.repetitions(); ++i) {  // The first one warms up.
        state.write(static_cast<std::uint64_t>(i + 1));
        const auto views = state.views();
        FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(static_cast<std::uint64_t>(i + 1), views));
        const Watch watch;
        FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::local, kPatience));
        const double local_ms = watch.ms();
        FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::group, kPatience));
        if (i == 0 || rank != 0) continue;
        local.add(local_ms);
        group.add(watch.ms() - local_ms);
      }
      return {};
    };
    FRESHET_TRY(job.run(life));
    const double stored = static_cast<double>(bytes_on_disk(job.options().folder));
    report_.add_row(name_, row(way, "local"), "ms", local);
    report_.add_row(name_, row(way, "group"), "ms", group);
    report_.add_row(name_, row(way, "stored"), "percent", 100.0 * stored / static_cast<double>(job.bytes()));
    return {};
  }

  Status measure_rebuild(Job& job, const Way& way) {
    Samples whole;
    Samples rebuilt;
    for (int i = 0; i < options_.repetitions(); ++i) {
      FRESHET_ASSIGN(const double whole_ms, job.restore_ms());
      for (std::uint32_t lost = 0; lost < way.scheme.losses; ++lost) std::filesystem::remove_all(job.local(3 - lost));
      FRESHET_ASSIGN(const double lost_ms, job.restore_ms());
      whole.add(whole_ms);
      rebuilt.add(lost_ms - whole_ms);
      const Job::Life life = [&](std::uint32_t, Checkpointer& checkpointer, State& state) -> Status {
        const auto writable = state.writable();
        FRESHET_ASSIGN(const auto restored, checkpointer.restore(writable));
        state.write(restored->step + 1);
        const auto views = state.views();
        FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(restored->step + 1, views));
        return checkpointer.wait(captured.version, CheckpointLevel::group, kPatience);
      };
      FRESHET_TRY(job.run(life));
    }
    report_.add_row(name_, row(way, "restore"), "ms", whole);
    report_.add_row(name_, row(way, "restore_more_when_lost"), "ms", rebuilt);
    return {};
  }

  /// In percent of what a version keeps there of which everything changed.
  Status measure_quarter(const Way& way) {
    FRESHET_ASSIGN(const auto folder, MadeFolder::in(options_.memory_folder()));
    Job job({.ranks = kHosts, .folder = folder.path(), .bytes = bytes_, .group = way.scheme, .keep = 8});
    Samples percent;
    std::uint64_t before = 0;
    double full = 0;
    const Job::Life life = [&](std::uint32_t rank, Checkpointer& checkpointer, State& state) -> Status {
      const auto writable = state.writable();
      FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer.restore(writable));
      for (std::uint64_t step = 1; step <= 4; ++step) {
        state.write(step, step == 1 ? 1 : 0.25);
        const auto views = state.views();
        FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(step, views));
        FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::group, kPatience));
        if (rank != 0) continue;  // No group works for the next step before rank 0 has captured it.
        const std::uint64_t now = bytes_on_disk(folder.path(), {".copy", ".copybytes", ".parity", ".paritybytes"});
        if (step == 1) full = static_cast<double>(now);
        if (step > 1) percent.add(100.0 * static_cast<double>(now - before) / full);
        before = now;
      }
      return {};
    };
    FRESHET_TRY(job.run(life));
    report_.add_row(name_, row(way, "quarter_changed_stored"), "percent", percent);
    constexpr double kChangedPercent = 25;
    report_.set_ratio(row(way, "changed_vs_cost"), kChangedPercent / percent.median());
    return {};
  }

  const CheckpointOptions& options_;
  const std::uint64_t bytes_;
  const std::string name_;
  Report& report_;
};

}  // namespace

Status measure_groups(const CheckpointOptions& options, Report& report) {
  using Kind = levels::GroupScheme::Kind;
  const std::vector<Way> ways = {{"partner", {.kind = Kind::partner}},
                                 {"xor", {.kind = Kind::parity}},
                                 {"rs2", {.kind = Kind::parity, .losses = 2}}};
  Groups groups(options, report);
  for (const Way& way : ways) FRESHET_TRY(groups.measure(way));
  const auto ms = [&](const char* subject) { return report.median(groups.name(), subject); };
  report.set_ratio("xor_vs_partner", ms("partner_group") / ms("xor_group"));
  report.set_ratio("rs2_vs_partner", ms("partner_group") / ms("rs2_group"));
  report.set_ratio("rs2_rebuild_vs_encode", ms("rs2_group") / ms("rs2_restore_more_when_lost"));
  const Status peer = run_redset(options, groups.name(), groups.bytes() / kHosts, kHosts, report);
  if (!peer) report.skip("rs2_vs_redset", peer.error().message());
  if (peer) report.set_ratio("rs2_vs_redset", ms("redset_rs2_encode") / ms("rs2_group"));
  return {};
}

}  // namespace freshet::benchmarks
