// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The fields of a publisher's state under their names, once for all who write or read them: JSON on the wire, and
/// Python. What has another form in each (what is current, and durations) is not in these lists.

#include "transport/publisher.h"

namespace freshet {

/// Calls visit(name, field) for each. `Stat` is a SubscriberStat, const or not.
template <typename Stat, typename Visit>
void each_subscriber_field(Stat& stat, Visit visit) {
  visit("label", stat.label);
  visit("pid", stat.pid);
  visit("every", stat.every);
  visit("silent", stat.silent);
  visit("serving", stat.serving);
  visit("held", stat.held);
  visit("queued_versions", stat.queued_versions);
  visit("gaps", stat.gaps);
  visit("channel", stat.channel);
  visit("channel_why", stat.channel_why);
  visit("serves", stat.serves);
  visit("member", stat.member);
  visit("epoch", stat.epoch);
  visit("staged", stat.staged);
  visit("failed", stat.failed);
  visit("behind", stat.behind);
  visit("failures", stat.failures);
}

/// The same of a VersionStat; its metrics are not in the list.
template <typename Stat, typename Visit>
void each_version_field(Stat& stat, Visit visit) {
  visit("version", stat.version);
  visit("step", stat.step);
  visit("published_unix_ns", stat.published_unix_ns);
  visit("source", stat.source);
}

/// The same of a PublisherStat.
template <typename Stat, typename Visit>
void each_publisher_field(Stat& stat, Visit visit) {
  visit("model", stat.model);
  visit("newest", stat.newest);
  visit("model_bytes", stat.model_bytes);
  visit("versions_published", stat.versions_published);
  visit("versions_skipped", stat.versions_skipped);
  visit("bytes_published", stat.bytes_published);
  visit("arena_bytes", stat.arena_bytes);
  visit("arena_free_bytes", stat.arena_free_bytes);
  visit("locked_bytes", stat.locked_bytes);
  visit("device_memory_bytes", stat.device_memory_bytes);
  visit("device_memory_free_bytes", stat.device_memory_free_bytes);
  visit("device_memory_why", stat.device_memory_why);
  visit("directory", stat.directory);
  visit("candidate", stat.candidate);
  visit("activation_failure", stat.activation_failure);
}

}  // namespace freshet
