// SPDX-License-Identifier: Apache-2.0
#include "repo/sink.h"

#include <latch>

#include "core/base/interruption.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "repo/backend/backend_wrapper.h"
#include "tests/fault/fault_backend.h"
#include "tests/transport/model_fixture.h"

namespace freshet {
namespace {

using namespace freshet::test;

class SinkTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kTensors = 4;

  SinkTest() {
    auto backend = std::make_unique<FaultBackend>(make_memory_backend(), FaultBackend::Plan{});
    faults_ = backend.get();
    auto opened = Repository::open(std::move(backend), {});
    EXPECT_TRUE(opened);
    repository_ = std::move(*opened);
  }

  std::unique_ptr<Publisher> start_publisher() {
    // Room for every version that a test publishes, so that none has to be given up for the next.
    return open_publisher({.model = "demo", .hub_options = {.directory = folder_.path()}, .arena_copies = 40});
  }

  void start_sink(Duration retry_after = std::chrono::milliseconds(1), bool shares_contents = false) {
    sink_.reset();
    auto opened = Sink::open(*repository_, {.model = "demo",
                                            .directory = folder_.path(),
                                            .retry_after = retry_after,
                                            .dedup = shares_contents,
                                            .deltas = shares_contents,
                                            .on_event = [this](const auto& event) { note(event); }});
    ASSERT_TRUE(opened) << opened.error().message();
    sink_ = std::move(*opened);
  }

  void note(const SinkOptions::Event& event) {
    const MutexLock lock(mutex_);
    events_.push_back(event);
  }
  std::vector<SinkOptions::Event> events() {
    const MutexLock lock(mutex_);
    return events_;
  }

  // Every tensor of a stored version carries the stamp of the publish that last changed it.
  void expect_stamps(VersionNumber number, const std::vector<std::uint64_t>& stamps) {
    const auto record = repository_->get({.model = "demo", .number = number});
    ASSERT_TRUE(record) << record.error().message();
    for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      const std::uint64_t elements = record->manifest.architecture->tensors()[tensor].shape[0];
      std::vector<std::uint64_t> values(elements);
      const std::vector<Repository::TensorRead> reads = {
          {.tensor = tensor, .out = std::as_writable_bytes(std::span(values))}};
      const Status status = repository_->read(*record, reads);
      ASSERT_TRUE(status) << status.error().message();
      EXPECT_EQ(values, std::vector<std::uint64_t>(elements, stamps[tensor] * 1000 + tensor))
          << number << " " << tensor;
    }
  }

  // Told last, so all else is done by then.
  bool stored(VersionNumber number) {
    return eventually([&] {
      const auto told = events();
      return !told.empty() && told.back().status && told.back().version.number >= number &&
             sink_->status().newest >= number;
    });
  }

  TemporaryFolder folder_;
  FaultBackend* faults_ = nullptr;
  std::unique_ptr<Repository> repository_;
  StampedModel model_{kTensors, 3000};
  Mutex mutex_;
  std::vector<SinkOptions::Event> events_ FRESHET_GUARDED_BY(mutex_);
  std::unique_ptr<Sink> sink_;
};

TEST_F(SinkTest, StoresEveryVersionStraightFromThePublisher) {
  const auto publisher = start_publisher();
  start_sink();
  ASSERT_TRUE(eventually([&] { return sink_->status().connected; }));
  std::vector<std::vector<std::uint64_t>> stamps;
  for (std::uint64_t stamp = 1; stamp <= 25; ++stamp) {
    const auto tensor = static_cast<std::uint32_t>(stamp % kTensors);
    model_.stamp(tensor, stamp);
    stamps.push_back(stamps.empty() ? std::vector<std::uint64_t>(kTensors, 0) : stamps.back());
    stamps.back()[tensor] = stamp;
    ASSERT_EQ(publish(*publisher, model_, {.step = stamp, .changed = Changed::only({tensor})}), stamp);
  }
  ASSERT_TRUE(stored(25));
  for (VersionNumber number = 1; number <= 25; ++number) expect_stamps(number, stamps[number - 1]);
  const SinkStatus status = sink_->status();
  EXPECT_EQ(status.stored, 25u);
  EXPECT_EQ(status.gaps, 0u);
  EXPECT_FALSE(status.failing);
  EXPECT_EQ(repository_->lineage({.model = "demo"})->size(), 25u);
  // Each segment once: all four of the first version, one of every later one.
  EXPECT_EQ(repository_->stat()->live_tensors, kTensors + 24);
}

