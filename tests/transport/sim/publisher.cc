// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/publisher.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::sim {

using std::chrono::milliseconds;

namespace {

std::uint64_t model_bytes(const Architecture& architecture) { return architecture.bytes(); }

}  // namespace

SimPublisher::SimPublisher(Host& host) : host_(host), process_(host.world) {
  for (const TensorSpec& spec : host_.architecture->tensors()) weights_.emplace_back(spec.bytes());
}

void SimPublisher::start() {
  process_.start();
  if (host_.faults && host_.world.chance(0.1)) {
    host_.last_number = 0;
    host_.current = {};
    host_.lost_directory = true;
  }
  const std::uint64_t copies = (host_.refusals ? 2 + host_.subscribers.size() : 2) + host_.world.random(5);
  const auto free = [this](std::span<const SegmentIndex> segments) {
    for (const SegmentIndex segment : segments) release(segment);
  };
  life_ =
      std::make_unique<Life>(host_, process_,
                             Hub::Options{.name = name_,
                                          .host = "here",
                                          .incarnation = ++host_.incarnations,
                                          .retained_versions = host_.world.chance(0.5) ? 1 : 1 + host_.world.random(4),
                                          .memory = std::make_shared<ArenaMemory>(),
                                          .record = &host_.current,
                                          .on_free = free},
                             SegmentPool::Options{.limit_bytes = copies * model_bytes(*host_.architecture)});
  if (host_.world.chance(0.7)) {
    // One slab, of one to four copies, so that some versions find no room there.
    const std::uint64_t bytes = (1 + host_.world.random(4)) * model_bytes(*host_.architecture);
    life_->on_device.raise_limit(bytes);
    FRESHET_CHECK(life_->on_device.add_slab(bytes).has_value());
    life_->memory->on_device = std::make_shared<ArenaMemory>();
    life_->memory->on_device->slabs.emplace_back(bytes);
  }
  for (std::uint32_t tensor = 0; tensor < weights_.size(); ++tensor) changed_.insert(tensor);
  process_.post(milliseconds(1), [this] { train(); });
}

void SimPublisher::kill() {
  life_->hub.died();
  process_.kill();
  life_.reset();
}

void SimPublisher::train() {
  World& world = host_.world;
  process_.post(world.between(milliseconds(5), milliseconds(200)), [this] { train(); });
  if (!training_ || life_->capture) return;
  const std::uint64_t changes = 1 + world.random(weights_.size());
  for (std::uint64_t i = 0; i < changes; ++i) {
    const auto tensor = static_cast<std::uint32_t>(world.random(weights_.size()));
    for (std::byte& byte : weights_[tensor]) byte = static_cast<std::byte>(world.random(256));
    changed_.insert(tensor);
  }
  begin_capture();
}

void SimPublisher::begin_capture() {
  Capture capture;
  for (const std::uint32_t tensor : changed_) {
    if (acquire(capture, tensor)) continue;
    ++skipped_;
    return abandon(capture);
  }
  acquire_on_device(capture);
  for (std::size_t i = 0; i < capture.tensors.size(); ++i) write(capture.segments[i], capture.tensors[i], false);
  life_->capture = std::move(capture);
  break_rules();
  process_.post(host_.world.between(Duration(0), milliseconds(4)), [this] { commit(); });
}

bool SimPublisher::acquire(Capture& capture, std::uint32_t tensor) {
  const std::uint64_t bytes = weights_[tensor].size();
  auto segment = life_->pool.acquire(tensor, bytes);
  if (!segment && make_room(bytes)) segment = life_->pool.acquire(tensor, bytes);
  if (!segment) return false;
  capture.tensors.push_back(tensor);
  capture.segments.push_back(*segment);
  return true;
}

void SimPublisher::release(SegmentIndex segment) {
  if ((segment & kOnDevice) == 0) return life_->pool.release(segment);
  life_->on_device.release(segment & ~kOnDevice);
}

void SimPublisher::acquire_on_device(Capture& capture) {
  if (life_->memory->on_device == nullptr) return;
  for (const std::uint32_t tensor : capture.tensors) {
    const auto segment = life_->on_device.acquire(tensor, weights_[tensor].size());
    if (!segment) {
      for (const SegmentIndex taken : std::exchange(capture.on_device, {})) release(taken);
      return;
    }
    capture.on_device.push_back(*segment | kOnDevice);
  }
  for (std::size_t i = 0; i < capture.tensors.size(); ++i) {
    const std::uint32_t tensor = capture.tensors[i];
    const SegmentPlace& place = place_on_device(capture.on_device[i]);
    host_.check_write(*life_->memory->on_device, place, tensor);
    std::ranges::copy(weights_[tensor], life_->memory->on_device->at(place).begin());
  }
}

