// SPDX-License-Identifier: Apache-2.0
#include "transport/publisher.h"

#include <sys/random.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "core/model/own_tags.h"
#include "transport/ask/activation_request.h"
#include "transport/publish/device_copier.h"
#include "transport/publish/publish_check.h"
#include "transport/publish/publisher_impl.h"
#include "transport/zmq/this_host.h"

namespace freshet {
namespace {

Result<RunId> random_run() {
  RunId run;
  if (::getrandom(&run, sizeof run, 0) != sizeof run) return fail_errno(errno, "draw a run's id");
  return run;
}

}  // namespace

Status Publisher::Impl::start() {
  FRESHET_ASSIGN(
      capture_,
      Capture::open({.name = "freshet-" + options_.model,
                     .arena_limit_bytes = options_.arena_limit_bytes,
                     .arena_copies = options_.arena_copies,
                     .kept_versions = keep_versions_,
                     .lock_memory = options_.lock_memory,
                     .huge_pages = options_.huge_pages,
                     .device_memory = options_.device_memory},
                    {.make_room = [this](std::uint64_t bytes) { hub_->shed_queues(options_.model, bytes); },
                     .on_sealed = [this](SealedCapture sealed) { return on_sealed(std::move(sealed)); },
                     .on_failed = [this](std::uint64_t ticket, const Error& error) { on_failed(ticket, error); },
                     .on_slab = [this](Bytes memory) { hub_->channels().register_memory(memory); }},
                    /*copier=*/nullptr, std::make_unique<DeviceCopier>(options_.gpus)));
  {
    MutexLock lock(mutex_);
    totals_.model = options_.model;
  }
  const VersionNumber gave_out = claim_->last_number();
  FRESHET_TRY(hub_->add({.model = options_.model,
                         .run = last_id_.run,
                         .incarnation = last_id_.incarnation,
                         .first_number = last_number_ + 1,
                         .every_queue_versions_max = options_.every_queue_versions_max,
                         .believed_number_max = gave_out != 0 ? gave_out : protocol::kNumbersBelieved,
                         .retained_versions = keep_versions_,
                         .activation = activation_options()},
                        *this));
  added_ = true;
  tell_of_hold();
  if (options_.architecture != nullptr) FRESHET_TRY(adopt_architecture(options_.architecture));
  return claim_->advertise({.model = options_.model,
                            .pid = static_cast<std::int32_t>(::getpid()),
                            .incarnation = last_id_.incarnation,
                            .control = hub_->advertised().front(),
                            .host = this_host(),
                            .also = {hub_->advertised().begin() + 1, hub_->advertised().end()}});
}

/// The hold came from the directory; the version that it names went with the process that had it.
void Publisher::Impl::tell_of_hold() const {
  const protocol::Current current = claim_->current();
  if (!current.hold || current.version == 0) return;
  log_line(LogLevel::warning, format("{0}@{1} is held (epoch {2}), but not kept here: subscribers that have it serve "
                                     "it, new subscribers wait for `freshet release {0}`",
                                     options_.model, current.version, current.epoch));
}

protocol::Activation::Options Publisher::Impl::activation_options() const {
  return {.current = claim_->current(),
          .started = system_clock().now(),
          .group_commit = options_.group_commit,
          .group_within = options_.group_within,
          .membership = options_.membership != Duration::zero() ? options_.membership : protocol::kMembershipDefault};
}

Publisher::Impl::~Impl() {
  const Status closed = close(kSealPatience);
  if (!closed) log_line(LogLevel::warning, closed.error().message());
  capture_.reset();
}

/// The worker ends its job before the model leaves the hub: a job that has passed the look at closing_ still commits.
Status Publisher::Impl::close(Duration at_most) {
  if (closed_.exchange(true)) return {};
  if (capture_ != nullptr) {
    capture_->abandon();
    static_cast<void>(capture_->wait_idle(at_most));
    closing_ = true;
    for (const std::uint64_t ticket : capture_->drop_unbegun()) cancel(take_pending(ticket).number);
    claim_->stop_waiting();
    static_cast<void>(capture_->wait_idle(kSealPatience));  // One job at most, which waits for nobody now.
  }
  // The doors lend the descriptors of the capture's slabs: they close first.
  current_->stop();
  if (added_) hub_->remove(options_.model);
  if (capture_ != nullptr) hub_->channels().forget_memory(capture_->slab_memory());
  MutexLock lock(mutex_);
  if (cancelled_.empty()) return {};
  std::ranges::sort(cancelled_);
  return fail(Code::cancelled, format("close the publisher of {}: version {} was not sealed in time, and is dropped; "
                                      "give close() more time, or call wait_committed() first",
                                      options_.model, fmt::join(cancelled_, ", ")));
}

void Publisher::Impl::cancel(VersionNumber number) {
  reports_.finish(
      number, fail(Code::cancelled,
                   format("version {} of {} was not sealed before the publisher was closed", number, options_.model)));
  MutexLock lock(mutex_);
  cancelled_.push_back(number);
}

Status Publisher::Impl::check_open() const {
  FRESHET_TRY(check_here());
  if (!closed_) return {};
  return fail(Code::failed_precondition,
              format("the publisher of {} was closed: open another one to publish", options_.model));
}

Result<ActivationReport> Publisher::Impl::activate(const ActivationRequest& request, const std::stop_token& stop) {
  FRESHET_TRY(check_request(request));
  const auto make = [model = options_.model, request](const protocol::Current& current) -> Result<protocol::Activate> {
    const CurrentVersion expected = current;
    FRESHET_TRY(check_expected(model, request, expected));
    return activate_message(model, request, expected, /*id=*/1);
  };
  FRESHET_ASSIGN(const protocol::Activated activated,
                 hub_->activate(options_.model, make, patience_for(request), stop));
  return report_of(activated);
}

Status Publisher::Impl::adopt_architecture(std::shared_ptr<const Architecture> architecture) {
  FRESHET_TRY(capture_->prepare(*architecture));
  changed_check_.begin_architecture();
  const bool first = architecture_ == nullptr;
  architecture_ = std::move(architecture);
  const auto& resumed = options_.resume_from;
  if (first && resumed != nullptr && resumed->architecture->digest() == architecture_->digest()) {
    capture_->resume_from(resumed->digests);
  }
  MutexLock lock(mutex_);
  totals_.model_bytes = architecture_->bytes();
  return {};
}

Status Publisher::Impl::check(std::span<const TensorView> tensors, const PublishOptions& how, Changed::Kind kind,
                              std::span<const std::uint32_t> indices) const {
  FRESHET_TRY(check_annotations(how.metrics, how.tags));
  FRESHET_TRY(check_own_tags(how.tags));
  const Architecture& architecture = how.new_architecture != nullptr ? *how.new_architecture : *architecture_;
  // The first publish of an architecture takes everything, whatever is named, so everything is checked.
  const bool first = last_ticket_ == 0 || how.new_architecture != nullptr;
  if (kind == Changed::Kind::only && !first) return check_tensors(architecture, tensors, indices);
  if (kind == Changed::Kind::only) FRESHET_TRY(check_tensors(architecture, tensors, indices));
  return check_tensors(architecture, tensors);
}

Status Publisher::Impl::adopt_guess(std::span<const TensorView> tensors) {
  if (tensors.empty()) {
    return fail(Code::invalid_argument, format("publish {}: no tensors were given", options_.model));
  }
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors) specs.push_back(tensor.spec);
  FRESHET_ASSIGN(auto guessed, Architecture::guess_chain(std::move(specs)));
  FRESHET_TRY(check_tensors(*guessed, tensors));
  return adopt_architecture(std::move(guessed));
}