TEST_F(SinkTest, KeepsChangesAsDifferencesAndWhatIsThereAlreadyOnce) {
  const auto bytes_kept = [this] {
    std::uint64_t sum = 0;
    EXPECT_TRUE(faults_->list_blobs([&](std::string_view, std::uint64_t bytes) {
      sum += bytes;
      return true;
    }));
    return sum;
  };
  const auto publisher = start_publisher();
  start_sink(std::chrono::milliseconds(1), true);
  ASSERT_EQ(publish(*publisher, model_), 1u);
  ASSERT_TRUE(stored(1));
  const std::uint64_t first = bytes_kept();
  // Of each element, eight bytes, two change.
  model_.stamp(1, 7);
  ASSERT_EQ(publish(*publisher, model_, {.changed = Changed::only({1})}), 2u);
  ASSERT_TRUE(stored(2));
  EXPECT_LT(bytes_kept(), first + first / kTensors / 2);
  EXPECT_EQ(repository_->stat()->live_tensors, kTensors + 1);
  // As it was before.
  model_.stamp(1, 0);
  ASSERT_EQ(publish(*publisher, model_, {.changed = Changed::only({1})}), 3u);
  ASSERT_TRUE(stored(3));
  EXPECT_EQ(repository_->stat()->live_tensors, kTensors + 1);
  expect_stamps(1, {0, 0, 0, 0});
  expect_stamps(2, {0, 7, 0, 0});
  expect_stamps(3, {0, 0, 0, 0});
}

TEST_F(SinkTest, WaitsForAPublisherAndAdoptsWhatItMissed) {
  start_sink();
  const auto publisher = start_publisher();
  EXPECT_EQ(publish(*publisher, model_), 1u);
  ASSERT_TRUE(stored(1));
  sink_.reset();
  for (std::uint64_t stamp = 2; stamp <= 4; ++stamp) {
    model_.stamp(stamp % kTensors, stamp);
    publish(*publisher, model_);
  }
  start_sink();
  ASSERT_TRUE(stored(4));
  expect_stamps(4, {4, 0, 2, 3});
  EXPECT_EQ(repository_->get({.model = "demo", .number = 2}).error().code(), Code::not_found);
  EXPECT_EQ(sink_->status().gaps, 2u);
  EXPECT_EQ(events().back().gap_before, 2u);
  model_.stamp(1, 5);
  EXPECT_EQ(publish(*publisher, model_), 5u);
  ASSERT_TRUE(stored(5));
  expect_stamps(5, {4, 5, 2, 3});
}

TEST_F(SinkTest, ARestartedSinkDoesNotStoreTwice) {
  const auto publisher = start_publisher();
  publish(*publisher, model_);
  start_sink();
  ASSERT_TRUE(stored(1));
  start_sink();
  EXPECT_EQ(sink_->status().newest, 1u);
  EXPECT_TRUE(eventually([&] { return sink_->status().published == 1; })) << "the publisher's numbers go on";
  publish(*publisher, model_);
  ASSERT_TRUE(stored(2));
  EXPECT_EQ(sink_->status().stored, 1u);
  EXPECT_EQ(repository_->versions("demo")->size(), 2u);
}

