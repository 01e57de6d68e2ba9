// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher's shell: private to this room. transport/publisher.h is the door.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "transport/directory/directory.h"
#include "transport/publish/capture.h"
#include "transport/publish/changed_check.h"
#include "transport/publish/commit_reports.h"
#include "transport/publish/current_keeper.h"
#include "transport/publisher.h"
#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {

/// How long a caller that asked for it, and the destructor of a publisher that was not closed, wait for versions in the
/// making.
inline constexpr Duration kSealPatience = std::chrono::minutes(10);

/// Three threads meet here: the caller's, which captures; the data plane's worker, which seals; the hub's loop, which
/// announces and gives segments back.
class Publisher::Impl final : public HubModel {
 public:
  Impl(PublisherOptions options, std::shared_ptr<PublisherHub> hub, std::unique_ptr<Directory::Claim> claim,
       VersionId id)
      : options_(std::move(options)),
        clock_(options_.clock != nullptr ? *options_.clock : system_clock()),
        hub_(std::move(hub)),
        keep_versions_(options_.keep_versions != 0   ? options_.keep_versions
                       : hub_->reaches_other_hosts() ? 2
                                                     : 1),
        claim_(std::move(claim)),
        current_(std::make_shared<CurrentKeeper>(*claim_, *hub_, options_.model)),
        last_id_(id),
        number_before_(claim_->last_number()),
        last_number_(std::max(options_.number_floor, number_before_)),
        base_(options_.resume_from),
        changed_check_(options_.check_changed) {
    if (base_ != nullptr && base_->name.model == options_.model) {
      last_number_ = std::max(last_number_, base_->name.number);
    }
  }

  ~Impl() override;

  Status start();
  Status close(Duration at_most);
  Result<PublishReceipt> publish(std::span<const TensorView> tensors, const PublishOptions& how,
                                 std::shared_ptr<const Architecture>* checked);
  // An open capture (BoundTensors); end() is publish(), which is refused where its caller did not open it.
  Status begin_capture(std::span<const TensorView> tensors, std::shared_ptr<const Architecture>& checked);
  Status capture(std::span<const TensorView> tensors, std::span<const std::uint32_t> indices);
  void abandon_capture() { capture_->abandon(); }
  bool has_open_capture() const { return capture_->is_open(); }
  Result<CommitReport> wait_committed(VersionNumber version, Duration at_most, const std::stop_token& stop) {
    return reports_.wait(version, at_most, stop);
  }
  PublisherStat stat() const;
  std::string address() const { return hub_->address(); }
  VersionNumber number_before() const { return number_before_; }
  Result<ActivationReport> activate(const ActivationRequest& request, const std::stop_token& stop);

  /// Not closed, and not in a child.
  Status check_open() const;
  const Clock& clock() const { return clock_; }
  Status check_here() const { return check_not_inherited(mark_, "the publisher of " + options_.model); }
  bool is_inherited() const { return mark_.is_inherited(); }
  const std::string& model() const { return options_.model; }

  // HubModel.
  void on_free(std::span<const SegmentIndex> segments) override { capture_->free(segments); }
  std::vector<Bytes> bytes_of(std::span<const SegmentIndex> segments) const override {
    return capture_->bytes_of(segments);
  }
  void on_number_floor(VersionNumber floor) override { number_floor_ = floor; }
  void swap_current(const protocol::Current& expected, const protocol::Current& desired) override {
    current_->swap(expected, desired);
  }
  Result<bool> tend() override { return claim_->tend(); }
  protocol::Current recorded() const override {
    return hub_->directory().carries_announcements() ? claim_->current() : protocol::Current();
  }
  PublisherStat stat(const std::vector<SubscriberStat>& sessions) const override;
  std::uint64_t room_wanted() const override;

 private:
  /// What a version is made of beside its bytes, from publish() until it is sealed.
  struct Pending {
    VersionNumber number = 0;
    VersionId id;
    std::shared_ptr<const Architecture> architecture;
    std::uint64_t step = 0;
    Metrics metrics;
    Tags tags;
    std::string source;
    Time started;
    std::int64_t created_unix_ns = 0;
  };

  void tell_of_hold() const;
  protocol::Activation::Options activation_options() const;
  Status adopt_architecture(std::shared_ptr<const Architecture> architecture);
  Status adopt_guess(std::span<const TensorView> tensors);
  Status check(std::span<const TensorView> tensors, const PublishOptions& how, Changed::Kind kind,
               std::span<const std::uint32_t> indices) const;
  bool on_sealed(SealedCapture sealed);
  void on_failed(std::uint64_t ticket, const Error& error);
  void refuse(VersionNumber number, const Error& error);
  Pending take_pending(std::uint64_t ticket) FRESHET_EXCLUDES(mutex_);
  std::shared_ptr<const Manifest> make_manifest(Pending pending, const SealedCapture& sealed) const;
  void count(const CommitReport& report, const Manifest& manifest, const std::string& source) FRESHET_EXCLUDES(mutex_);
  /// The version was not sealed before the close.
  void cancel(VersionNumber number) FRESHET_EXCLUDES(mutex_);

  // Constant after construction.
  const ForkMark mark_;
  const PublisherOptions options_;
  const Clock& clock_;
  const std::shared_ptr<PublisherHub> hub_;
  const std::size_t keep_versions_;

  // The worker's: numbers are recorded as versions are sealed, in their order.
  const std::unique_ptr<Directory::Claim> claim_;

  // Any thread.
  const std::shared_ptr<CurrentKeeper> current_;

  // The publishing thread's.
  bool added_ = false;
  std::shared_ptr<const Architecture> architecture_;
  VersionId last_id_;
  const VersionNumber number_before_;  ///< The claim's, when it was taken.
  VersionNumber last_number_ = 0;
  std::uint64_t last_ticket_ = 0;

  // The worker's.
  std::shared_ptr<const Manifest> base_;  ///< The last sealed version, or the one that training resumes from.

  std::atomic<VersionNumber> number_floor_{0};
  std::atomic<std::uint64_t> versions_skipped_{0};
  std::atomic<bool> closing_{false};  ///< What is not sealed yet will not be.
  std::atomic<bool> closed_{false};   ///< By the publishing thread; nothing is published any more.
  CommitReports reports_;
  ChangedCheck changed_check_;

  mutable Mutex mutex_;
  std::map<std::uint64_t, Pending> pending_ FRESHET_GUARDED_BY(mutex_);  ///< By ticket.
  PublisherStat totals_ FRESHET_GUARDED_BY(mutex_);
  std::vector<VersionNumber> cancelled_ FRESHET_GUARDED_BY(mutex_);  ///< By close(), any order.

  std::unique_ptr<Capture> capture_;
};

}  // namespace freshet
