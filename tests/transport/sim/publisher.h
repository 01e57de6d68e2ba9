// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The simulated publisher: the real machine (in its hub) and the real segment pool over simulated memory, driven as
/// the shell does it, with a trainer that writes random changes.

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "tests/transport/sim/hub.h"

namespace freshet::sim {

class SimPublisher : public Source {
 public:
  explicit SimPublisher(Host& host);

  Process& process() { return process_; }
  void start();
  void kill();

  /// No more versions from now on.
  void stop_training() { training_ = false; }

  const std::string& name() const override { return name_; }
  Process& server_process() override { return process_; }
  Hub* hub() override { return life_ ? &life_->hub : nullptr; }

  const protocol::PublisherMachine& machine() const { return life_->hub.machine(); }
  VersionNumber newest() const { return machine().versions().newest()->manifest->name.number; }
  std::uint64_t live_bytes() const { return life_->pool.slab_bytes() - life_->pool.free_bytes(); }
  std::uint64_t slab_bytes() const { return life_->pool.slab_bytes(); }
  std::uint64_t live_bytes_on_device() const { return life_->on_device.slab_bytes() - life_->on_device.free_bytes(); }
  /// REQUIRES: it lies in device memory.
  std::uint64_t bytes_on_device(SegmentIndex segment) const { return place_on_device(segment).bytes; }
  std::uint64_t skipped() const { return skipped_; }
  std::uint64_t shed() const { return shed_; }

 private:
  /// A version in the making: its new segments are being written.
  struct Capture {
    std::vector<std::uint32_t> tensors;
    std::vector<SegmentIndex> segments;
    std::vector<SegmentIndex> on_device;  ///< Of all these tensors, or of none.
  };
  struct Life {
    Life(Host& host, Process& process, Hub::Options options, SegmentPool::Options pool_options)
        : pool(pool_options), memory(options.memory), hub(host, process, std::move(options)) {}
    SegmentPool pool;
    SegmentPool on_device{{.limit_bytes = 0}};
    std::map<std::uint32_t, SegmentIndex> device_segments;  ///< By tensor, of the newest version.
    std::shared_ptr<ArenaMemory> memory;
    Hub hub;
    std::uint64_t sequence = 0;
    std::optional<Capture> capture;
  };

  void train();
  void begin_capture();
  bool acquire(Capture& capture, std::uint32_t tensor);
  void acquire_on_device(Capture& capture);
  void release(SegmentIndex segment);
  const SegmentPlace& place_on_device(SegmentIndex segment) const {
    return life_->on_device.place(segment & ~kOnDevice);
  }
  bool make_room(std::uint64_t bytes);
  void write(SegmentIndex segment, std::uint32_t tensor, bool second_half);
  void commit();
  void abandon(const Capture& capture);
  void break_rules();

  const std::string name_ = "trainer";
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