TEST_F(SinkTest, GoesOnAfterAFailureAndCatchesUp) {
  Mutex lines_mutex;
  std::vector<std::string> lines;
  set_log_hook([&](LogLevel level, const std::string& line) {
    const MutexLock lock(lines_mutex);
    lines.push_back((level == LogLevel::warning ? "warning: " : "info: ") + line);
  });
  const auto publisher = start_publisher();
  start_sink(std::chrono::hours(1));
  publish(*publisher, model_);
  ASSERT_TRUE(stored(1));
  // The disk is full while three versions come: the stream does not wait.
  for (std::uint64_t stamp = 2; stamp <= 4; ++stamp) {
    faults_->set_plan({.fault = FaultBackend::Fault::fail_once, .at = 1});
    model_.stamp(stamp % kTensors, stamp);
    EXPECT_EQ(publish(*publisher, model_), stamp);
    ASSERT_TRUE(eventually([&] { return events().size() == stamp; }));
    EXPECT_EQ(events().back().status.error().code(), Code::out_of_space);
    EXPECT_TRUE(sink_->status().failing);
    EXPECT_FALSE(sink_->status().last_error.empty());
  }
  model_.stamp(1, 5);
  EXPECT_EQ(publish(*publisher, model_), 5u);
  ASSERT_TRUE(stored(5));
  expect_stamps(5, {4, 5, 2, 3});
  EXPECT_FALSE(sink_->status().failing);
  EXPECT_EQ(sink_->status().gaps, 3u);
  EXPECT_EQ(events().back().gap_before, 3u);
  EXPECT_EQ(events().back().own_bytes, kTensors * 3000 * 8);
  // The log has the first failure and its end.
  sink_.reset();
  set_log_hook(nullptr);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("warning: the sink cannot store demo@2")) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("info: the sink stores again, demo@5 first; 3 versions")) << lines[1];
}

TEST_F(SinkTest, TheLastVersionIsTriedAgain) {
  const auto publisher = start_publisher();
  start_sink();
  publish(*publisher, model_);
  ASSERT_TRUE(stored(1));
  faults_->set_plan({.fault = FaultBackend::Fault::fail_until_recovered, .at = 2});
  model_.stamp_all(2);
  publish(*publisher, model_);
  ASSERT_TRUE(stored(2));
  expect_stamps(2, {2, 2, 2, 2});
  EXPECT_EQ(events().size(), 3u);  // Stored, failed, stored after all.
  EXPECT_FALSE(events()[1].status);
  EXPECT_EQ(sink_->status().gaps, 0u);
}

TEST_F(SinkTest, AnEndStoresWhatWasAnnounced) {
  const auto publisher = start_publisher();
  start_sink();
  ASSERT_TRUE(eventually([&] { return sink_->status().connected; }));
  constexpr VersionNumber kLast = 20;
  for (VersionNumber number = 1; number <= kLast; ++number) {
    model_.stamp_all(number);
    ASSERT_EQ(publish(*publisher, model_, {.step = number * 10, .metrics = {{"loss", 1.0 / number}}}), number);
  }
  ASSERT_TRUE(eventually([&] { return sink_->status().announced == kLast; }));
  EXPECT_TRUE(sink_->finish(std::chrono::minutes(1)));
  EXPECT_EQ(sink_->status().published, kLast);
  ASSERT_EQ(events().size(), kLast);
  EXPECT_EQ(events().back().step, kLast * 10);
  EXPECT_EQ(events().back().metrics, (Metrics{{"loss", 1.0 / kLast}}));
  for (VersionNumber number = 1; number <= kLast; ++number) expect_stamps(number, {number, number, number, number});
  // It takes no more.
  model_.stamp_all(99);
  publish(*publisher, model_);
  EXPECT_TRUE(sink_->finish(std::chrono::minutes(1)));
  EXPECT_EQ(events().size(), kLast);
}

TEST_F(SinkTest, AnEndDoesNotWaitForADiskThatIsFull) {
  const auto publisher = start_publisher();
  start_sink(std::chrono::hours(1));
  publish(*publisher, model_);
  ASSERT_TRUE(stored(1));
  faults_->set_plan({.fault = FaultBackend::Fault::fail_once, .at = 1});
  model_.stamp_all(2);
  publish(*publisher, model_);
  ASSERT_TRUE(eventually([&] { return events().size() == 2; }));
  EXPECT_FALSE(sink_->finish(std::chrono::minutes(10)));
  EXPECT_EQ(sink_->status().published, 1u);
}

