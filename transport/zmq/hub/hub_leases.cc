// SPDX-License-Identifier: Apache-2.0
#include "core/base/check.h"
#include "transport/zmq/hub/publisher_hub.h"

// What the hub does with leases: it opens and closes them at the desk, and tells the machines what is fetched.

namespace freshet {

void PublisherHub::open_lease(Model& model, const protocol::action::OpenLease& lease) {
  if (lease.coming) {
    FRESHET_CHECK(model.coming != nullptr && model.coming->number() == lease.number);
    const auto manifest = std::shared_ptr<const Manifest>(model.coming, &model.coming->manifest());
    return desk_.open_lease(lease.lease, {.session = lease.session,
                                          .manifest = manifest,
                                          .tensors = {},
                                          .segments = model.segments,
                                          .coming = model.coming});
  }
  const VersionTable::Entry* version = model.machine->versions().find(lease.number);
  FRESHET_CHECK(version != nullptr);
  desk_.open_lease(lease.lease, {.session = lease.session,
                                 .manifest = version->manifest,
                                 .tensors = model.owner->bytes_of(version->segments),
                                 .segments = model.segments,
                                 .coming = nullptr});
}

void PublisherHub::close_lease(const protocol::action::CloseLease& lease) {
  // First: a read that began after the cut would never be cut off.
  desk_.close_lease(lease.lease);
  if (lease.by_force) cut_off(lease.session);
}

void PublisherHub::cut_off(protocol::SessionId session) {
  for (const auto& server : channels_) server->cut_off(session);
}

void PublisherHub::on_lease_closed(protocol::LeaseId lease) {
  post([this, lease] {
    // Only the model that gave it out knows it.
    for (auto& [name, model] : models_) {
      model.machine->on_lease_closed(lease, system_clock().now());
      carry_out(model);
    }
  });
}

/// Only the model that gave a lease out knows it.
void PublisherHub::note_fetched() {
  for (const auto& [lease, bytes] : desk_.take_sent()) {
    for (auto& [name, model] : models_) model.machine->on_fetched(lease, bytes, system_clock().now());
  }
}

}  // namespace freshet
