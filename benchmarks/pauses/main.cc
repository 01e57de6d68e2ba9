// SPDX-License-Identifier: Apache-2.0
/// What users of a stream wait for, step after step without a gap, against the same steps with a gap of 0.6 s before
/// each: longer than any heartbeat (250 ms) and any repeated message (200 ms). What takes longer without the gap waits
/// for one of these.

#include <map>
#include <thread>

#include "benchmarks/pauses/setting.h"
#include "benchmarks/stream/program.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::chrono::milliseconds kGap{600};
constexpr double kRetryMs = 200;  ///< After which a subscriber repeats a message.
constexpr Duration kAnswerWithin = std::chrono::seconds(30);
constexpr int kLooks = 4;

/// Times of steps by name.
class Steps {
 public:
  explicit Steps(bool with_gap) : with_gap_(with_gap) {}

  /// Until `step` returns. After a step that failed, none is taken.
  void time(const std::string& name, const std::function<Status()>& step) {
    if (!status_) return;
    if (with_gap_) std::this_thread::sleep_for(kGap);
    const std::int64_t start_ns = monotonic_ns();
    Status done = step();
    const std::int64_t end_ns = monotonic_ns();
    if (!done) {
      status_ = fail(std::move(done).error().with_context(name));
    } else {
      samples_[name].add(static_cast<double>(end_ns - start_ns) / 1e6);
    }
  }
  const Status& status() const { return status_; }
  const std::map<std::string, Samples>& samples() const { return samples_; }

 private:
  const bool with_gap_;
  Status status_;
  std::map<std::string, Samples> samples_;
};

Status wait_swapped(Setting& setting, VersionNumber version) {
  FRESHET_TRY(setting.swaps().wait_for(version));
  return {};
}

