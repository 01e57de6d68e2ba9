// SPDX-License-Identifier: Apache-2.0
/// The processes behind PublisherPeer and SubscriberPeer.

#include <sys/resource.h>

#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>

#include "benchmarks/stream/element_model.h"
#include "benchmarks/stream/folder_writer.h"
#include "benchmarks/stream/stream_peer.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "core/delta/element_delta.h"
#include "core/safetensors/safetensors.h"
#include "transport/option_text.h"
#include "transport/publisher.h"
#include "transport/subscriber.h"

namespace freshet::benchmarks {
namespace {

using Words = std::istringstream;
using Command = std::function<Result<std::string>(Words&)>;

void say(const std::string& line) {
  static Mutex mutex;
  const MutexLock lock(mutex);
  std::cout << line << std::endl;
}

std::int64_t own_cpu_us() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

/// Answers commands until the input ends. Each gets one line, beginning with "ok" or "error".
int obey(std::map<std::string, Command> commands, const std::string& greeting) {
  commands["cpu"] = [](Words&) -> Result<std::string> { return std::to_string(own_cpu_us()); };
  say("ok " + greeting);
  for (std::string line; std::getline(std::cin, line);) {
    Words words(line);
    std::string name;
    words >> name;
    const auto command = commands.find(name);
    if (command == commands.end()) {
      say("error: no command " + name);
      continue;
    }
    const auto answer = command->second(words);
    say(answer ? "ok " + *answer : "error: " + answer.error().message());
  }
  return 0;
}

int complain(const Error& error) {
  say("error: " + error.message());
  return 1;
}

class PublisherRole {
 public:
  Status open(const PeerOptions& options) {
    FRESHET_ASSIGN(model_, ElementModel::create(options.bytes, options.tensors));
    PublisherOptions publisher{
        .model = options.model,
        .hub_options = {.listen = options.listen, .directory = options.directory, .security = options.security}};
    if (options.arena_copies > 0) publisher.arena_copies = options.arena_copies;
    publisher.keep_versions = options.keep;
    sync_ = options.sync;
    FRESHET_ASSIGN(publisher_, Publisher::open(std::move(publisher)));
    if (options.folder.empty()) return {};
    if (options.sync) {
      FRESHET_ASSIGN(writer_, FolderWriter::open(options.folder));
    } else {
      FRESHET_ASSIGN(mirror_, FolderMirror::start(options.folder, options.model, options.directory));
    }
    return {};
  }

  int run() {
    return obey({{"step", [this](Words& words) { return step(words); }},
                 {"rewrite", [this](Words& words) { return rewrite(words); }},
                 {"publish", [this](Words& words) { return publish(words); }},
                 {"committed", [this](Words&) { return committed(); }},
                 {"save", [this](Words& words) { return save(words); }},
                 {"rollback", [this](Words& words) { return rollback(words); }},
                 {"release", [this](Words&) { return release(); }},
                 {"remember", [this](Words&) { return remember(); }},
                 {"folded", [this](Words&) { return folded(); }},
                 {"memcpy", [this](Words&) { return copy_once(); }},
                 {"digest", [this](Words&) -> Result<std::string> { return to_hex(model_->digest()); }}},
                publisher_->address());
  }

 private:
  Result<std::string> step(Words& words) {
    double share = 0;
    std::uint64_t seed = 0;
    words >> share >> seed;
    return std::to_string(model_->step(share, seed));
  }

  Result<std::string> rewrite(Words& words) {
    std::uint64_t seed = 0;
    words >> seed;
    model_->rewrite(seed);
    return std::string();
  }

  Result<std::string> publish(Words& words) {
    std::uint64_t tensors = 0;
    words >> tensors;
    if (writer_) return write_file();
    std::vector<std::uint32_t> named;
    for (std::uint32_t i = 0; i < tensors; ++i) named.push_back(i);
    PublishOptions options{
        .step = ++step_, .changed = tensors == 0 ? Changed::all() : Changed::only(std::move(named)), .sync = sync_};
    const std::int64_t start_ns = monotonic_ns();
    FRESHET_ASSIGN(const PublishReceipt receipt, publisher_->publish(model_->views(), std::move(options)));
    published_ = receipt.version;
    published_ns_ = start_ns;
    return format("{} {} {}", receipt.version, start_ns, monotonic_ns());
  }

  /// Of what was published last.
  Result<std::string> committed() {
    if (writer_) return format("{} {}", published_ns_, model_->bytes());
    FRESHET_ASSIGN(const CommitReport report, publisher_->wait_committed(published_, std::chrono::seconds(60)));
    return format("{} {}", published_ns_ + report.capture_to_commit.count(), report.changed_bytes);
  }

