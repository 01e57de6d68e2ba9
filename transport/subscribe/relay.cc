// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/relay.h"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::detail {
namespace {

/// In a directory of many hosts.
constexpr Duration kAdvertisedFor = std::chrono::seconds(15);
constexpr Duration kAdvertiseEach = std::chrono::seconds(3);

}  // namespace

struct Relay::Shown {
  Mutex mutex;
  std::vector<SegmentIndex> over FRESHET_GUARDED_BY(mutex);

  /// Let go of at the loop's next round: nobody waits for it.
  void add(const std::vector<SegmentIndex>& segments) FRESHET_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    over.insert(over.end(), segments.begin(), segments.end());
  }
  std::vector<SegmentIndex> take() FRESHET_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return std::exchange(over, {});
  }
};

Relay::Relay(Options options, std::unique_ptr<Directory::Claim> claim)
    : options_(std::move(options)), claim_(std::move(claim)), shown_(std::make_shared<Shown>()) {}

Result<std::unique_ptr<Relay>> Relay::open(Options options) {
  Directory& directory = options.hub->directory();
  std::unique_ptr<Directory::Claim> claim;
  std::uint64_t incarnation = options.unix_ns;
  const bool many_hosts = is_remote_directory(directory.text());
  if (!many_hosts) {
    auto claimed = directory.claim(options.model);
    if (!claimed && claimed.error().code() == Code::already_exists) {
      return fail(Code::already_exists,
                  format("{}; a relay beside that publisher needs a run folder of its own: set FRESHET_RUN_DIR to "
                         "another folder",
                         claimed.error().message()));
    }
    if (!claimed) return fail(std::move(claimed).error());
    claim = std::move(*claimed);
    FRESHET_ASSIGN(incarnation, claim->begin_incarnation(static_cast<std::int64_t>(options.unix_ns)));
  }
  std::unique_ptr<Relay> relay(new Relay(std::move(options), std::move(claim)));
  {
    MutexLock lock(relay->mutex_);
    relay->totals_.model = relay->options_.model;
  }
  FRESHET_TRY(relay->options_.hub->add({.model = relay->options_.model,
                                        .incarnation = incarnation,
                                        .retained_versions = relay->options_.keep_versions,
                                        .activation = {.follows = true}},
                                       *relay));
  relay->added_ = true;
  if (relay->claim_ != nullptr) {
    FRESHET_TRY(relay->claim_->advertise({.model = relay->options_.model,
                                          .pid = static_cast<std::int32_t>(::getpid()),
                                          .incarnation = incarnation,
                                          .control = relay->address()}));
  }
  if (many_hosts) {
    try {
      relay->advertiser_ = std::thread([&self = *relay] { self.keep_advertised(); });
    } catch (const std::system_error& error) {
      return fail(Code::unavailable, format("start a relay's thread: {}", error.what()));
    }
  }
  return relay;
}

Relay::~Relay() {
  if (added_) options_.hub->remove(options_.model);
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (advertiser_.joinable()) advertiser_.join();
  coming_.reset();
  take_news();
  MutexLock lock(mutex_);
  for (const auto& [ours, segment] : segments_) arena_->let_go(segment);
}

bool Relay::wait_to_advertise(VersionNumber& newest) {
  const Time deadline = system_clock().now() + kAdvertiseEach;
  MutexLock lock(mutex_);
  while (!closing_ && changed_.wait_until(mutex_, deadline)) continue;
  newest = totals_.newest;
  return !closing_;
}

void Relay::keep_advertised() {
  Directory& directory = options_.hub->directory();
  for (VersionNumber newest = 0; wait_to_advertise(newest);) {
    if (newest == 0) continue;
    static_cast<void>(directory.serve(options_.model, {.address = address(), .number = newest}, kAdvertisedFor));
  }
  static_cast<void>(directory.stop_serving(options_.model, address()));
}

void Relay::set_wake(const Wake& wake) { wake_ = &wake; }

std::shared_ptr<source::ComingVersion> Relay::expect(std::shared_ptr<const Manifest> manifest,
                                                     const std::shared_ptr<FetchArena>& arena) {
  const VersionNumber number = manifest->name.number;
  if (number <= newest_ || number == unproved_) return nullptr;
  {
    MutexLock lock(mutex_);
    arena_ = arena;
  }
  return std::make_shared<source::ComingVersion>(
      std::move(manifest),
      source::ComingVersion::Events{
          .on_more = [hub = options_.hub.get()] { hub->channels().look_again(); },
          .on_over = [shown = shown_](const std::vector<SegmentIndex>& segments) { shown->add(segments); }});
}

void Relay::offer(std::shared_ptr<source::ComingVersion> coming, std::int64_t publish_started_ns) {
  coming_ = std::move(coming);
  const std::shared_ptr<const Manifest> manifest(coming_, &coming_->manifest());
  options_.hub->coming(options_.model,
                       {.manifest = manifest,
                        .encoded_manifest = encode(*manifest),
                        .segments = {},
                        .places = {},
                        .slab_bytes = {},
                        .publish_started_ns = publish_started_ns},
                       coming_);
}

void Relay::withdraw(const Error& why) {
  if (coming_ == nullptr) return;
  const std::shared_ptr<source::ComingVersion> coming = std::exchange(coming_, nullptr);
  if (why.code() == Code::corrupt) unproved_ = coming->number();
  coming->give_up(Error(Code::unavailable,
                        format("the fetch of {} was given up: {}", to_string(coming->manifest().name), why.message())));
  options_.hub->not_coming(options_.model, coming->number());
}