Status Publisher::Impl::begin_capture(std::span<const TensorView> tensors,
                                      std::shared_ptr<const Architecture>& checked) {
  FRESHET_TRY(claim_->standing());
  if (architecture_ == nullptr) FRESHET_TRY(adopt_guess(tensors));
  if (checked != architecture_) FRESHET_TRY(check_tensors(*architecture_, tensors));
  checked = architecture_;
  changed_check_.leave_out(last_ticket_ + 1);
  Status begun = capture_->begin(tensors);
  if (begun) return {};
  if (begun.error().code() == Code::out_of_space) ++versions_skipped_;
  return fail(std::move(begun.error()).with_context("publish " + options_.model));
}

Status Publisher::Impl::capture(std::span<const TensorView> tensors, std::span<const std::uint32_t> indices) {
  const Result<Capture::Receipt> added = capture_->add(tensors, indices);
  if (added) return {};
  if (added.error().code() == Code::out_of_space) ++versions_skipped_;
  return fail(Error(added.error()).with_context("publish " + options_.model));
}

Result<PublishReceipt> Publisher::Impl::publish(std::span<const TensorView> tensors, const PublishOptions& how,
                                                std::shared_ptr<const Architecture>* checked) {
  const Changed::Kind kind = how.changed.kind_;
  const std::span<const std::uint32_t> indices = how.changed.tensors_;
  const Time started = clock_.now();
  FRESHET_TRY(claim_->standing());
  if (tensors.empty()) {
    return fail(Code::invalid_argument, format("publish {}: no tensors were given", options_.model));
  }
  if (architecture_ == nullptr && how.new_architecture == nullptr) FRESHET_TRY(adopt_guess(tensors));
  const bool is_checked = checked != nullptr && *checked == architecture_ && how.new_architecture == nullptr;
  if (is_checked) {
    FRESHET_TRY(check_annotations(how.metrics, how.tags));
    FRESHET_TRY(check_own_tags(how.tags));
  } else {
    FRESHET_TRY(check(tensors, how, kind, indices));
  }
  if (how.new_architecture != nullptr &&
      (architecture_ == nullptr || how.new_architecture->digest() != architecture_->digest())) {
    FRESHET_TRY(adopt_architecture(how.new_architecture));
  }

  // Of `only` what is named is checked, so nothing is known of the rest.
  if (checked != nullptr && kind != Changed::Kind::only) *checked = architecture_;

  const VersionNumber least = std::max(last_number_, number_floor_.load()) + 1;
  const VersionNumber number = how.number != 0 ? how.number : least;
  if (number < least) {
    return fail(Code::failed_precondition,
                format("publish {}@{}: the next number is {} or above", options_.model, number, least));
  }
  if (number > protocol::kNumberMax) return fail(Code::out_of_space, "there is no version number left");
  VersionId id = last_id_;
  ++id.sequence;
  const std::uint64_t ticket = ++last_ticket_;
  {
    MutexLock lock(mutex_);
    pending_[ticket] = Pending{.number = number,
                               .id = id,
                               .architecture = architecture_,
                               .step = how.step,
                               .metrics = how.metrics,
                               .tags = how.tags,
                               .source = how.source,
                               .started = started,
                               .created_unix_ns = clock_.unix_ns()};
  }
  reports_.begin(number);
  const Changed::Kind asked = changed_check_.begin(ticket, kind, indices);
  const auto captured = capture_->capture({.ticket = ticket, .tensors = tensors, .kind = asked, .indices = indices});
  if (!captured) {
    changed_check_.fail_of(ticket);
    reports_.abandon(number);
    take_pending(ticket);
    if (captured.error().code() == Code::out_of_space) ++versions_skipped_;
    return fail(Error(captured.error()).with_context("publish " + options_.model));
  }
  last_number_ = number;
  last_id_ = id;
  return PublishReceipt{.version = number,
                        .captured_tensors = captured->tensors,
                        .captured_bytes = captured->bytes,
                        .blocked = clock_.now() - started};
}

