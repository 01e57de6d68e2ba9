// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/host/fibers.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/base/check.h"
#include "core/base/format.h"

// This file is compiled without the thread sanitizer (core/CMakeLists.txt): the fibers' book-keeping is shared by all
// fibers, and must order nothing. So what runs on the way from fiber to fiber uses plain arrays, whose code is here.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(FRESHET_FIBERS_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace freshet::gpu::host {
namespace {

#if defined(FRESHET_FIBERS_TSAN)
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
#else
constexpr std::size_t kStackBytes = std::size_t{64} << 10;
#endif
constexpr std::uint64_t kCanary = 0x6672657368657421;
constexpr std::uint32_t kResidentMax = 3;
/// Turns of waiting loops without anything else between them, after which nothing will come any more.
constexpr std::uint64_t kPausesMax = std::uint64_t{1} << 18;
/// One in so many atomic operations lets others go first.
constexpr std::uint64_t kAtomicsPerTurn = 4;

void order_before(void* place) {
#if defined(FRESHET_FIBERS_TSAN)
  __tsan_release(place);
#else
  static_cast<void>(place);
#endif
}
void order_after(void* place) {
#if defined(FRESHET_FIBERS_TSAN)
  __tsan_acquire(place);
#else
  static_cast<void>(place);
#endif
}

/// SplitMix64 (Steele, Lea, Flood, 2014).
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t end) {
    state_ += 0x9E3779B97F4A7C15;
    std::uint64_t x = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return (x ^ (x >> 31)) % end;
  }

 private:
  std::uint64_t state_;
};

struct Fiber;

/// Fibers that meet: a block's at a barrier, a warp's at an exchange. A fiber can be one meeting ahead of another,
/// never two; so what a meeting left is kept until the one after the next.
struct Meeting {
  std::uint32_t members = 0;
  std::uint32_t arrived = 0;
  int line = 0;
  std::uint64_t count = 0;
  std::uint32_t votes = 0;
  std::uint32_t result[2] = {};
  std::uint64_t values[2][kWarpThreads] = {};
  Fiber** waiting = nullptr;  ///< Room for all members.
};

struct Block {
  Meeting barrier;
  Meeting* warps = nullptr;
  void* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::uint32_t living = 0;
};

struct Fiber {
  ucontext_t context = {};
  std::byte* stack = nullptr;
  Position position;
  Block* block = nullptr;
  void* asan_stack = nullptr;
  void* tsan = nullptr;
};

/// A launch. Everything that is allocated is allocated before the first fiber runs, but for shared memory.
class Run {
 public:
  explicit Run(const Grid& grid) : grid_(grid), dice_(grid.seed) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run();

  Status prepare();
  Status run();

  Fiber& current() { return *current_; }
  Dice& dice() { return dice_; }
  /// Called by a fiber: comes back when the fiber is chosen again. Marks it as ready before, or somebody else does.
  void leave(bool is_ready);
  /// Waits until all members of the meeting came; returns the meeting's number.
  std::uint64_t meet(Meeting& meeting, std::uint64_t value, std::uint32_t lane, bool vote, int line);
  void count_pause(int line);
  void fiber_main();  ///< Never comes back.

 private:
  void begin_block(Block& block, std::uint32_t index);
  void begin_next_block(Block& block);
  void enter(Fiber& fiber);
  void make_ready(Fiber& fiber) { ready_[ready_count_++] = &fiber; }
  Status why_nothing_moves() const;

  const Grid grid_;
  Dice dice_;
  std::uint32_t resident_ = 0;
  std::uint32_t next_block_ = 0;
  std::uint64_t pauses_ = 0;
  int pause_line_ = 0;
  int wrong_line_ = 0;
  int expected_line_ = 0;
  bool has_failed_ = false;
  std::vector<std::uint32_t> order_;
  std::unique_ptr<Block[]> blocks_;
  std::unique_ptr<Meeting[]> warps_;
  std::unique_ptr<Fiber[]> fibers_;
  std::unique_ptr<Fiber*[]> waiting_;
  std::unique_ptr<Fiber*[]> ready_;
  std::uint32_t ready_count_ = 0;
  std::uint32_t fiber_count_ = 0;
  std::byte* stacks_ = nullptr;
  Fiber* current_ = nullptr;
  ucontext_t outside_ = {};
  void* outside_tsan_ = nullptr;
  void* outside_asan_stack_ = nullptr;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
};

thread_local Run* current_run = nullptr;

void fiber_entry() { current_run->fiber_main(); }

Run::~Run() {
  for (std::uint32_t i = 0; blocks_ && i < resident_; ++i) std::free(blocks_[i].shared);
#if defined(FRESHET_FIBERS_TSAN)
  for (std::uint32_t i = 0; fibers_ && i < fiber_count_; ++i) {
    if (fibers_[i].tsan != nullptr) __tsan_destroy_fiber(fibers_[i].tsan);
  }
#endif
  if (stacks_ != nullptr) munmap(stacks_, kStackBytes * fiber_count_);
}

