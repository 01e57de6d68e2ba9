// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/pauses/setting.h"

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "transport/option_text.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kModelBytes = 256 << 10;
constexpr std::uint64_t kTensorCount = 4;
constexpr Duration kPatience = std::chrono::seconds(30);

}  // namespace

void Swaps::tell(VersionNumber version) {
  const MutexLock lock(mutex_);
  version_ = version;
  at_ns_ = monotonic_ns();
  changed_.notify_all();
}

Result<std::int64_t> Swaps::wait_for(VersionNumber version) {
  const Time deadline = deadline_in(kPatience);
  const MutexLock lock(mutex_);
  while (version_ != version) {
    if (!changed_.wait_until(mutex_, deadline) && version_ != version) {
      return fail(Code::timed_out, format("version {} did not come, {} is served", version, version_));
    }
  }
  return at_ns_;
}

Result<std::unique_ptr<Setting>> Setting::make(const std::string& channel, bool shared_hub) {
  std::unique_ptr<Setting> setting(new Setting());
  setting->channel_ = channel;
  FRESHET_ASSIGN(setting->scratch_, ScratchFolder::create());
  FRESHET_ASSIGN(setting->folder_, setting->scratch_->folder("trainer-host"));
  FRESHET_ASSIGN(setting->model_, ElementModel::create(kModelBytes, kTensorCount));
  if (channel != "shm") {
    FRESHET_ASSIGN(setting->keys_, KeyFolder::create(setting->scratch_->path()));
    setting->listen_ = format("tcp://127.0.0.1:{}", next_port());
  }
  if (shared_hub) {
    PublisherHubOptions options{.listen = setting->listen_, .directory = setting->folder_};
    if (channel != "shm") options.security = setting->keys_.trainer();
    FRESHET_ASSIGN(setting->hub_, open_publisher_hub(std::move(options)));
  }
  return setting;
}

Status Setting::open_publisher() {
  publisher_.reset();
  PublisherOptions options{.model = "demo", .hub = hub_, .hub_options = {.listen = listen_, .directory = folder_}};
  if (!listen_.empty()) options.hub_options.security = keys_.trainer();
  options.keep_versions = 4;
  FRESHET_ASSIGN(publisher_, Publisher::open(std::move(options)));
  return {};
}

Status Setting::open_subscriber(bool every, bool staged) {
  subscriber_.reset();
  SubscriberOptions options;
  options.model = "demo";
  options.every = every;
  options.staged = staged;
  options.directory = folder_;
  if (!listen_.empty()) {
    FRESHET_ASSIGN(options.directory, scratch_->folder("server-host"));
    options.at = {listen_};
    options.security = keys_.server(/*behind_relay=*/false);
  }
  FRESHET_ASSIGN(options.channel, parse_channel(channel_));
  options.on_update = [this](const Update& update) { swaps_.tell(update.version); };
  FRESHET_ASSIGN(subscriber_, Subscriber::open(std::move(options)));
  return {};
}

Result<VersionNumber> Setting::publish() {
  static_cast<void>(model_->step(0.01, ++step_));
  FRESHET_ASSIGN(const PublishReceipt receipt, publisher_->publish(model_->views(), {.step = step_}));
  FRESHET_TRY(publisher_->wait_committed(receipt.version, kPatience));
  return receipt.version;
}

}  // namespace freshet::benchmarks