Publisher::Impl::Pending Publisher::Impl::take_pending(std::uint64_t ticket) {
  MutexLock lock(mutex_);
  auto node = pending_.extract(ticket);
  FRESHET_CHECK(!node.empty());
  return std::move(node.mapped());
}

std::shared_ptr<const Manifest> Publisher::Impl::make_manifest(Pending pending, const SealedCapture& sealed) const {
  auto manifest = std::make_shared<Manifest>();
  manifest->name = {.model = options_.model, .number = pending.number};
  manifest->id = pending.id;
  const std::size_t tensors = pending.architecture->tensors().size();
  if (base_ != nullptr) {
    manifest->ancestor = base_->id;
    manifest->ancestor_name = base_->name;
  }
  const bool inherits = base_ != nullptr && base_->architecture->digest() == pending.architecture->digest();
  manifest->owners =
      inherits ? base_->owners.with_written(pending.id, sealed.changed) : OwnerMap::all_written_by(pending.id, tensors);
  manifest->step = pending.step;
  manifest->created_unix_ns = pending.created_unix_ns;
  manifest->metrics = std::move(pending.metrics);
  manifest->tags = std::move(pending.tags);
  manifest->architecture = std::move(pending.architecture);
  manifest->digests = sealed.digests;
  return manifest;
}