Status Run::prepare() {
  resident_ = 1 + static_cast<std::uint32_t>(dice_.below(kResidentMax));
  if (resident_ > grid_.blocks) resident_ = grid_.blocks;
  fiber_count_ = resident_ * grid_.threads;
  const std::uint32_t warps = grid_.threads / kWarpThreads;

  order_.resize(grid_.blocks);
  for (std::uint32_t i = 0; i < grid_.blocks; ++i) {
    order_[i] = i;
    std::swap(order_[i], order_[dice_.below(i + 1)]);
  }
  void* const stacks = mmap(nullptr, kStackBytes * fiber_count_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stacks == MAP_FAILED) return fail_errno(errno, format("the stacks of {} emulated threads", fiber_count_));
  stacks_ = static_cast<std::byte*>(stacks);
  blocks_ = std::make_unique<Block[]>(resident_);
  warps_ = std::make_unique<Meeting[]>(std::size_t{resident_} * warps);
  fibers_ = std::make_unique<Fiber[]>(fiber_count_);
  waiting_ = std::make_unique<Fiber*[]>(std::size_t{fiber_count_} * 2);
  ready_ = std::make_unique<Fiber*[]>(fiber_count_);

  for (std::uint32_t i = 0; i < fiber_count_; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.stack = stacks_ + kStackBytes * i;
    *reinterpret_cast<std::uint64_t*>(fiber.stack) = kCanary;
    fiber.block = &blocks_[i / grid_.threads];
    fiber.position = {.thread = i % grid_.threads, .threads = grid_.threads, .block = 0, .blocks = grid_.blocks};
    getcontext(&fiber.context);
    fiber.context.uc_stack = {.ss_sp = fiber.stack, .ss_flags = 0, .ss_size = kStackBytes};
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_entry, 0);
#if defined(FRESHET_FIBERS_TSAN)
    fiber.tsan = __tsan_create_fiber(0);
#endif
  }
  for (std::uint32_t i = 0; i < resident_; ++i) {
    Block& block = blocks_[i];
    block.barrier.members = grid_.threads;
    block.barrier.waiting = &waiting_[std::size_t{i} * grid_.threads];
    block.warps = &warps_[std::size_t{i} * warps];
    for (std::uint32_t warp = 0; warp < warps; ++warp) {
      block.warps[warp].members = kWarpThreads;
      block.warps[warp].waiting = &waiting_[fiber_count_ + std::size_t{i} * grid_.threads + warp * kWarpThreads];
    }
  }
  return {};
}

void Run::begin_block(Block& block, std::uint32_t index) {
  std::free(block.shared);
  block.shared = nullptr;
  block.living = grid_.threads;
  const std::size_t first = static_cast<std::size_t>(&block - blocks_.get()) * grid_.threads;
  for (std::uint32_t i = 0; i < grid_.threads; ++i) {
    fibers_[first + i].position.block = index;
    make_ready(fibers_[first + i]);
  }
}

void Run::begin_next_block(Block& block) {
  if (next_block_ < grid_.blocks) begin_block(block, order_[next_block_++]);
}

void Run::enter(Fiber& fiber) {
  current_ = &fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&outside_asan_stack_, fiber.stack, kStackBytes);
#endif
#if defined(FRESHET_FIBERS_TSAN)
  __tsan_switch_to_fiber(fiber.tsan, __tsan_switch_to_fiber_no_sync);
#endif
  FRESHET_CHECK(swapcontext(&outside_, &fiber.context) == 0);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(outside_asan_stack_, nullptr, nullptr);
#endif
  FRESHET_CHECK(*reinterpret_cast<const std::uint64_t*>(fiber.stack) == kCanary);  // Else its stack is too small.
}

void Run::leave(bool is_ready) {
  Fiber& fiber = *current_;
  if (is_ready) make_ready(fiber);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fiber.asan_stack, outside_bottom_, outside_bytes_);
#endif
#if defined(FRESHET_FIBERS_TSAN)
  __tsan_switch_to_fiber(outside_tsan_, __tsan_switch_to_fiber_no_sync);
#endif
  FRESHET_CHECK(swapcontext(&fiber.context, &outside_) == 0);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.asan_stack, &outside_bottom_, &outside_bytes_);
#endif
}

void Run::fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &outside_bottom_, &outside_bytes_);
#endif
  Fiber& fiber = *current_;
  order_after(this);
  while (true) {
    grid_.body(grid_.arguments);
    // What follows in the same shared memory comes after all that was done there.
    order_before(fiber.block);
    order_before(this);
    pauses_ = 0;
    if (--fiber.block->living == 0) {
      order_after(fiber.block);
      begin_next_block(*fiber.block);
    }
    leave(false);
    order_after(fiber.block);
  }
}

