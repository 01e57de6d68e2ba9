// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/stream/version_feed.h"

#include <optional>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "transport/directory/directory.h"

namespace freshet::cli {

std::string nobody_text(const std::string& model, const std::string& at, const std::string& directory) {
  if (!at.empty()) return format("no publisher of {} answers at {}", model, at);
  const auto opened = open_directory(directory);
  if (!opened) return format("no publisher of {} answers", model);
  const std::string others = models_beside(**opened, model);
  return format("no publisher of {} answers in {}{}{}", model, (*opened)->text(), others.empty() ? "" : "; ", others);
}

class VersionFeed::Mailbox {
 public:
  /// Where snapshots come from; set before the first put can find one.
  void attach(Subscriber* subscriber) {
    const MutexLock lock(mutex_);
    subscriber_ = subscriber;
  }

  void put(const Update& update) {
    Subscriber* subscriber = nullptr;
    {
      const MutexLock lock(mutex_);
      subscriber = subscriber_;
      if (subscriber == nullptr) {
        missed_ = update;
        return;
      }
    }
    store(subscriber->snapshot(), update);
  }

  Result<Subscriber::Delivery> take(Time deadline) {
    const MutexLock lock(mutex_);
    while (!delivery_) {
      if (!arrived_.wait_until(mutex_, deadline)) return fail(Code::timed_out, "no version came");
    }
    Subscriber::Delivery taken = std::move(*delivery_);
    delivery_.reset();
    return taken;
  }

  void close() {
    std::optional<Subscriber::Delivery> last;
    const MutexLock lock(mutex_);
    subscriber_ = nullptr;
    last.swap(delivery_);
  }

  /// A version that was swapped in before attach() could be called.
  std::optional<Update> take_missed() {
    const MutexLock lock(mutex_);
    return std::exchange(missed_, std::nullopt);
  }

  void store(Snapshot snapshot, Update update) {
    // Another version than the update's is one whose own update is on its way.
    if (!snapshot || snapshot.version() != update.version) return;
    std::optional<Subscriber::Delivery> replaced;
    const MutexLock lock(mutex_);
    // Pairs grow, not numbers: somebody may have gone back.
    const auto pair = [](const Update& one) { return std::pair(one.epoch, one.version); };
    if (delivery_ && pair(delivery_->update) >= pair(update)) return;
    replaced.swap(delivery_);
    if (replaced) {
      update.tensors_fetched += replaced->update.tensors_fetched;
      update.bytes_fetched += replaced->update.bytes_fetched;
    }
    delivery_.emplace(Subscriber::Delivery{.snapshot = std::move(snapshot), .update = std::move(update)});
    arrived_.notify_one();
  }

 private:
  Mutex mutex_;
  CondVar arrived_;
  Subscriber* subscriber_ FRESHET_GUARDED_BY(mutex_) = nullptr;
  std::optional<Subscriber::Delivery> delivery_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Update> missed_ FRESHET_GUARDED_BY(mutex_);
};

VersionFeed::VersionFeed() : mailbox_(std::make_unique<Mailbox>()) {}

VersionFeed::~VersionFeed() { mailbox_->close(); }

Result<std::unique_ptr<VersionFeed>> VersionFeed::open(const Options& options) {
  std::unique_ptr<VersionFeed> feed(new VersionFeed());
  feed->every_ = options.every;
  SubscriberOptions subscriber{.model = options.model,
                               .at = options.at,
                               .directory = options.directory,
                               .notifier = options.notifier,
                               .label = options.label,
                               .security = options.security};
  subscriber.every = options.every;
  subscriber.channel = options.channel;
  subscriber.relay = options.relay;
  subscriber.relay_keep_versions = options.relay_keep_versions;
  subscriber.staged = options.staged;
  subscriber.applies = options.applies;
  if (!options.every) {
    subscriber.on_update = [mailbox = feed->mailbox_.get()](const Update& update) { mailbox->put(update); };
  }
  FRESHET_ASSIGN(feed->subscriber_, Subscriber::open(std::move(subscriber)));
  feed->mailbox_->attach(feed->subscriber_.get());
  if (const std::optional<Update> missed = feed->mailbox_->take_missed()) feed->mailbox_->put(*missed);
  return feed;
}

Result<Subscriber::Delivery> VersionFeed::next(Duration at_most) {
  return every_ ? subscriber_->next(at_most) : mailbox_->take(deadline_in(at_most));
}

SubscriberStatus VersionFeed::status() const { return subscriber_->status(); }

}  // namespace freshet::cli
