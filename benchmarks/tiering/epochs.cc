// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tiering/epochs.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "benchmarks/tiering/monarch.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr Duration kLatency = std::chrono::milliseconds(2);
constexpr double kBytesPerSecond = 200e6;
constexpr std::uint64_t kPlenty = std::uint64_t{1} << 40;
constexpr int kEpochs = 3;

double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Variant {
  const char* subject;
  const char* more;  ///< The config's head.
  const char* suffix;
};
/// A training set does not change, and whoever says so saves the look at the source.
constexpr Variant kVariants[] = {{"freshet_never", "validate = \"never\"", ""}, {"freshet_open", "", "_validated"}};

}  // namespace

Result<std::unique_ptr<Epochs>> Epochs::open(const Settings& settings, Report& report) {
  std::unique_ptr<Epochs> epochs(new Epochs(settings, report));
  std::filesystem::create_directories(settings.folder + "/backing");
  FRESHET_ASSIGN(epochs->slow_, SlowFolder::open({.backing = settings.folder + "/backing",
                                                  .mount = settings.folder + "/source",
                                                  .latency = kLatency,
                                                  .bytes_per_second = kBytesPerSecond}));
  FRESHET_ASSIGN(epochs->slow_uncached_, SlowFolder::open({.backing = settings.folder + "/backing",
                                                           .mount = settings.folder + "/uncached",
                                                           .latency = kLatency,
                                                           .bytes_per_second = kBytesPerSecond,
                                                           .cached = false}));
  return epochs;
}

Result<StagedSet> Epochs::stage(TrainingSet set) {
  StagedSet staged{.set = std::move(set), .source = "", .uncached = "", .fast = "", .list = "", .sum = 0};
  const std::string& name = staged.set.name;
  staged.source = settings_.folder + "/source/" + name;
  staged.uncached = settings_.folder + "/uncached/" + name;
  staged.fast = settings_.folder + "/fast/" + name;
  staged.list = settings_.folder + "/" + name + ".list";
  FRESHET_ASSIGN(staged.sum, write_set(staged.set, settings_.folder + "/backing/" + name, staged.list));
  FRESHET_ASSIGN(staged.sum, write_set(staged.set, staged.fast, staged.list));
  return staged;
}

TrainerOptions Epochs::trainer_of(const StagedSet& set, const Reading& reading, const std::string& folder) const {
  return {.folder = folder,
          .list = set.list,
          .piece_bytes = set.set.piece_bytes,
          .readers = reading.readers,
          .in_python = reading.in_python,
          .before = {},
          .bytes = set.set.bytes(),
          .sum = set.sum};
}

Status Epochs::forget(const std::string& copies) {
  FRESHET_TRY(slow_->invalidate());
  if (std::filesystem::exists(copies)) FRESHET_TRY(forget_pages(copies));
  return drop_caches();
}

Status Epochs::drop_caches() {
  if (!settings_.drop_caches) return {};
  constexpr const char* kPath = "/proc/sys/vm/drop_caches";
  std::ofstream out(kPath);
  if (out << "3\n" << std::flush) return {};
  return fail_errno(errno, format("write {} (--drop-caches is for root)", kPath));
}

Status Epochs::begin() {
  FRESHET_TRY(slow_->invalidate());
  return slow_->reset();
}

Status Epochs::three_epochs(const std::string& subject, Trainer& trainer, const std::string& copies) {
  double all = 0;
  for (unsigned number = 1; number <= kEpochs; ++number) {
    FRESHET_TRY(forget(copies));
    FRESHET_ASSIGN(const Epoch epoch, trainer.epoch(number));
    if (number <= 2) add(format("{}_epoch{}", subject, number), "s", epoch.seconds);
    all += epoch.seconds;
  }
  FRESHET_ASSIGN(const SlowCounters asked, slow_->counters());
  add(subject + "_three_epochs", "s", all);
  add(subject + "_operations", "operations", static_cast<double>(asked.operations()));
  add(subject + "_source", "MB", megabytes(asked.bytes));
  return {};
}

Status Epochs::without_tiers(const StagedSet& set, const Reading& reading) {
  FRESHET_TRY(begin());
  FRESHET_ASSIGN(const auto trainer, Trainer::start(trainer_of(set, reading, set.source)));
  return three_epochs("none", *trainer, "");
}

