// SPDX-License-Identifier: Apache-2.0
// Streams and events.

#include <thread>

#include "core/base/interruption.h"
#include "tests/core/gpu/gpu_conformance.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kOrderBytes = 40'000;

TEST_P(GpuConformance, ACopyIsThereOnceItsEventIsDone) {
  in_many_orders([&] {
    const Memory memory = must(device_->allocate(kOrderBytes));
    const auto bytes = test::seeded_bytes(kOrderBytes, 1);
    std::vector<std::byte> back(kOrderBytes);
    const Stream stream = must(device_->create_stream());
    const Event done = must(device_->create_event());
    must(device_->copy(stream.handle(), memory.address(), bytes.data(), kOrderBytes));
    must(device_->copy(stream.handle(), back.data(), memory.address(), kOrderBytes));
    must(device_->record(done, stream.handle()));
    must(device_->wait(done, kPatience));
    EXPECT_TRUE(test::same_bytes(back, bytes));
    EXPECT_TRUE(must(device_->is_done(done)));
  });
}

TEST_P(GpuConformance, OneStreamKeepsItsOrder) {
  in_many_orders([&] {
    const Memory first = filled(kOrderBytes, 1);
    const Memory second = filled(kOrderBytes, 2);
    const Memory third = filled(kOrderBytes, 3);
    const Stream stream = must(device_->create_stream());
    must(device_->copy(stream.handle(), second.address(), first.address(), kOrderBytes));
    must(device_->copy(stream.handle(), first.address(), third.address(), kOrderBytes));
    must(device_->copy(stream.handle(), third.address(), second.address(), kOrderBytes));
    finish(stream.handle());
    expect_bytes(first.address(), kOrderBytes, 3);
    expect_bytes(second.address(), kOrderBytes, 1);
    expect_bytes(third.address(), kOrderBytes, 1);
  });
}

TEST_P(GpuConformance, AnEventOrdersTwoStreams) {
  in_many_orders([&] {
    const Memory from = filled(kOrderBytes, 1);
    const Memory between = filled(kOrderBytes, 2);
    const Memory to = filled(kOrderBytes, 3);
    const Stream one = must(device_->create_stream());
    const Stream other = must(device_->create_stream());
    const Event between_is_there = must(device_->create_event());
    must(device_->copy(one.handle(), between.address(), from.address(), kOrderBytes));
    must(device_->record(between_is_there, one.handle()));
    must(device_->make_wait(other.handle(), between_is_there.handle()));
    must(device_->copy(other.handle(), to.address(), between.address(), kOrderBytes));
    finish(other.handle());
    expect_bytes(to.address(), kOrderBytes, 1);
  });
}

TEST_P(GpuConformance, AFrameworksStreamWaitsForOurCopy) {
  in_many_orders([&] {
    const auto trainer = framework();
    const Stream step = must(trainer->create_stream());
    const Memory weights = filled(kOrderBytes, 1);
    const Memory next_weights = filled(kOrderBytes, 2);
    const Memory captured = filled(kOrderBytes, 3);
    const Stream ours = must(device_->create_stream());
    const Event event = must(device_->create_event());
    must(device_->copy(ours.handle(), captured.address(), weights.address(), kOrderBytes));
    must(device_->record(event, ours.handle()));
    must(device_->make_wait(step.handle(), event.handle()));
    must(trainer->copy(step.handle(), weights.address(), next_weights.address(), kOrderBytes));
    finish(step.handle());
    expect_bytes(captured.address(), kOrderBytes, 1);
    expect_bytes(weights.address(), kOrderBytes, 2);
  });
}

TEST_P(GpuConformance, OurStreamWaitsForAFrameworksStreamAndEvent) {
  in_many_orders([&] {
    const auto trainer = framework();
    const Stream step = must(trainer->create_stream());
    const Event stepped = must(trainer->create_event());
    const Memory gradients = filled(kOrderBytes, 1);
    const Memory weights = filled(kOrderBytes, 2);
    const Memory captured = filled(kOrderBytes, 3);
    const Stream ours = must(device_->create_stream());
    const Event queued = must(device_->create_event());
    must(trainer->copy(step.handle(), weights.address(), gradients.address(), kOrderBytes / 2));
    must(trainer->record(stepped, step.handle()));
    must(device_->make_wait(ours.handle(), stepped.handle()));  // Their event.
    must(trainer->copy(step.handle(), weights.address() + kOrderBytes / 2, gradients.address() + kOrderBytes / 2,
                       kOrderBytes - kOrderBytes / 2));
    must(device_->record(queued, step.handle()));  // Our event, in their stream.
    must(device_->make_wait(ours.handle(), queued.handle()));
    must(device_->copy(ours.handle(), captured.address(), weights.address(), kOrderBytes));
    finish(ours.handle());
    expect_bytes(captured.address(), kOrderBytes, 1);
  });
}

TEST_P(GpuConformance, DefaultStreamsTakeWork) {
  for (const std::uintptr_t number : {0, 1, 2}) {
    SCOPED_TRACE(number);
    const Memory memory = filled(kOrderBytes, 1);
    const auto bytes = test::seeded_bytes(kOrderBytes, 2);
    const StreamHandle stream = StreamHandle::of(number);
    must(device_->copy(stream, memory.address(), bytes.data(), kOrderBytes));
    finish(stream);
    expect_bytes(memory.address(), kOrderBytes, 2);
  }
}