bool SimPublisher::make_room(std::uint64_t bytes) {
  const std::uint64_t slab = model_bytes(*host_.architecture);
  if (life_->pool.add_slab(slab)) {
    life_->memory->slabs.emplace_back(slab);
    return true;
  }
  ++shed_;
  life_->hub.shed(bytes);
  return true;
}

void SimPublisher::write(SegmentIndex segment, std::uint32_t tensor, bool second_half) {
  SegmentPlace place = life_->pool.place(segment);
  const std::uint64_t half = place.bytes / 2;
  place.offset += second_half ? half : 0;
  place.bytes = second_half ? place.bytes - half : half;
  host_.check_write(*life_->memory, place, tensor);
  const auto from = weights_[tensor].begin() + static_cast<std::ptrdiff_t>(second_half ? half : 0);
  std::copy_n(from, place.bytes, life_->memory->at(place).begin());
}

void SimPublisher::abandon(const Capture& capture) {
  for (const SegmentIndex segment : capture.segments) release(segment);
}

void SimPublisher::commit() {
  Life& life = *life_;
  const Capture capture = *std::exchange(life.capture, std::nullopt);
  for (std::size_t i = 0; i < capture.tensors.size(); ++i) write(capture.segments[i], capture.tensors[i], true);

  VersionNumber number = std::max(host_.last_number, machine().number_floor()) + 1;
  if (host_.faults && host_.world.chance(0.02)) ++number;  // One was given to a capture that came to nothing.
  host_.last_number = number;
  const VersionId id{.run = {.high = 7, .low = 9}, .incarnation = life.hub.incarnation(), .sequence = ++life.sequence};
  const VersionTable::Entry* base = machine().versions().newest();
  Manifest manifest{.name = {.model = kModel, .number = number}, .id = id, .architecture = host_.architecture};
  manifest.owners = base == nullptr ? OwnerMap::all_written_by(id, weights_.size())
                                    : base->manifest->owners.with_written(id, capture.tensors);
  for (const TensorBytes& bytes : weights_) manifest.digests.push_back(digest_of(bytes));

  protocol::CommittedVersion version{.encoded_manifest = encode(manifest)};
  version.manifest = std::make_shared<const Manifest>(std::move(manifest));
  version.segments = base == nullptr ? std::vector<SegmentIndex>(weights_.size()) : base->segments;
  version.segments.resize(weights_.size());
  for (std::size_t i = 0; i < capture.tensors.size(); ++i) {
    life.pool.seal(capture.segments[i]);
    version.segments[capture.tensors[i]] = capture.segments[i];
    life.device_segments.erase(capture.tensors[i]);
    if (capture.on_device.empty()) continue;
    life.on_device.seal(capture.on_device[i] & ~kOnDevice);
    life.device_segments[capture.tensors[i]] = capture.on_device[i];
  }
  for (const SegmentIndex segment : version.segments) version.places.push_back(life.pool.place(segment));
  if (!life.device_segments.empty()) {
    version.device = kDevice;
    version.device_places.resize(weights_.size());
    version.device_slab_bytes = {life.memory->on_device->slabs[0].size()};
  }
  for (const auto& [tensor, segment] : life.device_segments) {
    version.device_places[tensor] = place_on_device(segment);
    version.segments.push_back(segment);
  }
  for (const auto& slab : life.memory->slabs) version.slab_bytes.push_back(slab.size());
  changed_.clear();
  host_.oracle.committed(number, id.incarnation, weights_);
  life.hub.commit(std::move(version));
}

void SimPublisher::break_rules() {
  if (host_.sabotage == Sabotage::reuse_device_memory && !life_->device_segments.empty()) {
    const auto& [tensor, segment] = *life_->device_segments.begin();
    host_.check_write(*life_->memory->on_device, place_on_device(segment), tensor);
  }
  if (host_.sabotage != Sabotage::write_in_place || !host_.world.chance(0.3)) return;
  if (const auto* newest = machine().versions().newest()) {
    life_->memory->at(life_->pool.place(newest->segments[0]))[0] ^= std::byte{1};
  }
}

}  // namespace freshet::sim