std::uint64_t Run::meet(Meeting& meeting, std::uint64_t value, std::uint32_t lane, bool vote, int line) {
  if (meeting.arrived == 0) meeting.line = line;
  if (meeting.line != line && !has_failed_) {
    has_failed_ = true;
    wrong_line_ = line;
    expected_line_ = meeting.line;
  }
  if (has_failed_) leave(false);  // For ever.
  const std::uint64_t number = meeting.count;
  meeting.values[number % 2][lane] = value;
  meeting.votes += vote ? 1 : 0;
  meeting.waiting[meeting.arrived++] = current_;
  if (meeting.arrived == meeting.members) {
    meeting.result[number % 2] = meeting.votes;
    meeting.votes = 0;
    meeting.arrived = 0;
    ++meeting.count;
    pauses_ = 0;
    for (std::uint32_t i = 0; i < meeting.members; ++i) make_ready(*meeting.waiting[i]);
  }
  leave(false);
  return number;
}

void Run::count_pause(int line) {
  pause_line_ = line;
  if (++pauses_ > kPausesMax) {
    has_failed_ = true;
    leave(false);
  }
  leave(true);
}

Status Run::run() {
#if defined(FRESHET_FIBERS_TSAN)
  outside_tsan_ = __tsan_get_current_fiber();
#endif
  order_before(this);
  for (std::uint32_t i = 0; i < resident_; ++i) begin_next_block(blocks_[i]);
  while (ready_count_ > 0 && !has_failed_) {
    const std::uint64_t chosen = dice_.below(ready_count_);
    Fiber& fiber = *ready_[chosen];
    ready_[chosen] = ready_[--ready_count_];
    enter(fiber);
  }
  order_after(this);
  return why_nothing_moves();
}

Status Run::why_nothing_moves() const {
  if (has_failed_ && wrong_line_ != 0) {
    return fail(Code::failed_precondition, format("a kernel's threads wait for each other at line {} and at line {}",
                                                  expected_line_, wrong_line_));
  }
  if (has_failed_) {
    return fail(Code::failed_precondition, format("a kernel waits for ever at line {}", pause_line_));
  }
  for (std::uint32_t i = 0; i < resident_; ++i) {
    const Block& block = blocks_[i];
    if (block.living == 0) continue;
    int line = block.barrier.arrived > 0 ? block.barrier.line : 0;
    for (std::uint32_t warp = 0; warp < grid_.threads / kWarpThreads; ++warp) {
      if (block.warps[warp].arrived > 0) line = block.warps[warp].line;
    }
    return fail(Code::failed_precondition,
                format("{} of a block's {} threads wait at line {} for threads that do not come", block.living,
                       grid_.threads, line));
  }
  return {};
}

}  // namespace

Status run_grid(const Grid& grid) {
  FRESHET_CHECK(current_run == nullptr && grid.body != nullptr && grid.blocks > 0 && grid.threads > 0);
  FRESHET_CHECK(grid.threads % kWarpThreads == 0 && grid.threads <= kBlockThreadsMax);
  Run run(grid);
  FRESHET_TRY(run.prepare());
  current_run = &run;
  Status status = run.run();
  current_run = nullptr;
  return status;
}

const Position& position() { return current_run->current().position; }

std::uint32_t meet_block(bool vote, int line) {
  Block& block = *current_run->current().block;
  order_before(&block);
  const std::uint64_t number = current_run->meet(block.barrier, 0, 0, vote, line);
  order_after(&block);
  return block.barrier.result[number % 2];
}

namespace {

/// Waits for the warp. What its lanes gave stays until this lane meets it again.
const std::uint64_t* meet_warp(std::uint64_t value, int line) {
  const Fiber& fiber = current_run->current();
  Meeting& warp = fiber.block->warps[fiber.position.thread / kWarpThreads];
  const std::uint64_t number = current_run->meet(warp, value, fiber.position.thread % kWarpThreads, false, line);
  return warp.values[number % 2];
}

}  // namespace

std::uint32_t ballot_of_warp(bool value, int line) {
  const std::uint64_t* const values = meet_warp(value ? 1 : 0, line);
  std::uint32_t bits = 0;
  for (std::uint32_t i = 0; i < kWarpThreads; ++i) bits |= static_cast<std::uint32_t>(values[i]) << i;
  return bits;
}

std::uint64_t value_of_lane(std::uint64_t value, std::uint32_t lane, int line) { return meet_warp(value, line)[lane]; }

void synchronize_warp(int line) {
  const Fiber& fiber = current_run->current();
  Meeting* const warp = &fiber.block->warps[fiber.position.thread / kWarpThreads];
  order_before(warp);
  meet_warp(0, line);
  order_after(warp);
}

void pause(int line) { current_run->count_pause(line); }

void before_atomic() {
  if (current_run->dice().below(kAtomicsPerTurn) == 0) current_run->leave(true);
}

void* shared_memory(std::size_t bytes) {
  Block& block = *current_run->current().block;
  if (block.shared == nullptr) {
    block.shared = std::malloc(bytes);
    FRESHET_CHECK(block.shared != nullptr);
    order_before(&block.shared);  // The allocation is a write.
    block.shared_bytes = bytes;
    for (std::size_t i = 0; i < bytes; ++i) {
      static_cast<unsigned char*>(block.shared)[i] = static_cast<unsigned char>(current_run->dice().below(256));
    }
  }
  order_after(&block.shared);
  FRESHET_CHECK(block.shared_bytes == bytes);
  return block.shared;
}

}  // namespace freshet::gpu::host
