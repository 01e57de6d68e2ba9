// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "bindings/runtime/scheduled_publisher.h"
#include "core/base/format.h"
#include "examples/live_run/loops/loop_tools.h"
#include "examples/live_run/model/corpus.h"
#include "examples/live_run/model/optimizer.h"
#include "examples/live_run/role.h"
#include "examples/live_run/roles/checker.h"
#include "examples/live_run/roles/resume.h"
#include "scheduler/scheduler.h"
#include "transport/publisher.h"

namespace freshet::live {
namespace {

constexpr std::size_t kBatch = 32;
constexpr std::size_t kInitialLossPositions = 512;
constexpr double kArenaCopies = 2.2;  ///< Few tensors change between two versions, and the changed ones are named.
constexpr std::uint64_t kLargeModelBytes = 1'000'000'000;
constexpr std::uint64_t kStepsPerVersionMost = 200;
constexpr Duration kTrainerNap = std::chrono::milliseconds(10);
constexpr Duration kRepositoryPatience = std::chrono::seconds(10);
/// Versions that may wait for the repository. More, and the next publish waits for a slow disk instead of costing it
/// one.
constexpr std::uint64_t kRepositoryQueueMax = 3;

/// A large model leaves no room for the default's four copies on the hosts that this is tried on: readers that hold
/// more than half a copy of old tensors make it skip versions. 0: the default.
std::uint64_t arena_limit(std::uint64_t model_bytes) {
  return model_bytes > kLargeModelBytes ? model_bytes * 5 / 2 : 0;
}

class Trainer {
 public:
  Trainer(const Layout& layout, const RunConfig& config, const RoleOptions& role, Corpus corpus, StartingPoint start,
          JournalWriter journal)
      : layout_(layout),
        config_(config),
        role_(role),
        corpus_(std::move(corpus)),
        weights_(std::move(start.weights)),
        resumed_(std::move(start.resumed)),
        parent_(start.record),
        step_(resumed_ ? resumed_->step : 0),
        journal_(std::move(journal)),
        optimizer_(layout) {}

  Status run();

 private:
  Status open_publisher();
  void wait_for_repository() const;
  bool repository_is_behind() const;
  void report_start();
  double train_step();
  void draw_batch(const Text& text, std::uint64_t key, std::size_t positions);
  SchedulerOptions scheduler_options() const;
  Result<std::optional<PublishReceipt>> publish();
  Status write_record();
  std::vector<std::uint32_t> touched_tensors() const;
  Status report_commits();
  bool limit_reached() const { return role_.versions_left > 0 && published_ >= role_.versions_left; }
  bool ending() const { return stop_requested() || finish_requested() || limit_reached(); }

  const Layout& layout_;
  const RunConfig& config_;
  const RoleOptions& role_;
  const Corpus corpus_;
  Weights weights_;
  std::shared_ptr<const Manifest> resumed_;
  RecordId parent_;
  std::uint64_t step_;
  JournalWriter journal_;
  Optimizer optimizer_;
  std::unique_ptr<Publisher> publisher_;
  std::vector<TensorView> views_;

  std::vector<Position> batch_;
  Pass pass_;
  Gradients gradients_;
  std::vector<RowPlace> touched_;  ///< Since the last record; rows may stand here more than once.
  std::uint32_t records_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t skipped_ = 0;
  Mean loss_since_publish_;
  Mean loss_since_report_;
  std::vector<double> loop_calls_ms_;  ///< What publish_if_due() took, of each step since the last report.