TEST_P(GpuConformance, AnEventThatWasNeverRecordedIsDone) {
  const Event event = must(device_->create_event());
  const Stream stream = must(device_->create_stream());
  EXPECT_TRUE(must(device_->is_done(event)));
  must(device_->wait(event, std::chrono::seconds(0)));
  must(device_->make_wait(stream.handle(), event.handle()));
  finish(stream.handle());
}

TEST_P(GpuConformance, AnEventMeansItsLastRecord) {
  const Memory to = must(device_->allocate(long_bytes()));
  const Memory from = must(device_->allocate(long_bytes()));
  const Stream idle = must(device_->create_stream());
  const Stream busy = must(device_->create_stream());
  const Event event = must(device_->create_event());
  must(device_->record(event, idle.handle()));
  must(device_->wait(event, kPatience));
  queue_long_work(busy.handle(), to, from);
  must(device_->record(event, busy.handle()));
  EXPECT_FALSE(must(device_->is_done(event)));
  must(device_->wait(event, kPatience));
}

TEST_P(GpuConformance, AWaitMeansTheEventAsItWasAtTheCall) {
  const Memory to = must(device_->allocate(long_bytes()));
  const Memory from = must(device_->allocate(long_bytes()));
  const Stream idle = must(device_->create_stream());
  const Stream busy = must(device_->create_stream());
  const Stream waits = must(device_->create_stream());
  const Event event = must(device_->create_event());
  const Event later = must(device_->create_event());
  const Event busy_end = must(device_->create_event());
  must(device_->record(event, idle.handle()));
  must(device_->make_wait(waits.handle(), event.handle()));
  must(device_->record(later, waits.handle()));
  queue_long_work(busy.handle(), to, from);
  must(device_->record(event, busy.handle()));  // The wait above does not mean this.
  must(device_->record(busy_end, busy.handle()));
  must(device_->wait(later, kPatience));
  must(device_->wait(busy_end, kPatience));
}

TEST_P(GpuConformance, AnEventMayEndWhileAStreamWaitsForIt) {
  in_many_orders([&] {
    const Memory from = filled(kOrderBytes, 1);
    const Memory between = filled(kOrderBytes, 2);
    const Memory to = filled(kOrderBytes, 3);
    const Stream one = must(device_->create_stream());
    const Stream other = must(device_->create_stream());
    {
      const Event event = must(device_->create_event());
      must(device_->copy(one.handle(), between.address(), from.address(), kOrderBytes));
      must(device_->record(event, one.handle()));
      must(device_->make_wait(other.handle(), event.handle()));
    }
    must(device_->copy(other.handle(), to.address(), between.address(), kOrderBytes));
    finish(other.handle());
    expect_bytes(to.address(), kOrderBytes, 1);
  });
}

TEST_P(GpuConformance, DrainWaitsForAllStreams) {
  in_many_orders([&] {
    const Memory from = filled(kOrderBytes, 1);
    std::vector<std::vector<std::byte>> backs(3, std::vector<std::byte>(kOrderBytes));
    std::vector<Stream> streams;
    for (auto& back : backs) {
      streams.push_back(must(device_->create_stream()));
      must(device_->copy(streams.back().handle(), back.data(), from.address(), kOrderBytes));
    }
    must(device_->drain(kPatience));
    for (const auto& back : backs) EXPECT_TRUE(test::same_bytes(back, test::seeded_bytes(kOrderBytes, 1)));
  });
}

TEST_P(GpuConformance, TheEndOfAStreamWaitsForItsWork) {
  in_many_orders([&] {
    const Memory from = filled(kOrderBytes, 1);
    std::vector<std::byte> back(kOrderBytes);
    {
      const Stream stream = must(device_->create_stream());
      must(device_->copy(stream.handle(), back.data(), from.address(), kOrderBytes));
    }
    EXPECT_TRUE(test::same_bytes(back, test::seeded_bytes(kOrderBytes, 1)));
  });
}

TEST_P(GpuConformance, AWaitEndsAtItsDeadline) {
  const Memory to = must(device_->allocate(long_bytes()));
  const Memory from = must(device_->allocate(long_bytes()));
  const Stream stream = must(device_->create_stream());
  const Event event = must(device_->create_event());
  queue_long_work(stream.handle(), to, from);
  must(device_->record(event, stream.handle()));
  EXPECT_EQ(code_of(device_->wait(event, std::chrono::seconds(0))), "timed_out");
  EXPECT_EQ(code_of(device_->drain(std::chrono::seconds(0))), "timed_out");
  must(device_->wait(event, kPatience));
}

TEST_P(GpuConformance, AnInterruptionEndsAWait) {
  const Memory to = must(device_->allocate(long_bytes()));
  const Memory from = must(device_->allocate(long_bytes()));
  const Stream stream = must(device_->create_stream());
  const Event event = must(device_->create_event());
  queue_long_work(stream.handle(), to, from);
  must(device_->record(event, stream.handle()));
  {
    const Interruption wanted([] { return true; });
    EXPECT_EQ(code_of(device_->wait(event, kPatience)), "cancelled");
  }
  must(device_->wait(event, kPatience));
}

TEST_P(GpuConformance, ThreadsShareADevice) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      for (std::uint64_t round = 0; round < 8; ++round) {
        const Memory memory = filled(10'000 + i, i * 100 + round);
        if (!test::same_bytes(read(memory.address(), 10'000 + i), test::seeded_bytes(10'000 + i, i * 100 + round)))
          ++wrong[i];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace freshet::gpu