  /// The training waits for the file.
  Result<std::string> write_file() {
    const std::int64_t start_ns = monotonic_ns();
    FRESHET_TRY(writer_->write(++step_, model_->views()));
    published_ns_ = monotonic_ns();
    return format("{} {} {}", step_, start_ns, published_ns_);
  }

  /// When it began.
  Result<std::string> rollback(Words& words) {
    VersionNumber version = 0;
    words >> version;
    const std::int64_t start_ns = monotonic_ns();
    FRESHET_TRY(publisher_->rollback(version));
    return std::to_string(start_ns);
  }

  Result<std::string> release() {
    FRESHET_TRY(publisher_->release());
    return std::string();
  }

  /// What a trainer without Freshet would do.
  Result<std::string> save(Words& words) {
    std::string path;
    words >> path;
    FRESHET_TRY(write_safetensors(path, model_->views(), {}, false));
    return std::string();
  }

  Result<std::string> remember() {
    remembered_.resize(model_->bytes());
    std::memcpy(remembered_.data(), model_->memory().data(), model_->bytes());
    return std::string();
  }

  /// The size of the difference between the remembered model and this one, encoded at once: a delta for each tensor, or
  /// the tensor where that is shorter.
  Result<std::string> folded() {
    if (remembered_.size() != model_->bytes()) return fail(Code::failed_precondition, "nothing was remembered");
    std::uint64_t sum = 0;
    std::size_t at = 0;
    for (const TensorView& view : model_->views()) {
      const Bytes base(remembered_.data() + at, view.data.size());
      const auto delta =
          encode_delta({.dtype = view.spec.dtype, .base = {}, .target = {}}, base, view.data, view.data.size());
      sum += delta ? delta->size() : view.data.size();
      at += view.data.size();
    }
    return std::to_string(sum);
  }

  /// Milliseconds for the whole model, into memory touched before.
  Result<std::string> copy_once() {
    if (remembered_.size() != model_->bytes()) remember();
    const std::int64_t start_ns = monotonic_ns();
    std::memcpy(remembered_.data(), model_->memory().data(), model_->bytes());
    return std::to_string(static_cast<double>(monotonic_ns() - start_ns) / 1e6);
  }

  std::unique_ptr<ElementModel> model_;
  std::vector<std::byte> remembered_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<FolderWriter> writer_;
  std::unique_ptr<FolderMirror> mirror_;  ///< Destroyed before the publisher that it follows.
  std::uint64_t step_ = 0;
  bool sync_ = false;
  VersionNumber published_ = 0;    ///< The last one.
  std::int64_t published_ns_ = 0;  ///< When publish() was called for it; of a file, when it was written.
};

class SubscriberRole {
 public:
  Status open(const PeerOptions& options) {
    SubscriberOptions subscriber;
    subscriber.model = options.model;
    subscriber.at = parse_addresses(options.at);
    subscriber.directory = options.directory;
    subscriber.security = options.security;
    FRESHET_ASSIGN(subscriber.channel, parse_channel(options.channel));
    if (!options.serve.empty()) {
      FRESHET_ASSIGN(subscriber.relay, open_publisher_hub({.listen = options.serve,
                                                           .directory = options.directory,
                                                           .security = options.security,
                                                           .advertise = {}}));
    }
    subscriber.on_update = [](const Update& update) { tell(update); };
    FRESHET_ASSIGN(subscriber_, Subscriber::open(std::move(subscriber)));
    return {};
  }

  int run() {
    return obey({{"digest", [this](Words&) { return digest(); }},
                 {"error", [this](Words&) -> Result<std::string> { return subscriber_->status().last_error; }}},
                "");
  }

 private:
  static void tell(const Update& update) {
    const std::int64_t now_ns = monotonic_ns();
    say(format("swap {} {} {} {} {}", update.version, now_ns, update.bytes_fetched, update.notify.count(),
               update.channel));
  }

  Result<std::string> digest() {
    const Snapshot snapshot = subscriber_->snapshot();
    if (!snapshot) return fail(Code::not_found, "no version is served");
    std::vector<Bytes> tensors;
    const auto count = static_cast<std::uint32_t>(snapshot.manifest().architecture->tensors().size());
    for (std::uint32_t tensor = 0; tensor < count; ++tensor) tensors.push_back(snapshot.bytes(tensor));
    return to_hex(digest_of_tensors(tensors));
  }

  std::unique_ptr<Subscriber> subscriber_;
};

template <typename PeerRole>
int run_as(const std::string& json) {
  const auto options = parse_peer_options(json);
  if (!options) return complain(options.error());
  PeerRole role;
  if (const Status opened = role.open(*options); !opened) return complain(opened.error());
  return role.run();
}

}  // namespace

int run_peer(const std::string& role, const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return -1;
  if (role == "publisher") return run_as<PublisherRole>(arguments[0]);
  if (role == "subscriber") return run_as<SubscriberRole>(arguments[0]);
  return -1;
}

}  // namespace freshet::benchmarks
