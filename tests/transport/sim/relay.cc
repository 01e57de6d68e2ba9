// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/relay.h"

#include <utility>

namespace freshet::sim {

void SimRelay::start() {
  SimSubscriber::start();
  token_ = std::make_shared<int>(0);
  told_gaps_ = 0;
  hub_ = std::make_unique<Hub>(
      host(), process(),
      Hub::Options{.name = name_,
                   .host = kind().host,
                   .incarnation = ++host().incarnations,
                   .retained_versions = 1 + host().world.random(2),
                   .memory = own_arena().memory(),
                   .follows = true,
                   .record = &record_,
                   .on_free = [this](std::span<const SegmentIndex> segments) { own_arena().give_back(segments); },
                   .on_number_floor = [this](VersionNumber floor) { see_higher(floor); }});
}

void SimRelay::kill() {
  hub_->died();
  token_.reset();
  coming_.reset();
  SimSubscriber::kill();
  hub_.reset();
}

std::shared_ptr<Coming> SimRelay::offer(const protocol::Grant& grant, const std::shared_ptr<const Manifest>& manifest,
                                        const OwnArena::Plan& plan, const ConnectionPointer& from) {
  const VersionTable::Entry* newest = hub_->machine().versions().newest();
  if (newest != nullptr && newest->manifest->name.number >= grant.number) return nullptr;
  auto coming = std::make_shared<Coming>();
  coming->version = {.manifest = manifest, .encoded_manifest = grant.manifest, .segments = plan.segments};
  coming->from = from;
  for (const SegmentIndex segment : plan.segments) {
    coming->version.places.push_back(own_arena().place(segment));
    coming->came.push_back(coming->version.places.back().bytes);
  }
  for (const std::uint32_t tensor : plan.missing) coming->came[tensor] = 0;
  own_arena().show(plan.segments);
  coming->on_gone = [this, segments = plan.segments, token = std::weak_ptr<int>(token_)] {
    if (token.lock() != nullptr) own_arena().unshow(segments);
  };
  coming_ = coming;
  if (host().sabotage == Sabotage::map_what_is_coming) {
    protocol::CommittedVersion early = coming->version;
    for (const auto& slab : own_arena().memory()->slabs) early.slab_bytes.push_back(slab.size());
    own_arena().lend(early.segments);
    hub_->commit(std::move(early));
    return coming;
  }
  hub_->current_seen(machine().news().current());
  hub_->coming(coming);
  return coming;
}

void SimRelay::withdraw() {
  const std::shared_ptr<Coming> coming = std::exchange(coming_, nullptr);
  if (coming == nullptr || host().sabotage == Sabotage::never_withdraw) return;
  coming->over = true;
  hub_->not_coming(coming->version.manifest->name.number);
  hub_->data().look_again();
}

void SimRelay::on_fetched(const Mapped& mapped, const protocol::Grant& grant) {
  const std::uint64_t gaps = machine().position().gaps();
  const std::uint64_t missed = gaps - std::exchange(told_gaps_, gaps);
  const std::vector<SegmentIndex>& segments = mapped.fetched->plan.segments;
  protocol::CommittedVersion version{.encoded_manifest = grant.manifest, .segments = segments};
  version.manifest = mapped.manifest;
  version.places = mapped.places;
  for (const auto& slab : own_arena().memory()->slabs) version.slab_bytes.push_back(slab.size());
  version.missed_before = host().sabotage == Sabotage::forget_relay_gap ? 0 : missed;
  coming_.reset();
  hub_->current_seen(machine().news().current());
  if (host().sabotage == Sabotage::map_what_is_coming) return;
  own_arena().lend(segments);
  hub_->commit(std::move(version));
}

}  // namespace freshet::sim
