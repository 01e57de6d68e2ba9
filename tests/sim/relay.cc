#include "tests/sim/relay.h"

#include <utility>

namespace freshet::sim {

void SimRelay::start() {
  SimSubscriber::start();
  told_gaps_ = 0;
  hub_ = std::make_unique<Hub>(
      host(), process(),
      Hub::Options{.name = name_,
                   .host = kind().host,
                   .incarnation = ++host().incarnations,
                   .retained_versions = 1 + host().world.random(2),
                   .memory = own_arena().memory(),
                   .record = &record_,
                   .on_free = [this](std::span<const SegmentIndex> segments) { own_arena().give_back(segments); },
                   .on_number_floor = [this](VersionNumber floor) { see_higher(floor); }});
}

void SimRelay::kill() {
  hub_->died();
  SimSubscriber::kill();
  hub_.reset();
}

void SimRelay::on_fetched(const Mapped& mapped, const protocol::Grant& grant) {
  const std::uint64_t gaps = machine().gaps();
  const std::uint64_t missed = gaps - std::exchange(told_gaps_, gaps);
  const std::vector<SegmentIndex>& segments = mapped.fetched->plan.segments;
  protocol::CommittedVersion version{.encoded_manifest = grant.manifest, .segments = segments};
  version.manifest = mapped.manifest;
  version.places = mapped.places;
  for (const auto& slab : own_arena().memory()->slabs) version.slab_bytes.push_back(slab.size());
  version.missed_before = host().sabotage == Sabotage::forget_relay_gap ? 0 : missed;
  own_arena().lend(segments);
  hub_->commit(std::move(version));
}

}  // namespace freshet::sim