Status Epochs::with_tiers(const StagedSet& set, const Reading& reading, const std::string& subject,
                          const std::string& more) {
  FRESHET_ASSIGN(const auto tiers, Tiers::make(settings_.folder, set.source, kPlenty, more));
  {
    TrainerOptions options = trainer_of(set, reading, set.source);
    options.before = tiers->run_words();
    FRESHET_TRY(begin());
    FRESHET_ASSIGN(const auto trainer, Trainer::start(options));
    FRESHET_TRY(three_epochs(subject, *trainer, tiers->tier()));
  }
  return reading.restarts ? restart(set, reading, subject, *tiers) : Status();
}

/// Program and keeper are killed in the middle of an epoch; the next job begins with what is there.
Status Epochs::restart(const StagedSet& set, const Reading& reading, const std::string& subject, const Tiers& tiers) {
  TrainerOptions options = trainer_of(set, reading, set.source);
  options.before = tiers.run_words();
  {
    FRESHET_ASSIGN(const auto trainer, Trainer::start(options));
    FRESHET_TRY(forget(tiers.tier()));
    FRESHET_TRY(tiers.kill_keeper());
    FRESHET_TRY(trainer->kill_within(4, samples_[subject + "_epoch2"].median() / 4));
  }
  FRESHET_ASSIGN(const auto trainer, Trainer::start(options));
  FRESHET_TRY(forget(tiers.tier()));
  FRESHET_ASSIGN(const Epoch epoch, trainer->epoch(4));
  add(subject + "_restarted", "s", epoch.seconds);
  return {};
}

Status Epochs::on_fast_disk(const StagedSet& set, const Reading& reading) {
  FRESHET_ASSIGN(const auto trainer, Trainer::start(trainer_of(set, reading, set.fast)));
  FRESHET_TRY(forget_pages(set.fast));
  FRESHET_TRY(drop_caches());
  FRESHET_ASSIGN(const Epoch epoch, trainer->epoch(2));
  add("fast_disk", "s", epoch.seconds);
  return {};
}

Status Epochs::after_rsync(const StagedSet& set, const Reading& reading) {
  const std::string copy = settings_.folder + "/rsync";
  std::error_code ignored;
  std::filesystem::remove_all(copy, ignored);
  FRESHET_TRY(begin());
  const auto begin = std::chrono::steady_clock::now();
  const auto copied = lines_of({"rsync", "-a", set.source + "/", copy + "/"});
  if (!copied) {
    report_.skip("rsync", "it is not there: " + copied.error().message());
    return {};
  }
  double all = seconds_since(begin);
  add("rsync_copy", "s", all);
  FRESHET_ASSIGN(const auto trainer, Trainer::start(trainer_of(set, reading, copy)));
  for (unsigned number = 1; number <= kEpochs; ++number) {
    FRESHET_TRY(forget_pages(copy));
    FRESHET_TRY(drop_caches());
    FRESHET_ASSIGN(const Epoch epoch, trainer->epoch(number));
    if (number == 1) add("rsync_epoch1", "s", epoch.seconds);
    all += epoch.seconds;
  }
  add("rsync_three_epochs", "s", all);
  std::filesystem::remove_all(copy, ignored);
  return {};
}

Status Epochs::with_monarch(const StagedSet& set, const Reading& reading) {
  TrainerOptions options = trainer_of(set, reading, set.source);
  const std::string tier = settings_.folder + "/monarch-tier";
  FRESHET_ASSIGN(options.before, monarch_words(settings_.monarch, settings_.folder, tier, set.source));
  FRESHET_TRY(begin());
  Status ran = fail(Code::unavailable, "not started");
  if (auto trainer = Trainer::start(options); trainer) {
    ran = three_epochs("monarch", **trainer, tier);
  } else {
    ran = fail(trainer.error());
  }
  std::error_code ignored;
  std::filesystem::remove_all(tier, ignored);
  if (!ran) report_.skip(format("monarch_{}", set.set.name), ran.error().message());
  return {};
}