  struct Sent {
    VersionNumber version = 0;
    std::uint64_t step = 0;
    double loss = 0;
    Duration blocked{};
  };
  std::deque<Sent> uncommitted_;
};

Status Trainer::run() {
  FRESHET_TRY(open_publisher());
  FRESHET_ASSIGN(const auto scheduler, Scheduler::make(scheduler_options()));
  ScheduledPublisher scheduled(*publisher_, *scheduler);
  report_start();
  // So that servers have something to serve from the start.
  FRESHET_TRY(scheduled.publish_now([this] { return publish(); }));
  wait_for_repository();
  Every report_due(std::chrono::milliseconds(100));
  Pace pace(config_.options.pace);
  while (!ending()) {
    const double loss = train_step();
    const Time called = system_clock().now();
    // A publish that is put off is due again at the next step; training goes on meanwhile.
    FRESHET_TRY(scheduled.publish_if_due({.step = step_, .loss = loss}, [this] { return publish(); }));
    loop_calls_ms_.push_back(ms(system_clock().now() - called));
    if (report_due.due(system_clock().now())) {
      report({{"event", "step"},
              {"step", step_},
              {"loss", loss_since_report_.take()},
              {"loop_calls_ms", std::exchange(loop_calls_ms_, {})}});
      FRESHET_TRY(report_commits());
    }
    pace.wait();
  }
  while (!uncommitted_.empty() && !stop_requested()) {
    FRESHET_TRY(report_commits());
    std::this_thread::sleep_for(kTrainerNap);
  }
  report({{"event", "finished"},
          {"step", step_},
          {"version", publisher_->stat().newest},
          {"limit", limit_reached()},
          {"schedule", scheduler->last_decision().text()}});
  while (!stop_requested()) std::this_thread::sleep_for(kTrainerNap);
  return {};
}

Status Trainer::open_publisher() {
  FRESHET_ASSIGN(auto architecture, layout_.architecture());
  const HostPlan plan = plan_of(config_, "trainer");
  FRESHET_ASSIGN(publisher_, Publisher::open({.model = kModelName,
                                              .hub_options = {.listen = plan.listen, .security = plan.security},
                                              .architecture = std::move(architecture),
                                              .resume_from = resumed_,
                                              .number_floor = resumed_ ? resumed_->name.number : 0,
                                              .arena_limit_bytes = arena_limit(layout_.bytes()),
                                              .arena_copies = kArenaCopies}));
  views_ = weights_.views(layout_);
  return {};
}

/// A repository that comes too late would miss the first versions. One that does not come is not waited for.
void Trainer::wait_for_repository() const {
  const Time until = system_clock().now() + kRepositoryPatience;
  const auto wants_every = [](const SubscriberStat& subscriber) { return subscriber.every; };
  while (!ending() && system_clock().now() < until) {
    const PublisherStat stat = publisher_->stat();
    if (std::any_of(stat.subscribers.begin(), stat.subscribers.end(), wants_every)) return;
    std::this_thread::sleep_for(kTrainerNap);
  }
}

/// One that is stopped or gone is not minded: it catches up with the newest version, and knows its gap.
bool Trainer::repository_is_behind() const {
  const PublisherStat stat = publisher_->stat();
  return std::any_of(stat.subscribers.begin(), stat.subscribers.end(), [](const SubscriberStat& subscriber) {
    return subscriber.every && !subscriber.silent && subscriber.queued_versions > kRepositoryQueueMax;
  });
}

void Trainer::report_start() {
  nlohmann::json event = {{"event", "trainer"},
                          {"model_bytes", layout_.bytes()},
                          {"tensors", layout_.tensors().size()},
                          {"resumed", resumed_ ? resumed_->name.number : 0}};
  if (!resumed_) {
    draw_batch(corpus_.held_out, 0, kInitialLossPositions);
    gather(layout_, weights_, batch_, pass_);
    event["initial_loss"] = infer(layout_, weights_, pass_);
  }
  report(event);
}

/// Positions follow from the seed and `key`, so a resumed run sees what it would have seen.
void Trainer::draw_batch(const Text& text, std::uint64_t key, std::size_t positions) {
  std::mt19937_64 random(config_.options.seed * 0x9E3779B97F4A7C15ULL + key);
  std::uniform_int_distribution<std::size_t> position(layout_.orders(), text.size() - 1);
  batch_.clear();
  for (std::size_t i = 0; i < positions; ++i) batch_.push_back(text.data() + position(random));
}

double Trainer::train_step() {
  ++step_;
  const std::uint64_t freeze_after = config_.options.freeze_after;
  const std::uint32_t frozen = freeze_after > 0 && step_ > freeze_after ? kOrdersThatFreeze : 0;
  draw_batch(corpus_.training, step_, kBatch);
  gather(layout_, weights_, batch_, pass_);
  const double loss = infer(layout_, weights_, pass_);
  backward(layout_, weights_, pass_, gradients_);
  optimizer_.step(pass_, gradients_, frozen, weights_, touched_);
  loss_since_publish_.add(loss);
  loss_since_report_.add(loss);
  return loss;
}

SchedulerOptions Trainer::scheduler_options() const {
  SchedulerOptions options{.schedule = config_.options.schedule,
                           .epoch_steps = std::max<std::uint64_t>(corpus_.training.size() / kBatch, 1)};
  options.limits.requests_per_second = config_.options.rate;
  if (config_.options.seconds > 0) {
    options.limits.serving =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(config_.options.seconds));
  }
  // Who asks for so many versions gets them, however little they gain.
  if (config_.options.versions > 0) options.limits.interval_steps_most = kStepsPerVersionMost;
  return options;
}

/// The record is written first: whatever a server can ever see of the version, the checker can look up.
Result<std::optional<PublishReceipt>> Trainer::publish() {
  if (published_ > 0 && repository_is_behind()) return std::optional<PublishReceipt>();
  std::vector<std::uint32_t> changed = touched_tensors();
  FRESHET_TRY(write_record());
  const double loss = loss_since_publish_.take();
  const auto receipt = publisher_->publish(views_, {.step = step_,
                                                    .metrics = {{"loss", loss}},
                                                    .changed = Changed::only(std::move(changed)),
                                                    .tags = {{kRecordTag, to_string(parent_)}}});
  if (!receipt && receipt.error().code() == Code::out_of_space) {
    ++skipped_;  // Readers hold too much; the publisher carries the change on to the next version.
    return std::optional<PublishReceipt>();
  }
  if (!receipt) return fail(receipt.error());
  ++published_;
  uncommitted_.push_back({.version = receipt->version, .step = step_, .loss = loss, .blocked = receipt->blocked});
  return std::optional(*receipt);
}

Status Trainer::write_record() {
  JournalRecord record{.id = {role_.life, ++records_}, .parent = parent_, .step = step_};
  for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) {
    record.dense.push_back(digest_low(views_[tensor].data));
  }
  std::set<std::uint32_t> seen;
  for (const RowPlace& place : touched_) {
    if (!seen.insert(place.row).second) continue;
    const std::size_t row_bytes = layout_.row_floats() * sizeof(float);
    const Bytes row = views_[place.tensor].data.subspan(place.row_in_block * row_bytes, row_bytes);
    record.rows.push_back({.row = place.row, .digest = digest_low(row)});
  }
  touched_.clear();
  parent_ = record.id;
  return journal_.append(record);
}

