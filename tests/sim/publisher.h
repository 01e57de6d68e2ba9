#pragma once

/// The simulated publisher: the real machine and the real segment pool over simulated memory, driven as the shell does
/// it, with a trainer that writes random changes.

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "tests/sim/host.h"
#include "transport/protocol/publisher_machine.h"

namespace freshet::sim {

class SimPublisher {
 public:
  explicit SimPublisher(Host& host);

  Process& process() { return process_; }
  void start();
  void kill();

  /// No more versions from now on.
  void stop_training() { training_ = false; }

  void receive(const protocol::Peer& peer, const protocol::Message& message);
  /// A connection to the door named `door`.
  void knock(const std::string& door, SimSubscriber& subscriber, protocol::SessionId session, std::uint64_t token);
  /// The kernel closes every end that a dead process had.
  void reader_died(const SimSubscriber& subscriber, std::uint64_t life);
  void hang_up(const std::string& door, protocol::SessionId session);

  std::shared_ptr<ArenaMemory> memory() const { return life_->memory; }
  const protocol::PublisherMachine& machine() const { return life_->machine; }
  std::uint64_t live_bytes() const { return life_->pool.slab_bytes() - life_->pool.free_bytes(); }
  std::uint64_t slab_bytes() const { return life_->pool.slab_bytes(); }
  std::uint64_t skipped() const { return skipped_; }
  std::uint64_t shed() const { return shed_; }

 private:
  /// A version in the making: its new segments are being written.
  struct Capture {
    std::vector<std::uint32_t> tensors;
    std::vector<SegmentIndex> segments;
  };
  struct DoorEnd {
    SimSubscriber* subscriber = nullptr;
    std::uint64_t subscriber_life = 0;
  };
  struct Life {
    Life(protocol::PublisherMachine::Options options, SegmentPool::Options pool_options)
        : machine(std::move(options)), pool(pool_options) {}
    protocol::PublisherMachine machine;
    SegmentPool pool;
    std::shared_ptr<ArenaMemory> memory = std::make_shared<ArenaMemory>();
    std::uint64_t incarnation = 0;
    std::string door;
    std::uint64_t sequence = 0;
    std::optional<Capture> capture;
    std::map<protocol::SessionId, DoorEnd> doors;
    std::uint64_t ticks = 0;
  };

  void train();
  void begin_capture();
  bool acquire(Capture& capture, std::uint32_t tensor);
  bool make_room(std::uint64_t bytes);
  void write(SegmentIndex segment, std::uint32_t tensor, bool second_half);
  void commit();
  void abandon(const Capture& capture);
  void pump();
  void carry_out(const protocol::action::Send& send);
  void carry_out(const protocol::action::Announce& announce);
  void carry_out(const protocol::action::Free& free);
  void carry_out(const protocol::action::CloseDoor& close);
  void carry_out(const protocol::action::OpenLease&) {}
  void carry_out(const protocol::action::CloseLease&) {}
  void carry_out(const protocol::action::SwapCurrent& swap);
  void break_rules();

  Host& host_;
  Process process_;
  std::unique_ptr<Life> life_;
  std::vector<TensorBytes> weights_;  ///< The trainer's own.
  std::set<std::uint32_t> changed_;   ///< Since the last version.
  bool training_ = true;
  std::uint64_t skipped_ = 0;
  std::uint64_t shed_ = 0;
};

}  // namespace freshet::sim