Status Epochs::compare(const StagedSet& set, const Reading& reading) {
  samples_.clear();
  const int rounds = reading.rounds > 0 ? reading.rounds : settings_.rounds;
  for (int round = 0; round < rounds; ++round) {
    FRESHET_TRY(without_tiers(set, reading));
    for (const Variant& variant : kVariants) FRESHET_TRY(with_tiers(set, reading, variant.subject, variant.more));
    FRESHET_TRY(on_fast_disk(set, reading));
    FRESHET_TRY(after_rsync(set, reading));
    if (!settings_.monarch.empty() && reading.readers == 1) FRESHET_TRY(with_monarch(set, reading));
  }
  return report_case(format("{}_{}_reader{}{}", set.set.name, reading.readers, reading.readers == 1 ? "" : "s",
                            reading.in_python ? "_python" : ""),
                     reading);
}

Status Epochs::report_case(const std::string& name, const Reading& reading) {
  for (const auto& [subject, samples] : samples_) report_.add_row(name, subject, units_[subject], samples);
  const auto median = [&](const std::string& subject) { return report_.median(name, subject); };
  for (const Variant& variant : kVariants) {
    const std::string suffix = reading.suffix + variant.suffix;
    const std::string freshet = variant.subject;
    report_.set_ratio("three_epochs_vs_none" + suffix, median("none_three_epochs") / median(freshet + "_three_epochs"));
    report_.set_ratio("vs_rsync_first" + suffix, median("rsync_three_epochs") / median(freshet + "_three_epochs"));
    report_.set_ratio("epoch1_vs_none" + suffix, median("none_epoch1") / median(freshet + "_epoch1"));
    report_.set_ratio("epoch2_vs_fast_disk" + suffix, median("fast_disk") / median(freshet + "_epoch2"));
    report_.set_ratio("epoch2_vs_fresh_copy" + suffix, median("rsync_epoch1") / median(freshet + "_epoch2"));
    report_.set_ratio("restart_vs_fast_disk" + suffix, median("fast_disk") / median(freshet + "_restarted"));
    report_.set_ratio("restart_vs_epoch2" + suffix, median(freshet + "_epoch2") / median(freshet + "_restarted"));
    report_.set_ratio("vs_monarch_time" + suffix, median("monarch_three_epochs") / median(freshet + "_three_epochs"));
    report_.set_ratio("vs_monarch_operations" + suffix, median("monarch_operations") / median(freshet + "_operations"));
  }
  return {};
}

Status Epochs::compare_uncached(const StagedSet& set, const std::string& suffix) {
  const Reading reading;
  samples_.clear();
  for (int round = 0; round < settings_.rounds; ++round) {
    for (const bool tiered : {false, true}) {
      FRESHET_ASSIGN(const auto tiers, Tiers::make(settings_.folder, set.uncached, kPlenty, "first_open = \"wait\""));
      TrainerOptions options = trainer_of(set, reading, set.uncached);
      if (tiered) options.before = tiers->run_words();
      FRESHET_ASSIGN(const auto trainer, Trainer::start(options));
      FRESHET_TRY(slow_uncached_->reset());
      FRESHET_ASSIGN(const Epoch epoch, trainer->epoch(1));
      FRESHET_ASSIGN(const SlowCounters asked, slow_uncached_->counters());
      const std::string subject = tiered ? "freshet_wait" : "none";
      add(subject + "_epoch1", "s", epoch.seconds);
      add(subject + "_epoch1_operations", "operations", static_cast<double>(asked.operations()));
      add(subject + "_epoch1_source", "MB", megabytes(asked.bytes));
    }
  }
  const std::string name = set.set.name + "_uncached";
  for (const auto& [subject, samples] : samples_) report_.add_row(name, subject, units_[subject], samples);
  report_.set_ratio("epoch1_vs_none_uncached" + suffix,
                    report_.median(name, "none_epoch1") / report_.median(name, "freshet_wait_epoch1"));
  return {};
}