bool Publisher::Impl::on_sealed(SealedCapture sealed) {
  Pending pending = take_pending(sealed.ticket);
  const VersionNumber number = pending.number;
  const Time started = pending.started;
  const std::string source = std::move(pending.source);
  if (closing_) {
    cancel(number);
    return false;
  }
  if (Status named = changed_check_.check(sealed.ticket, sealed.changed, *pending.architecture); !named) {
    refuse(number, named.error());
    return false;
  }
  const std::shared_ptr<const Manifest> manifest = make_manifest(std::move(pending), sealed);
  std::vector<std::byte> encoded = encode(*manifest);
  Status status;
  if (encoded.size() > kManifestBytesMax) {
    status = fail(Code::invalid_argument, format("the manifest of {}@{} is {} bytes, more than {}", options_.model,
                                                 number, encoded.size(), kManifestBytesMax));
  } else {
    // Before anybody hears of it: a number is never given twice, also not after a death right here.
    status = claim_->record_number(number);
  }
  if (!status) {
    // Whoever follows this publisher finds the one who has the name now.
    if (!claim_->standing()) hub_->let_go(options_.model);
    if (closing_ && status.error().code() == Code::cancelled) {
      cancel(number);
      return false;
    }
    changed_check_.fail_of(sealed.ticket);
    reports_.finish(number, fail(std::move(status).error().with_context("seal")));
    return false;
  }
  changed_check_.passed(sealed.ticket);
  base_ = manifest;
  const CommitReport report{.version = number,
                            .tensors = manifest->owners.size(),
                            .changed_tensors = sealed.changed.size(),
                            .changed_bytes = sealed.changed_bytes,
                            .capture_to_commit = clock_.now() - started,
                            .digest = plain_xxh3_of(encoded)};
  count(report, *manifest, source);  // Whoever hears of it finds it in stat().
  hub_->commit(options_.model,
               {.manifest = manifest,
                .encoded_manifest = std::move(encoded),
                .segments = std::move(sealed.segments),
                .places = std::move(sealed.places),
                .slab_bytes = std::move(sealed.slab_bytes),
                .publish_started_ns = started.time_since_epoch().count(),
                .device = capture_->device_arena().slabs().device(),
                .device_places = std::move(sealed.device_places),
                .device_slab_bytes = std::move(sealed.device_slab_bytes)},
               capture_->slabs(), [this, report] { reports_.finish(report.version, report); });
  return true;
}

void Publisher::Impl::on_failed(std::uint64_t ticket, const Error& error) {
  const VersionNumber number = take_pending(ticket).number;
  if (closing_) return cancel(number);
  changed_check_.fail_of(ticket);
  refuse(number, error);
}

void Publisher::Impl::refuse(VersionNumber number, const Error& error) {
  Error named = Error(error).with_context(format("publish {}@{}", options_.model, number));
  // A loop that does not wait for its versions hears of it here alone.
  log_line(LogLevel::warning, format("{}; the next publish takes the changes along", named.message()));
  reports_.finish(number, fail(std::move(named)));
}

void Publisher::Impl::count(const CommitReport& report, const Manifest& manifest, const std::string& source) {
  MutexLock lock(mutex_);
  note_version(totals_, manifest, source);
  totals_.newest = report.version;
  ++totals_.versions_published;
  totals_.bytes_published += report.changed_bytes;
}

PublisherStat Publisher::Impl::stat() const {
  const std::shared_ptr<const ModelStanding> standing = hub_->standing(options_.model);
  PublisherStat all = stat(standing->sessions);
  standing->put_into(all, system_clock().now());
  return all;
}

/// The loop asks for room when it needs it, but does not wait for what others give up: so that is given up beforehand.
std::uint64_t Publisher::Impl::room_wanted() const {
  std::uint64_t needed = 0;
  {
    MutexLock lock(mutex_);
    needed = totals_.model_bytes;
  }
  const SlabArena::Stat arena = capture_->stat();
  const std::uint64_t room =
      arena.arena_free_bytes + (arena.arena_limit_bytes - std::min(arena.arena_bytes, arena.arena_limit_bytes));
  return needed - std::min(needed, room);
}

PublisherStat Publisher::Impl::stat(const std::vector<SubscriberStat>& sessions) const {
  PublisherStat stat;
  {
    MutexLock lock(mutex_);
    stat = totals_;
  }
  stat.directory = hub_->directory().health();
  const SlabArena::Stat arena = capture_->stat();
  stat.versions_skipped = versions_skipped_;
  stat.arena_bytes = arena.arena_bytes;
  stat.arena_free_bytes = arena.arena_free_bytes;
  stat.locked_bytes = arena.locked_bytes;
  const SlabArena::Stat on_device = capture_->device_arena().slabs().stat();
  stat.device_memory_bytes = on_device.arena_bytes;
  stat.device_memory_free_bytes = on_device.arena_free_bytes;
  stat.device_memory_why = capture_->device_arena().why_not();
  stat.subscribers = sessions;
  return stat;
}