std::vector<std::uint32_t> Trainer::touched_tensors() const {
  std::set<std::uint32_t> tensors;
  for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) tensors.insert(tensor);
  for (const RowPlace& place : touched_) tensors.insert(place.tensor);
  return {tensors.begin(), tensors.end()};
}

Status Trainer::report_commits() {
  while (!uncommitted_.empty()) {
    const Sent& sent = uncommitted_.front();
    const auto commit = publisher_->wait_committed(sent.version, Duration::zero());
    if (!commit && commit.error().code() == Code::timed_out) return {};
    if (!commit) return fail(commit.error());
    report({{"event", "version"},
            {"version", sent.version},
            {"step", sent.step},
            {"loss", sent.loss},
            {"bytes", commit->changed_bytes},
            {"tensors", commit->changed_tensors},
            {"blocked_ms", ms(sent.blocked)},
            {"commit_ms", ms(commit->capture_to_commit)},
            {"skipped", skipped_}});
    uncommitted_.pop_front();
  }
  return {};
}

}  // namespace

Status run_trainer(const RunConfig& config, const RoleOptions& role) {
  FRESHET_ASSIGN(const Layout layout,
                 Layout::make({.model_bytes = config.options.model_bytes, .seed = config.options.seed}));
  FRESHET_ASSIGN(Corpus corpus, read_corpus(config.options.text));
  // The run's repository is new, so a first life finds nothing there.
  FRESHET_ASSIGN(StartingPoint start, role.life == 1 ? begin(layout) : resume_or_begin(layout, config.repository));
  FRESHET_ASSIGN(JournalWriter journal, JournalWriter::create(role.run_folder, role.life));
  return Trainer(layout, config, role, std::move(corpus), std::move(start), std::move(journal)).run();
}

}  // namespace freshet::live