TEST_F(SinkTest, APublisherThatStartsAnewContinuesTheNumbers) {
  auto publisher = start_publisher();
  start_sink();
  publish(*publisher, model_);
  ASSERT_TRUE(stored(1));
  publish(*publisher, model_);
  ASSERT_TRUE(stored(2));
  publisher = nullptr;
  publisher = start_publisher();
  model_.stamp_all(9);
  EXPECT_EQ(publish(*publisher, model_), 3u);
  ASSERT_TRUE(stored(3));
  expect_stamps(3, {9, 9, 9, 9});
  EXPECT_EQ(repository_->versions("demo")->size(), 3u);
}

TEST_F(SinkTest, ADirectoryThatForgotItsNumbersCostsNoVersion) {
  for (const bool is_sink_there_first : {false, true}) {
    const std::uint64_t base = is_sink_there_first ? 100 : 0;
    std::uint64_t stamp = base;
    {
      const auto publisher = start_publisher();
      start_sink();
      ASSERT_TRUE(eventually([&] { return sink_->status().connected; }));
      const VersionNumber before = sink_->status().newest;
      for (int i = 0; i < 3; ++i) {
        model_.stamp_all(++stamp);
        ASSERT_NE(publish(*publisher, model_), 0U);
      }
      ASSERT_TRUE(stored(before + 3));
    }
    const VersionNumber before = sink_->status().newest;
    if (!is_sink_there_first) sink_.reset();
    std::filesystem::remove(folder_ / "demo.number");  // As if the host had been started again.
    const auto publisher = start_publisher();
    ASSERT_TRUE(!is_sink_there_first || eventually([&] { return sink_->status().connected; }));
    model_.stamp_all(++stamp);
    const VersionNumber first = publish(*publisher, model_);
    ASSERT_NE(first, 0U);
    if (!is_sink_there_first) {
      start_sink();
      const SinkStatus status = sink_->status();
      EXPECT_TRUE(status.published == 0 || status.newest > before) << "numbers of before count no more";
    }
    // A version that gives way to the next before a sink first asks is one that it missed, and counts.
    ASSERT_TRUE(stored(before + 1)) << sink_->status().newest << " after " << before;
    EXPECT_EQ(sink_->status().published, first);
    EXPECT_EQ(events().back().published, first);
    model_.stamp_all(++stamp);
    ASSERT_NE(publish(*publisher, model_), 0U);
    ASSERT_TRUE(stored(before + 2)) << sink_->status().newest << " after " << before;
    expect_stamps(before + 1, std::vector<std::uint64_t>(kTensors, stamp - 1));
    expect_stamps(before + 2, std::vector<std::uint64_t>(kTensors, stamp));
    EXPECT_EQ(sink_->status().gaps, 0U);
  }
}

/// Writes no blob before the put that asks for it is to end.
class PatientBackend final : public BackendWrapper {
 public:
  explicit PatientBackend(std::latch& begun) : BackendWrapper(make_memory_backend()), begun_(begun) {}
  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    begun_.count_down();
    EXPECT_TRUE(eventually([] { return Interruption::is_wanted(); }));
    return inner().write_blobs();
  }

 private:
  std::latch& begun_;
};

TEST_F(SinkTest, ItsEndIsThatOfThePutUnderWay) {
  std::latch begun(1);
  repository_ = Repository::open(std::make_unique<PatientBackend>(begun), {}).value();
  const auto publisher = start_publisher();
  start_sink();
  ASSERT_EQ(publish(*publisher, model_), 1u);
  begun.wait();
  sink_.reset();
  EXPECT_FALSE(repository_->latest("demo"));
  EXPECT_TRUE(events().empty());
}

TEST_F(SinkTest, ABadNameIsRefused) {
  EXPECT_EQ(Sink::open(*repository_, {.model = "a/b"}).error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace freshet
