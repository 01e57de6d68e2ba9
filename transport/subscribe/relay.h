// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A subscriber that serves again what it fetched: each version that it installs is committed, with the same manifest
/// and number, to a hub of its own, out of the memory that it was fetched into. So a host fetches a version once and
/// its neighbours map it, and hosts further on fetch from here.
///
/// What it is about to install it offers to those who fetch from it, as it comes (serve/coming_version.h), so that a
/// chain of relays takes hardly longer than one hop. Neighbours, who map it, have to wait until it was proved.
///
/// The hub's books know a segment by a number of the relay's own, one for each time that the hub takes it in: each such
/// number refers to the arena's segment until the hub says that it is free, exactly once, however the two sides' news
/// cross.
///
/// Owned by the subscriber's loop thread, but for HubModel's part.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/wake.h"
#include "transport/directory/directory.h"
#include "transport/subscribe/served_version.h"
#include "transport/zmq/hub/publisher_hub.h"

namespace freshet::detail {

class Relay final : public HubModel {
 public:
  struct Options {
    std::string model;
    std::shared_ptr<PublisherHub> hub;
    std::size_t keep_versions = 2;
    std::uint64_t unix_ns = 0;  ///< Now; its incarnation is begun with it.
  };
  /// Claims the model's name in the hub's directory when that is one of this host: neighbours then find the relay as
  /// they would find the publisher. already_exists when a publisher or relay of this host has the name.
  static Result<std::unique_ptr<Relay>> open(Options options);
  /// Cuts off whoever fetches; those who map keep what they have.
  ~Relay() override;

  /// To be woken when take_news() has something. Before the first commit.
  void set_wake(const Wake& wake);

  /// A version is about to be fetched into `arena`: where to show what comes of it. Null when nobody may fetch it from
  /// here: one that is no newer than what was served, or that once did not prove to be what its manifest says.
  std::shared_ptr<source::ComingVersion> expect(std::shared_ptr<const Manifest> manifest,
                                                const std::shared_ptr<FetchArena>& arena);
  /// The fetch has begun, and can be followed.
  void offer(std::shared_ptr<source::ComingVersion> coming, std::int64_t publish_started_ns);
  /// The fetch came to nothing.
  void withdraw(const Error& why);

  /// Serves it from now on; an older one than the newest is one that was gone back to. `missed`: versions before it
  /// that never came here.
  void commit(const ServedVersion& version, std::uint64_t missed, std::int64_t publish_started_ns);
  /// Those who follow it, as they stood a moment ago; null when nothing has changed since the last call.
  std::shared_ptr<const ModelStanding> take_followers();
  /// That pair is current upstream, and so for everybody downstream.
  void follow(const protocol::Current& pair) { options_.hub->current_seen(options_.model, pair); }
  /// Gives up queued and retained versions until `bytes` were freed, or nothing is left to give up.
  void make_room(std::uint64_t bytes);
  /// Lets go of what the hub freed. The highest number that anybody downstream has seen.
  VersionNumber take_news();

  /// Other hosts come to it: what this host's memory has is not enough.
  bool reaches_other_hosts() const { return options_.hub->reaches_other_hosts(); }
  /// Where others find it.
  std::string address() const { return options_.hub->advertised().front(); }

  // HubModel.
  void on_free(std::span<const SegmentIndex> segments) override;
  std::vector<Bytes> bytes_of(std::span<const SegmentIndex> segments) const override;
  void on_number_floor(VersionNumber floor) override;
  Result<bool> tend() override { return claim_ != nullptr ? claim_->tend() : false; }
  PublisherStat stat(const std::vector<SubscriberStat>& sessions) const override;

 private:
  Relay(Options options, std::unique_ptr<Directory::Claim> claim);
  void keep_advertised() FRESHET_EXCLUDES(mutex_);
  /// False when the relay is closing.
  bool wait_to_advertise(VersionNumber& newest) FRESHET_EXCLUDES(mutex_);
  /// Segments that were shown while they came, and are not read any more. Outlives the relay, in those who read last.
  struct Shown;

  struct TakenIn {
    std::vector<SegmentIndex> segments;  ///< Ours, by tensor.
    std::vector<SegmentIndex> fresh;     ///< Those of them that the hub has not heard of yet, each once.
  };
  TakenIn take_in(const FetchedMemory& fetched, bool is_newest) FRESHET_EXCLUDES(mutex_);

  const Options options_;
  const std::unique_ptr<Directory::Claim> claim_;  ///< Null in a directory of many hosts.

  // The loop thread's.
  bool added_ = false;
  VersionNumber newest_ = 0;
  std::shared_ptr<const ModelStanding> followers_;  ///< As told last.
  VersionNumber unproved_ = 0;                      ///< It came once, and was not what its manifest says.
  std::shared_ptr<source::ComingVersion> coming_;
  std::shared_ptr<Shown> shown_;

  std::atomic<const Wake*> wake_{nullptr};
  std::atomic<VersionNumber> floor_{0};
  mutable Mutex mutex_;
  std::shared_ptr<FetchArena> arena_ FRESHET_GUARDED_BY(mutex_);  ///< Null before the first commit.
  std::unordered_map<SegmentIndex, SegmentIndex> segments_ FRESHET_GUARDED_BY(mutex_);   ///< The arena's, by ours.
  std::unordered_map<SegmentIndex, SegmentIndex> newest_of_ FRESHET_GUARDED_BY(mutex_);  ///< Ours, by the arena's.
  std::vector<SegmentIndex> freed_ FRESHET_GUARDED_BY(mutex_);
  std::vector<SegmentIndex> unused_ FRESHET_GUARDED_BY(mutex_);  ///< Numbers that may be given again.
  SegmentIndex next_ FRESHET_GUARDED_BY(mutex_) = 0;
  PublisherStat totals_ FRESHET_GUARDED_BY(mutex_);
  bool closing_ FRESHET_GUARDED_BY(mutex_) = false;
  CondVar changed_;
  /// Tells a directory of many hosts, which may let it wait, that this relay is here.
  std::thread advertiser_;
};

}  // namespace freshet::detail
