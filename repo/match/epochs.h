// SPDX-License-Identifier: Apache-2.0
#pragma once

/// When the index may free what readers might still look at: epochs (Fraser, "Practical lock-freedom", 2004), with one
/// writer. Readers never wait for the writer, and the writer never waits for readers.
///
/// The writer publishes a view of the index for each epoch. A reader claims a slot, writes into it the newest epoch
/// that it knows, and then loads the view. What the writer unlinked in making epoch e is freed when every slot that is
/// in use says e or later. Why no reader sees it then (all operations named here are sequentially consistent, so they
/// have one order S):
///   reader:  (1) slot := epoch       (2) load the view
///   writer:  (a) view := that of e   (b) epoch := e       (c) look at every slot
/// A reader that (c) does not see comes in S after it, so its (2) comes after (a). A reader whose slot says e or later
/// saw (b), so its (2) comes after (a) as well. Either way the view that it got is of e or later.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace freshet::detail {

/// enter() and leave(): any thread. oldest() and advance(): the writer.
class Epochs {
 public:
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};

  /// A reader, while it lives: what it loads after it was made stays until it is gone.
  class Reader {
   public:
    explicit Reader(Epochs& epochs) : slot_(epochs.claim()) {}
    ~Reader() { slot_.store(kNobody, std::memory_order_release); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    std::atomic<std::uint64_t>& slot_;
  };

  /// REQUIRES: the view of `epoch` is published.
  void advance(std::uint64_t epoch) { epoch_.store(epoch); }
  /// The least epoch that a reader might have begun in; kNobody when there is no reader.
  std::uint64_t oldest() const;

 private:
  /// More than there are processors, so that a reader finds one at once; who does not yields until it does.
  static constexpr std::size_t kSlots = 128;
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> epoch{kNobody};
  };

  std::atomic<std::uint64_t>& claim();

  std::atomic<std::uint64_t> epoch_{0};
  std::array<Slot, kSlots> slots_;
};

/// What is to be done when no reader can see something any more, in the order in which it was left here. Owned by the
/// writer; what is left at the end is run by the destructor, when there are no readers.
class Deferred {
 public:
  /// REQUIRES: epochs grow from call to call.
  void after(std::uint64_t epoch, std::function<void()> action) { waiting_.push_back({epoch, std::move(action)}); }
  /// Runs what waits for epochs up to `oldest`. Actions may leave new ones, of later epochs.
  void run(std::uint64_t oldest) {
    while (!waiting_.empty() && waiting_.front().epoch <= oldest) {
      const std::function<void()> action = std::move(waiting_.front().action);
      waiting_.pop_front();
      action();
    }
  }
  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }

 private:
  struct Waiting {
    std::uint64_t epoch = 0;
    std::function<void()> action;
  };
  std::deque<Waiting> waiting_;
};

}  // namespace freshet::detail
