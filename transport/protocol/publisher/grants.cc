// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/grants.h"

#include <algorithm>

#include "core/base/format.h"

namespace freshet::protocol {
namespace {

/// What a grant's envelope, numbers and alignment may take beside its vectors.
constexpr std::size_t kGrantSlackBytes = 4096;

bool fits_on_wire(const CommittedVersion& version) {
  const std::size_t bytes = version.encoded_manifest.size() + version.manifest->architecture->encoded().size() +
                            (version.places.size() + version.device_places.size()) * sizeof(SegmentPlace) +
                            (version.slab_bytes.size() + version.device_slab_bytes.size()) * sizeof(std::uint64_t);
  return version.encoded_manifest.size() <= kManifestBytesMax && version.slab_bytes.size() <= kSlabsMax &&
         version.device_slab_bytes.size() <= kSlabsMax && bytes + kGrantSlackBytes <= kMessageBytesMax;
}

std::vector<std::byte> copy_of(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

Status Grants::answer(PublisherSession& session, const Want& want, Time now) {
  FRESHET_TRY(check_readable(session, want));
  if (is_to_wait(session, want)) {
    session.waiting = want;
    return {};
  }
  FRESHET_ASSIGN(const VersionNumber number, next_for(session, want));
  if (!session.holds(number) && session.holds_count() >= options_.holds_per_session_max) {
    return fail(Code::out_of_space, format("the subscriber holds {} versions already", session.holds_count()));
  }
  if (!fits_on_wire(versions_.record_of(number).version)) {
    return fail(Code::unsupported, format("the manifest of {} is too large to be sent", number));
  }
  if (want.channel != ChannelKind::shm) FRESHET_TRY(check_lease(session, number));
  const Granting granting{.number = number, .channel = want.channel, .epoch = epoch_of(session, want)};
  const Time at = session.pace.granted_at(granting, now, options_.grant_again, options_.grants_at_once);
  if (at > now) {
    session.postponed = PublisherSession::Postponed{.want = want, .until = at};
  } else {
    send(session, want, number, now);
  }
  return {};
}

std::uint64_t Grants::epoch_of(const PublisherSession& session, const Want& want) const {
  return session.hello().mode == Mode::latest && want.exactly == 0 ? activation_.current().epoch : 0;
}

Status Grants::check_readable(const PublisherSession& session, const Want& want) const {
  if (want.channel == ChannelKind::shm) {
    if (session.door_open) return {};
    return fail(Code::failed_precondition, "the session's door is not open");
  }
  if (session.can_fetch(want.channel)) return {};
  return fail(Code::failed_precondition, format("channel {} is not common to both sides", to_string(want.channel)));
}

Status Grants::check_lease(const PublisherSession& session, VersionNumber number) const {
  if (session.lease_of(number) != 0) return {};
  // Those that are closing count too: they hold memory until the last of their bytes was sent.
  const std::size_t leases = leases_.of(session.hello().session).size();
  if (leases >= options_.leases_per_session_max) {
    return fail(Code::out_of_space,
                format("the session has {} leases, the most that one session may have: let versions go", leases));
  }
  if (session.key().empty()) return {};
  const auto leased = leases_.versions_of([&](SessionId id) {
    const auto owner = sessions_.all().find(id);
    return owner != sessions_.all().end() && owner->second.key() == session.key();
  });
  if (leased.contains(number) || leased.size() < options_.leased_versions_per_key_max) return {};
  return fail(Code::out_of_space,
              format("the sessions of this key have leases on {} versions, the most that one key may have: let "
                     "versions go",
                     leased.size()));
}

bool Grants::is_to_wait(const PublisherSession& session, const Want& want) const {
  return want.waits && want.exactly == 0 && session.hello().mode == Mode::latest &&
         !activation_.current().comes_after(want.after_epoch, want.after);
}

Result<VersionNumber> Grants::next_for(PublisherSession& session, const Want& want) {
  if (session.hello().mode == Mode::latest) return current_for(want);
  session.acknowledge(want.after, versions_);
  auto next = session.first_queued();
  while (next && *next != versions_.newest() && !fits_on_wire(versions_.find(*next)->version)) {
    session.give_up(*next, versions_);
    next = session.first_queued();
  }
  if (!next) return fail(Code::not_found, format("no version is newer than {}", want.after));
  return *next;
}

Result<VersionNumber> Grants::current_for(const Want& want) const {
  if (want.exactly != 0) {
    if (versions_.can_give(want.exactly, want.channel)) return want.exactly;
    return fail(Code::not_found, format("{}@{} is not kept here", options_.model, want.exactly));
  }
  const Current& current = activation_.current();
  if (!current.comes_after(want.after_epoch, want.after)) {
    return fail(Code::not_found, format("no version newer than {} is current", want.after));
  }
  if (versions_.can_give(current.version, want.channel)) return current.version;
  if (!current.hold) {
    return fail(Code::not_found, format("{}@{} is current, but not kept here", options_.model, current.version));
  }
  return fail(Code::not_found, format("{0}@{1} is current and held, but not kept here: subscribers that have it serve "
                                      "it, new subscribers wait for `freshet release {0}`",
                                      options_.model, current.version));
}

std::uint64_t Grants::missed_before(VersionNumber number, const PublisherSession& session, const Want& want) const {
  if (session.hello().mode != Mode::every) return 0;
  if (want.after != 0) return commits_.missed_between(want.after, number);
  if (session.hello().owed_all) return commits_.missed_from_start(number);
  if (session.first_owed() == 0 || number <= session.first_owed()) return 0;
  // The first ones gave way in the queue before the subscriber asked.
  return 1 + commits_.missed_between(session.first_owed(), number);
}

void Grants::send(PublisherSession& session, const Want& want, VersionNumber number, Time now) {
  const bool mapped = want.channel == ChannelKind::shm;
  LeaseId lease = mapped ? 0 : session.lease_of(number);
  if (!mapped && lease == 0) lease = leases_.open(session.hello().session, number, now);
  const std::uint64_t grant_id = mapped ? session.grant(number, versions_) : session.grant(number, lease);
  const HeldVersions::Record& record = versions_.record_of(number);
  const CommittedVersion& version = record.version;
  const bool maps_device = mapped && !version.device_places.empty() && version.device == session.hello().device;
  if (mapped) session.channel = maps_device ? ChannelKind::cuda_ipc : ChannelKind::shm;
  const Architecture& architecture = *version.manifest->architecture;
  const auto& known = want.known_architectures;
  const bool has_architecture = std::find(known.begin(), known.end(), architecture.digest()) != known.end();
  out_.send(session.peer(),
            Grant{.session = want.session,
                  .request = want.request,
                  .grant = grant_id,
                  .number = number,
                  .manifest = version.encoded_manifest,
                  .architecture = has_architecture ? std::vector<std::byte>() : copy_of(architecture.encoded()),
                  .places = mapped ? version.places : std::vector<SegmentPlace>(),
                  .slab_bytes = mapped ? version.slab_bytes : std::vector<std::uint64_t>(),
                  .gap_before = missed_before(number, session, want),
                  .publish_started_ns = version.publish_started_ns,
                  .announced_ns = record.announced_ns,
                  .epoch = epoch_of(session, want),
                  .channel = want.channel,
                  .lease = lease,
                  .device_places = maps_device ? version.device_places : std::vector<SegmentPlace>(),
                  .device_slab_bytes = maps_device ? version.device_slab_bytes : std::vector<std::uint64_t>()});
}

}  // namespace freshet::protocol