Status Epochs::share_copies(const StagedSet& set) {
  double worst = 1e9;
  for (const unsigned processes : {1U, 2U, 4U, 8U}) {
    samples_.clear();
    for (int round = 0; round < settings_.rounds; ++round) {
      FRESHET_ASSIGN(const auto tiers, Tiers::make(settings_.folder, set.source, kPlenty, ""));
      TrainerOptions options = trainer_of(set, {.readers = processes, .suffix = ""}, set.source);
      options.before = tiers->run_words();
      options.each_reads_all = true;
      options.bytes *= processes;
      options.sum *= processes;
      FRESHET_ASSIGN(const auto trainer, Trainer::start(options));
      FRESHET_TRY(forget(tiers->tier()));
      FRESHET_TRY(slow_->reset());
      FRESHET_ASSIGN([[maybe_unused]] const Epoch epoch, trainer->epoch(1));
      FRESHET_TRY(tiers->command("settle"));
      FRESHET_ASSIGN(const SlowCounters asked, slow_->counters());
      FRESHET_ASSIGN(const nlohmann::json total, tiers->total());
      if (total["copied_files"] != set.set.files.size()) return fail(Code::corrupt, "not every file was copied once");
      add("source", "MB", megabytes(asked.bytes));
    }
    const std::string name = format("{}_{}_process{}", set.set.name, processes, processes == 1 ? "" : "es");
    report_.add_row(name, "source_with_copies", "MB", samples_["source"]);
    worst = std::min(worst, megabytes(set.set.bytes()) / samples_["source"].median());
  }
  report_.set_ratio("one_copy", worst);
  return {};
}

Status Epochs::half_fits(const StagedSet& set) {
  samples_.clear();
  for (int round = 0; round < settings_.rounds; ++round) {
    FRESHET_ASSIGN(const auto tiers, Tiers::make(settings_.folder, set.source, set.set.bytes() / 2, ""));
    TrainerOptions options = trainer_of(set, {}, set.source);
    options.before = tiers->run_words();
    FRESHET_ASSIGN(const auto trainer, Trainer::start(options));
    FRESHET_TRY(forget(tiers->tier()));
    FRESHET_TRY(slow_->reset());
    FRESHET_ASSIGN([[maybe_unused]] const Epoch first, trainer->epoch(1));
    FRESHET_TRY(tiers->command("settle"));
    FRESHET_ASSIGN(const std::uint64_t held, tiers->used_bytes());
    FRESHET_TRY(forget(tiers->tier()));
    FRESHET_TRY(slow_->reset());
    FRESHET_ASSIGN(const Epoch second, trainer->epoch(2));
    FRESHET_ASSIGN(const SlowCounters asked, slow_->counters());
    add("epoch2", "s", second.seconds);
    add("epoch2_source", "MB", megabytes(asked.bytes));
    add("epoch2_bound", "MB", megabytes(set.set.bytes() - held));
  }
  const std::string name = set.set.name + "_room_for_half";
  for (const auto& [subject, samples] : samples_) report_.add_row(name, subject, units_[subject], samples);
  report_.set_ratio("half_vs_bound", report_.median(name, "epoch2_bound") / report_.median(name, "epoch2_source"));
  return {};
}

Status Epochs::know_order(const StagedSet& set) {
  {
    FRESHET_ASSIGN(const auto probe, Tiers::make(settings_.folder, set.source, kPlenty, ""));
    if (!probe->command("upcoming")) {
      report_.skip("known_order", "this freshet has no `tier upcoming`");
      return {};
    }
  }
  samples_.clear();
  for (int round = 0; round < settings_.rounds; ++round) {
    for (const bool told : {false, true}) {
      FRESHET_ASSIGN(const auto tiers, Tiers::make(settings_.folder, set.source, set.set.bytes() / 2, ""));
      TrainerOptions options = trainer_of(set, {}, set.source);
      options.before = tiers->run_words();
      options.tells_order = told;
      // As long as an epoch is read: what is fetched ahead has the time to come.
      options.work_us = 8000;
      FRESHET_ASSIGN(const auto trainer, Trainer::start(options));
      double waited = 0;
      for (unsigned number = 1; number <= 2; ++number) {
        FRESHET_TRY(forget(tiers->tier()));
        FRESHET_TRY(slow_->reset());
        FRESHET_ASSIGN(const Epoch epoch, trainer->epoch(number));
        FRESHET_ASSIGN(const SlowCounters asked, slow_->counters());
        const std::string subject = format("{}_epoch{}", told ? "told" : "untold", number);
        add(subject + "_waited", "s", epoch.waited_s);
        add(subject + "_source", "MB", megabytes(asked.bytes));
        waited += epoch.waited_s;
      }
      add(told ? "told_waited" : "untold_waited", "s", waited);
    }
  }
  const std::string name = set.set.name + "_known_order";
  for (const auto& [subject, samples] : samples_) report_.add_row(name, subject, units_[subject], samples);
  report_.set_ratio("known_order", report_.median(name, "untold_waited") / report_.median(name, "told_waited"));
  return {};
}

}  // namespace freshet::benchmarks
