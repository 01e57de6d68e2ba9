// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A model that a hub serves: its owner, its machine, and the memory that its versions lie in. The hub's thread.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "transport/shm/door_host.h"
#include "transport/source/fetch_desk.h"
#include "transport/zmq/hub/hub_model.h"

namespace freshet {

struct ServedModel {
  ServedModel(protocol::PublisherOptions options, HubModel& owner);

  const std::string name;
  HubModel& owner;
  std::unique_ptr<protocol::PublisherMachine> machine;
  std::shared_ptr<shm::SlabList> slabs = std::make_shared<shm::SlabList>();
  std::shared_ptr<shm::SlabList> device_slabs = std::make_shared<shm::SlabList>();
  std::shared_ptr<source::ServedSegments> segments;
  std::shared_ptr<source::ComingVersion> coming;  ///< Null when nothing is.
  bool has_changed = true;                        ///< Since its standing was told.
  Time told_at{};

  /// Before its machine hears of a version: where the version lies. `all_slabs` are all that exist.
  void take_in(const protocol::CommittedVersion& version, const std::vector<shm::SlabReference>& all_slabs);
  bool is_coming(VersionNumber number) const { return coming != nullptr && coming->number() == number; }
  /// What the lease lets its session read.
  source::FetchDesk::Lease lent(const protocol::action::OpenLease& lease) const;

  ModelStanding standing() const;
  /// It is to be told after each round of the loop where it has few sessions, else not that often; never if nothing
  /// has happened.
  Time tell_at() const;
  void tell(Standings& standings);
  Time next_tick() const { return std::min(machine->next_tick(), tell_at()); }
};

}  // namespace freshet