Status wait_known(Setting& setting, VersionNumber version) {
  const std::int64_t until_ns = monotonic_ns() + Duration(kAnswerWithin).count();
  while (monotonic_ns() < until_ns) {
    for (const SubscriberStat& subscriber : setting.publisher().stat().subscribers) {
      if (subscriber.serving == version) return {};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return fail(Code::timed_out, format("the publisher does not know that {} is served", version));
}

/// A follower: publishes, decisions back and forth, versions by their numbers.
Status follow(const std::string& channel, int rounds, Steps& steps) {
  FRESHET_ASSIGN(const auto setting, Setting::make(channel, /*shared_hub=*/false));
  FRESHET_TRY(setting->open_publisher());
  FRESHET_TRY(setting->open_subscriber());
  FRESHET_ASSIGN(VersionNumber before, setting->publish());
  FRESHET_TRY(wait_swapped(*setting, before));
  for (int round = 0; round < rounds && steps.status(); ++round) {
    VersionNumber newest = 0;
    steps.time("publish", [&]() -> Status {
      FRESHET_ASSIGN(newest, setting->publish());
      return wait_swapped(*setting, newest);
    });
    steps.time("rollback", [&]() -> Status {
      FRESHET_TRY(setting->publisher().rollback(before));
      return wait_swapped(*setting, before);
    });
    steps.time("release", [&]() -> Status {
      FRESHET_TRY(setting->publisher().release());
      return wait_swapped(*setting, newest);
    });
    steps.time("rollback again", [&]() -> Status {
      FRESHET_TRY(setting->publisher().rollback(before));
      return wait_swapped(*setting, before);
    });
    steps.time("publish under a hold, release", [&]() -> Status {
      FRESHET_ASSIGN(newest, setting->publish());
      FRESHET_TRY(setting->publisher().release());
      return wait_swapped(*setting, newest);
    });
    for (int look = 0; look < kLooks; ++look) {
      steps.time("a version by its number", [&]() -> Status {
        FRESHET_TRY(setting->subscriber().snapshot_of(before, kAnswerWithin));
        return {};
      });
    }
    steps.time("publish, known to the publisher", [&]() -> Status {
      FRESHET_ASSIGN(newest, setting->publish());
      return wait_known(*setting, newest);
    });
    before = newest;
  }
  return steps.status();
}

Status take_every(const std::string& channel, int rounds, Steps& steps) {
  FRESHET_ASSIGN(const auto setting, Setting::make(channel, /*shared_hub=*/false));
  FRESHET_TRY(setting->open_publisher());
  FRESHET_TRY(setting->open_subscriber(/*every=*/true));
  for (int round = 0; round < rounds && steps.status(); ++round) {
    steps.time("publish, every version", [&]() -> Status {
      FRESHET_TRY(setting->publish());
      FRESHET_TRY(setting->subscriber().next(kAnswerWithin));
      return {};
    });
    steps.time("publish, every version, known to the publisher", [&]() -> Status {
      FRESHET_ASSIGN(const VersionNumber newest, setting->publish());
      FRESHET_TRY(setting->subscriber().next(kAnswerWithin));
      return wait_known(*setting, newest);
    });
  }
  return steps.status();
}

Status stage_and_commit(const std::string& channel, int rounds, Steps& steps) {
  FRESHET_ASSIGN(const auto setting, Setting::make(channel, /*shared_hub=*/false));
  FRESHET_TRY(setting->open_publisher());
  FRESHET_TRY(setting->open_subscriber(/*every=*/false, /*staged=*/true));
  FRESHET_ASSIGN(VersionNumber before, setting->publish());
  FRESHET_TRY(wait_swapped(*setting, before));
  for (int round = 0; round < rounds && steps.status(); ++round) {
    FRESHET_ASSIGN(const VersionNumber newest, setting->publish());
    steps.time("stage", [&] { return setting->subscriber().stage(newest, kAnswerWithin); });
    steps.time("commit", [&]() -> Status {
      FRESHET_TRY(setting->subscriber().commit_staged());
      return wait_swapped(*setting, newest);
    });
    steps.time("stage the one before", [&] { return setting->subscriber().stage(before, kAnswerWithin); });
    steps.time("rollback to what is staged", [&]() -> Status {
      FRESHET_TRY(setting->publisher().rollback(before));
      return wait_swapped(*setting, before);
    });
    steps.time("release of a member", [&]() -> Status {
      FRESHET_TRY(setting->publisher().release());
      return wait_swapped(*setting, newest);
    });
    before = newest;
  }
  return steps.status();
}

/// Both ends come and go, in both orders.
Status open_and_close(const std::string& channel, bool shared_hub, int rounds, Steps& steps) {
  FRESHET_ASSIGN(const auto setting, Setting::make(channel, shared_hub));
  const std::string where = shared_hub ? ", hub stays" : "";
  FRESHET_TRY(setting->open_subscriber());
  for (int round = 0; round < rounds && steps.status(); ++round) {
    VersionNumber newest = 0;
    const std::string again = round == 0 ? "the first publisher" : "the next publisher";
    steps.time(again + where, [&]() -> Status {
      FRESHET_TRY(setting->open_publisher());
      FRESHET_ASSIGN(newest, setting->publish());
      return wait_swapped(*setting, newest);
    });
    steps.time("close a subscriber" + where, [&]() -> Status {
      setting->close_subscriber();
      return {};
    });
    steps.time("the next subscriber" + where, [&]() -> Status {
      FRESHET_TRY(setting->open_subscriber());
      FRESHET_ASSIGN(newest, setting->publish());
      return wait_swapped(*setting, newest);
    });
    steps.time("close the publisher" + where, [&] { return setting->close_publisher(); });
    setting->forget_publisher();
  }
  return steps.status();
}

Status measure_channel(const std::string& channel, int rounds, Report& report) {
  Steps at_once(/*with_gap=*/false);
  Steps with_gap(/*with_gap=*/true);
  for (Steps* steps : {&at_once, &with_gap}) {
    FRESHET_TRY(follow(channel, rounds, *steps));
    FRESHET_TRY(take_every(channel, rounds, *steps));
    FRESHET_TRY(stage_and_commit(channel, rounds, *steps));
    FRESHET_TRY(open_and_close(channel, /*shared_hub=*/false, rounds, *steps));
    FRESHET_TRY(open_and_close(channel, /*shared_hub=*/true, rounds, *steps));
  }
  double least = kRetryMs;
  double longest = 0;
  for (const auto& [name, samples] : at_once.samples()) {
    report.add_row(channel, name + ", at once", "ms", samples);
    const auto slow = with_gap.samples().find(name);
    if (slow == with_gap.samples().end()) continue;
    report.add_row(channel, name + ", after 0.6 s", "ms", slow->second);
    // Of what takes less than a millisecond either way nothing is told by how much.
    least = std::min(least, std::max(slow->second.median(), 1.0) / std::max(samples.median(), 1.0));
    longest = std::max(longest, samples.median());
  }
  report.set_ratio("gap_vs_at_once_least_" + channel, least);
  report.set_ratio("retry_vs_longest_median_" + channel, kRetryMs / longest);
  return {};
}

Status measure(const ProgramOptions& options, Report& report) {
  const int rounds = options.repetitions_or(2, 11);
  for (const std::string channel : {"shm", "zmq"}) {
    report.skip_failed(channel, measure_channel(channel, rounds, report));
  }
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(argc, argv,
                     {.name = "pauses",
                      .about = "What users of a stream wait for, step after step, against the same steps with gaps",
                      .measure = measure});
}
