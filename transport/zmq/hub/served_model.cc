// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/hub/served_model.h"

#include <utility>

#include "core/base/check.h"

namespace freshet {
namespace {

constexpr std::size_t kSessionsToldAtOnce = 64;
constexpr Duration kTellingPause = std::chrono::milliseconds(50);

/// Only these are sent by data channels.
std::span<const SegmentIndex> in_host_memory(std::span<const SegmentIndex> segments, const Manifest& manifest) {
  return segments.first(manifest.owners.size());
}

}  // namespace

ServedModel::ServedModel(protocol::PublisherOptions options, HubModel& its_owner)
    : name(options.model),
      owner(its_owner),
      machine(std::make_unique<protocol::PublisherMachine>(std::move(options))),
      segments(
          source::ServedSegments::make([&its_owner](std::span<const SegmentIndex> free) { its_owner.on_free(free); })) {
}

void ServedModel::take_in(const protocol::CommittedVersion& version, const std::vector<shm::SlabReference>& all_slabs) {
  slabs->clear();
  device_slabs->clear();
  for (const shm::SlabReference& slab : all_slabs) {
    (slab.memory == MemoryKind::device ? device_slabs : slabs)->push_back(slab);
  }
  const std::span<const SegmentIndex> of_host = in_host_memory(version.segments, *version.manifest);
  segments->add(version.manifest->owners.owners(), of_host, owner.bytes_of(of_host));
}

source::FetchDesk::Lease ServedModel::lent(const protocol::action::OpenLease& lease) const {
  if (lease.coming) {
    FRESHET_CHECK(is_coming(lease.number));
    const auto manifest = std::shared_ptr<const Manifest>(coming, &coming->manifest());
    return {.session = lease.session, .manifest = manifest, .tensors = {}, .segments = segments, .coming = coming};
  }
  const VersionTable::Entry* version = machine->versions().find(lease.number);
  FRESHET_CHECK(version != nullptr);
  return {.session = lease.session,
          .manifest = version->manifest,
          .tensors = owner.bytes_of(in_host_memory(version->segments, *version->manifest)),
          .segments = segments,
          .coming = nullptr};
}

ModelStanding ServedModel::standing() const {
  const protocol::Activation& activation = machine->activation();
  const VersionNumber current = activation.current().version;
  return {.at = machine->settled_at(),
          .sessions = machine->sessions(),
          .current = activation.current(),
          .current_kept = current == 0 || machine->versions().find(current) != nullptr,
          .candidate = activation.candidate(),
          .activation_failure = activation.last_failure(),
          .mixed = activation.last_mixed()};
}

void ServedModel::tell(Standings& standings) {
  has_changed = false;
  told_at = system_clock().now();
  standings.tell(name, std::make_shared<const ModelStanding>(standing()));
}

Time ServedModel::tell_at() const {
  if (!has_changed) return Time::max();
  return machine->sessions_count() <= kSessionsToldAtOnce ? told_at : told_at + kTellingPause;
}

}  // namespace freshet