Publisher::Publisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Publisher::~Publisher() {
  // A forked child has none of the threads that would have to end.
  if (impl_->is_inherited()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<Publisher>> Publisher::open(PublisherOptions options) {
  FRESHET_TRY(check_options(options));
  if (options.resume_from != nullptr && options.architecture == nullptr) {
    options.architecture = options.resume_from->architecture;
  }
  std::shared_ptr<PublisherHub> hub = options.hub;
  if (hub == nullptr) {
    FRESHET_ASSIGN(hub, PublisherHub::open(options.hub_options));
  }
  FRESHET_TRY(hub->check_here());
  const Clock& clock = options.clock != nullptr ? *options.clock : system_clock();
  FRESHET_ASSIGN(auto claim, hub->directory().claim(options.model));
  VersionId id;
  // A run that goes on after its host's clock went back, or on another host, must not name its segments as before.
  const std::uint64_t resumed = options.resume_from != nullptr ? options.resume_from->id.incarnation : 0;
  FRESHET_ASSIGN(id.incarnation,
                 claim->begin_incarnation(std::max(clock.unix_ns(), static_cast<std::int64_t>(resumed) + 1)));
  id.run = options.run;
  if (id.run == RunId{} && options.resume_from != nullptr) id.run = options.resume_from->id.run;
  if (id.run == RunId{}) {
    FRESHET_ASSIGN(id.run, random_run());
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(hub), std::move(claim), id);
  FRESHET_TRY(impl->start());
  return std::unique_ptr<Publisher>(new Publisher(std::move(impl)));
}

Result<PublishReceipt> Publisher::publish(std::span<const TensorView> tensors, PublishOptions options) {
  FRESHET_TRY(check_closed());
  return publish_now(tensors, options, nullptr);
}

Status Publisher::check_closed() const {
  FRESHET_TRY(impl_->check_open());
  if (!impl_->has_open_capture()) return {};
  return fail(
      Code::failed_precondition,
      format("publish {}: the next version was begun, and some of its tensors may be captured: end() or abandon() it",
             impl_->model()));
}

Result<PublishReceipt> Publisher::publish_now(std::span<const TensorView> tensors, const PublishOptions& options,
                                              std::shared_ptr<const Architecture>* checked) {
  const Time started = impl_->clock().now();
  auto receipt = impl_->publish(tensors, options, checked);
  if (!receipt || !options.sync) return receipt;
  FRESHET_ASSIGN(const CommitReport report, impl_->wait_committed(receipt->version, kSealPatience, options.stop));
  static_cast<void>(report);
  receipt->blocked = impl_->clock().now() - started;
  return receipt;
}

Status Publisher::close(Duration at_most) {
  FRESHET_TRY(impl_->check_here());
  return impl_->close(at_most);
}

BoundTensors Publisher::bind(std::vector<TensorView> tensors, BindOptions options) {
  return BoundTensors(*this, std::move(tensors), options);
}

Result<CommitReport> Publisher::wait_committed(VersionNumber version, Duration at_most, const std::stop_token& stop) {
  FRESHET_TRY(impl_->check_here());
  return impl_->wait_committed(version, at_most, stop);
}

Result<ActivationReport> Publisher::activate(const ActivationRequest& request, const std::stop_token& stop) {
  FRESHET_TRY(impl_->check_open());
  return impl_->activate(request, stop);
}
Result<ActivationReport> Publisher::rollback(VersionNumber version, const std::stop_token& stop) {
  if (version == 0) return fail(Code::invalid_argument, "a rollback needs a version to go back to");
  return activate({.version = version, .hold = true}, stop);
}
Result<ActivationReport> Publisher::release(const std::stop_token& stop) { return activate({}, stop); }

PublisherStat Publisher::stat() const {
  if (impl_->is_inherited()) return PublisherStat{.model = impl_->model()};
  return impl_->stat();
}
std::string Publisher::address() const { return impl_->address(); }
VersionNumber Publisher::number_before() const { return impl_->number_before(); }

}  // namespace freshet