std::shared_ptr<const ModelStanding> Relay::take_followers() {
  auto standing = options_.hub->standing(options_.model);
  if (standing == followers_) return nullptr;
  followers_ = standing;
  return standing;
}

Relay::TakenIn Relay::take_in(const FetchedMemory& fetched, bool is_newest) {
  const std::vector<SegmentIndex>& segments = fetched.version().segments;
  std::unordered_map<SegmentIndex, SegmentIndex> newest;
  TakenIn taken;
  std::vector<SegmentIndex>& ours = taken.segments;
  MutexLock lock(mutex_);
  arena_ = fetched.arena();
  for (const SegmentIndex segment : segments) {
    // The hub keeps the newest version until the next one is there: what both name goes on being the same.
    if (const auto known = newest_of_.find(segment); known != newest_of_.end()) {
      ours.push_back(known->second);
    } else if (const auto again = newest.find(segment); again != newest.end()) {
      ours.push_back(again->second);
    } else {
      SegmentIndex fresh = next_;
      if (unused_.empty()) {
        ++next_;
      } else {
        fresh = unused_.back();
        unused_.pop_back();
      }
      arena_->refer(segment);
      segments_[fresh] = segment;
      ours.push_back(fresh);
      taken.fresh.push_back(fresh);
    }
    newest[segment] = ours.back();
  }
  if (is_newest) newest_of_ = std::move(newest);
  return taken;
}

void Relay::commit(const ServedVersion& version, std::uint64_t missed, std::int64_t publish_started_ns) {
  // What is mapped from a publisher of this host is there for its neighbours too; and a hub's numbers grow.
  if (version.fetched == nullptr || version.number() == newest_) return;
  const bool is_newest = version.number() > newest_;
  if (is_newest) {
    newest_ = version.number();
    coming_.reset();
    if (claim_ != nullptr) static_cast<void>(claim_->record_number(newest_));
  }
  const FetchedMemory& fetched = *version.fetched;
  TakenIn taken = take_in(fetched, is_newest);
  protocol::CommittedVersion committed{.manifest = version.manifest,
                                       .encoded_manifest = encode(*version.manifest),
                                       .segments = std::move(taken.segments),
                                       .places = fetched.arena()->places(fetched.version().segments),
                                       .publish_started_ns = publish_started_ns,
                                       .missed_before = missed};
  std::vector<SlabReference> slabs = fetched.arena()->slabs();
  for (const SlabReference& slab : slabs) committed.slab_bytes.push_back(slab.bytes);
  {
    const SlabArena::Stat arena = fetched.arena()->stat();
    MutexLock lock(mutex_);
    totals_.newest = newest_;
    if (is_newest) note_version(totals_, *version.manifest, /*source=*/"");
    totals_.model_bytes = version.manifest->architecture->bytes();
    if (is_newest) ++totals_.versions_published;
    totals_.bytes_published += version.update.bytes_fetched;
    totals_.arena_bytes = arena.arena_bytes;
    totals_.arena_free_bytes = arena.arena_free_bytes;
    totals_.locked_bytes = arena.locked_bytes;
  }
  if (!is_newest) {
    return options_.hub->restore(options_.model, std::move(committed), std::move(slabs), std::move(taken.fresh));
  }
  options_.hub->commit(options_.model, std::move(committed), std::move(slabs), [] {});
}

void Relay::make_room(std::uint64_t bytes) { options_.hub->shed_queues(options_.model, bytes); }

VersionNumber Relay::take_news() {
  std::vector<SegmentIndex> free;
  std::shared_ptr<FetchArena> arena;
  {
    MutexLock lock(mutex_);
    arena = arena_;
    for (const SegmentIndex ours : std::exchange(freed_, {})) {
      const auto segment = segments_.find(ours);
      FRESHET_CHECK(segment != segments_.end());
      free.push_back(segment->second);
      segments_.erase(segment);
      unused_.push_back(ours);
    }
  }
  if (!free.empty()) arena->let_go(free);
  if (const std::vector<SegmentIndex> over = shown_->take(); !over.empty()) arena->let_go(over);
  return floor_;
}

void Relay::on_free(std::span<const SegmentIndex> segments) {
  {
    MutexLock lock(mutex_);
    freed_.insert(freed_.end(), segments.begin(), segments.end());
  }
  if (const Wake* wake = wake_) wake->wake();
}

std::vector<Bytes> Relay::bytes_of(std::span<const SegmentIndex> segments) const {
  std::vector<Bytes> memory;
  MutexLock lock(mutex_);
  for (const SegmentIndex ours : segments) {
    memory.push_back(arena_->bytes(segments_.at(ours)));
  }
  return memory;
}

void Relay::on_number_floor(VersionNumber floor) {
  const bool is_news = floor_.exchange(floor) != floor;
  const Wake* wake = wake_;
  if (is_news && wake != nullptr) wake->wake();
}

PublisherStat Relay::stat(const std::vector<SubscriberStat>& sessions) const {
  PublisherStat stat;
  {
    MutexLock lock(mutex_);
    stat = totals_;
  }
  stat.subscribers = sessions;
  return stat;
}

}  // namespace freshet::detail
