// SPDX-License-Identifier: Apache-2.0
// `freshet subscribe`: versions that come in, as files, so that any server that reads files is always fresh.

#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "bindings/cli/frame/shell_command.h"
#include "bindings/cli/stream/version_feed.h"
#include "bindings/cli/stream/version_folder.h"
#include "core/base/format.h"
#include "transport/option_text.h"
#include "transport/publisher.h"

namespace freshet::cli {
namespace {

constexpr const char* kWeightLayout = "weight_v";
constexpr std::size_t kRelayKeepDefault = 2;

struct SubscribeArguments {
  std::string model;
  std::string at;
  std::string directory;
  Notifier notifier = Notifier::publisher;
  std::optional<ChannelKind> channel;
  ChannelChoice channels;  ///< Of a relay: those that it offers.
  std::string listen;      ///< Of a relay; empty: this is none, or one for this host alone.
  bool relay = false;
  std::optional<std::size_t> keep;
  SecurityOptions security;
  std::string folder;
  std::string layout = "files";
  std::size_t full_every = 10;
  std::string command;
  bool every = false;
  bool latest = false;
  bool staged = false;
  std::optional<std::uint64_t> count;
  std::optional<double> duration;
};

/// What became of the versions so far.
struct Tally {
  std::uint64_t versions = 0;
  std::uint64_t failures = 0;
  std::uint64_t missed = 0;  ///< With --every: those that did not come.
  VersionNumber newest = 0;
};

class FileSubscriber {
 public:
  FileSubscriber(Program& program, const SubscribeArguments& arguments, VersionFeed& feed,
                 std::unique_ptr<VersionWriter> folder)
      : program_(program), arguments_(arguments), feed_(feed), folder_(std::move(folder)) {}

  Result<ExitCode> run() {
    const Time deadline = arguments_.duration ? system_clock().now() + seconds(*arguments_.duration) : Time::max();
    while (!arguments_.count || tally_.versions < *arguments_.count) {
      if (program_.interrupt.requested()) return ExitCode::interrupted;
      const Time now = system_clock().now();
      if (now >= deadline) return answer_deadline();
      Result<Subscriber::Delivery> delivery = feed_.next(std::min(kInterruptLatency, Duration(deadline - now)));
      if (!delivery && delivery.error().code() == Code::timed_out) {
        tell_new_error();
        tell_waiting(now);
        continue;
      }
      if (!delivery) return fail(std::move(delivery).error());
      if (delivery->snapshot.version() == tally_.newest) continue;
      FRESHET_TRY(handle(std::move(*delivery)));
    }
    return ended();
  }

 private:
  Status handle(Subscriber::Delivery delivery) {
    const VersionNumber version = delivery.snapshot.version();
    tell_gap(version, delivery.update.gap_before);
    std::string file;
    if (folder_) {
      Result<std::string> written = folder_->write(arguments_.model, delivery.snapshot);
      if (!written && written.error().code() == Code::out_of_space) return pass_over(version, written.error());
      if (!written) return fail(std::move(written).error());
      file = std::move(*written);
      feed_.applied(version);
      const Status removed = folder_->remove_old(arguments_.model);
      if (!removed) program_.out.log(removed.error().message());
    }
    // The publisher gets its memory back before a command starts that may take long.
    delivery.snapshot = Snapshot();
    FRESHET_TRY(print(version, file, delivery.update));
    ++tally_.versions;
    tally_.newest = version;
    if (arguments_.command.empty()) return {};
    const Status ran =
        run_shell(with_path(arguments_.command, file), {.stdout_to_stderr = program_.out.json}, program_.interrupt);
    if (ran) return {};
    if (ran.error().code() == Code::cancelled) return ran;
    program_.out.log(ran.error().message());
    ++tally_.failures;
    return {};
  }

  /// Whoever wants every version must hear which ones are lost.
  void tell_gap(VersionNumber version, std::uint64_t missed) {
    if (!arguments_.every || missed == 0) return;
    program_.out.log(
        format("{} before {}@{} did not come: the publisher keeps a queue of {} versions at most for a slow "
               "subscriber, or fewer if its memory is full",
               missed == 1 ? "1 version" : format("{} versions", missed), arguments_.model, version,
               PublisherOptions().every_queue_versions_max));
    tally_.missed += missed;
  }

  /// A full disk costs a version, not the stream: `latest` stays where it is until there is room again.
  Status pass_over(VersionNumber version, const Error& error) {
    program_.out.log(format("{}@{} is not written: {}; {}/latest stays as it is, and the next version is tried",
                            arguments_.model, version, error.message(), arguments_.folder));
    tally_.newest = version;
    ++tally_.failures;
    return {};
  }

  Status print(VersionNumber version, const std::string& file, const Update& update) {
    const double latency_ms = std::chrono::duration<double, std::milli>(update.latency).count();
    Json line{{"model", arguments_.model},
              {"version", version},
              {"file", file.empty() ? Json() : Json(file)},
              {"tensors_fetched", update.tensors_fetched},
              {"bytes_fetched", update.bytes_fetched},
              {"channel", update.channel},
              {"latency_ms", latency_ms}};
    if (arguments_.every) line["gap_before"] = update.gap_before;
    return program_.out.emit(line, format("{}@{}  {} tensors, {} by {}, {:.2f} ms{}{}", arguments_.model, version,
                                          update.tensors_fetched, human_bytes(update.bytes_fetched), update.channel,
                                          latency_ms, file.empty() ? "" : " -> ", printable(file)));
  }

  /// A refused version (a hostile manifest, a publisher that lost its slab) is told once; the served one stays.
  void tell_new_error() {
    const std::string error = feed_.status().last_error;
    if (error != last_error_ && !error.empty()) program_.out.log(error);
    last_error_ = error;
  }

  /// Whoever comes first waits for the other, but a wrong address looks the same.
  void tell_waiting(Time now) {
    const SubscriberStatus status = feed_.status();
    if (told_waiting_ || tally_.newest != 0 || status.connected || !status.last_error.empty()) return;
    if (now < started_ + kWaitPatience) return;
    program_.out.log(nobody_text(arguments_.model, arguments_.at, arguments_.directory) + "; waiting for one");
    told_waiting_ = true;
  }

  Result<ExitCode> answer_deadline() const {
    if (tally_.versions == 0) {
      const bool known = feed_.status().connected || tally_.newest != 0 || !last_error_.empty();
      return fail(Code::timed_out,
                  format("no version of {} came in {} s{}{}", arguments_.model, *arguments_.duration, known ? "" : ": ",
                         known ? "" : nobody_text(arguments_.model, arguments_.at, arguments_.directory)));
    }
    if (arguments_.count) {
      return fail(Code::timed_out, format("{} of {} versions of {} came in {} s", tally_.versions, *arguments_.count,
                                          arguments_.model, *arguments_.duration));
    }
    return ended();
  }

  Result<ExitCode> ended() const {
    return tally_.failures == 0 && tally_.missed == 0 ? ExitCode::done : ExitCode::failed;
  }

  Program& program_;
  const SubscribeArguments& arguments_;
  VersionFeed& feed_;
  std::unique_ptr<VersionWriter> folder_;
  Tally tally_;
  std::string last_error_;
  const Time started_ = system_clock().now();
  bool told_waiting_ = false;
};

Result<ExitCode> subscribe(Program& program, const SubscribeArguments& arguments) {
  const Interrupt::Deferral deferral;
  program.out.outlives_full_disk = true;
  std::unique_ptr<VersionWriter> folder;
  if (!arguments.folder.empty() && arguments.layout == kWeightLayout) {
    FRESHET_ASSIGN(folder, WeightVersionFolder::open(arguments.folder, arguments.full_every, arguments.keep));
  } else if (!arguments.folder.empty()) {
    FRESHET_ASSIGN(folder, VersionFolder::open(arguments.folder, arguments.keep));
  }
  std::shared_ptr<PublisherHub> hub;
  if (arguments.relay) {
    SecurityOptions serving = arguments.security;
    // Keys to fetch with are no reason to ask neighbours of this host for theirs.
    if (serving.allow_file.empty() && arguments.listen.empty()) serving.key_file.clear();
    FRESHET_ASSIGN(hub, open_publisher_hub({.listen = arguments.listen,
                                            .directory = arguments.directory,
                                            .channels = arguments.channels,
                                            .security = serving}));
  }
  FRESHET_ASSIGN(const std::unique_ptr<VersionFeed> feed,
                 VersionFeed::open({.model = arguments.model,
                                    .at = parse_addresses(arguments.at),
                                    .directory = arguments.directory,
                                    .notifier = arguments.notifier,
                                    .security = arguments.security,
                                    .every = arguments.every,
                                    .staged = arguments.staged,
                                    .applies = !arguments.folder.empty(),
                                    .channel = arguments.channel,
                                    .label = arguments.relay ? "freshet relay" : "freshet subscribe",
                                    .relay = hub,
                                    .relay_keep_versions = arguments.keep.value_or(kRelayKeepDefault)}));
  if (hub != nullptr) {
    program.out.log(format("serving {} again at {}", arguments.model, served_at(address_of(*hub), arguments.listen)));
  }
  return FileSubscriber(program, arguments, *feed, std::move(folder)).run();
}

}  // namespace

namespace {

void add_follower_options(CLI::App& command, SubscribeArguments& arguments, const std::string& at) {
  add_addresses(command, arguments.at, at);
  add_channel(command, arguments.channel);
  add_parsed(command, "--notifier", arguments.notifier, parse_notifier,
             "the source of news about versions: the publisher (zmq), or a directory on Redis (redis)")
      ->check(CLI::IsMember({"zmq", "redis"}));
  add_directory(command, arguments.directory);
  add_security(command, arguments.security, arguments.at, AddressUse::connect);
}

/// The options of what serves again; not --keep, which concerns a folder, too.
std::vector<CLI::Option*> add_relay_options(CLI::App& command, SubscribeArguments& arguments,
                                            const std::string& keep_description) {
  CLI::Option* const offer = add_offer(command, arguments.channels);
  command.get_option("--open-loopback")
      ->description(
          "without keys, believe and admit every user of this host at loopback ports: whoever listens where this "
          "command connects, and, of a relay, whoever connects");
  CLI::Option* const allow = command.add_option("--allow", arguments.security.allow_file,
                                                "the allow-list: public keys of the clients of this relay");
  allow->type_name("FILE");
  command.add_option("--keep", arguments.keep, keep_description)
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20))
      ->type_name("N");
  CLI::Option* const listen =
      command.add_option("--listen", arguments.listen, "serve here, e.g. tcp://*:7070; default: this host alone");
  listen->type_name("ADDRESS");
  return {offer, allow, listen};
}

}  // namespace

void add_relay(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<SubscribeArguments>();
  arguments->relay = true;
  CLI::App& command = *root.add_subcommand("relay", "fetch a model once, and serve it again");
  add_json_flag(command, program);
  add_model(command, arguments->model);
  add_follower_options(command, *arguments,
                       "the address of the publisher or of the next relay; several: in order of preference");
  add_relay_options(command, *arguments,
                    "keep the last N versions, for rollbacks and for subscribers that fetch differences; default: 2");
  command.add_flag("--every", arguments->every,
                   "take every version, in order, for subscribers behind the relay that want every version");
  command.add_option("--count", arguments->count, "end after N versions")->type_name("N")->transform(positive_check());
  add_seconds(command, "--for", arguments->duration, "end after this time");
  command.footer(
      "Neighbours on this host find the relay by the model's name, and map its memory. Other hosts fetch from "
      "--listen.\n"
      "A line per version, as subscribe prints it.\n"
      "example: freshet relay demo --at tcp://trainer:7070 --listen tcp://*:7071 --keys relay --server-key trainer.pub "
      "--allow leaves.allow");
  act_with(command, program, arguments, subscribe);
}

void add_subscribe(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<SubscribeArguments>();
  CLI::App& command = *root.add_subcommand("subscribe", "follow a model, and write its versions as files");
  add_json_flag(command, program);
  add_model(command, arguments->model);
  CLI::Option* out =
      command.add_option("--out", arguments->folder, "write DIR/MODEL@V.safetensors, and the link DIR/latest");
  out->type_name("DIR");
  command
      .add_option("--layout", arguments->layout,
                  "files: a safetensors file each; weight_v: DIR/weight_vNNNNNN, whole or as deltas")
      ->check(CLI::IsMember({"files", kWeightLayout}))
      ->needs(out)
      ->capture_default_str();
  command
      .add_option("--full-every", arguments->full_every, "with weight_v: a whole checkpoint at least every N versions")
      ->transform(positive_check())
      ->type_name("N")
      ->capture_default_str();
  CLI::Option* every = command.add_flag("--every", arguments->every, "every version, in order");
  command.add_flag("--latest", arguments->latest, "the newest version, skipping overtaken ones (default)")
      ->excludes(every);
  command
      .add_flag(
          "--staged", arguments->staged,
          "a member of the group: serves a version when all members have staged it (publish --group-commit, commit)")
      ->excludes(every);
  command.add_option("--count", arguments->count, "end after N versions")->type_name("N")->transform(positive_check());
  add_seconds(command, "--for", arguments->duration, "end after this time");
  command.add_option("--exec", arguments->command, "run after each version; {} is its file")
      ->type_name("'COMMAND {}'")
      ->needs(out);
  add_follower_options(command, *arguments,
                       "the publisher's address; several: in order of preference; default: ask the directory");
  CLI::Option* relay = command.add_flag("--relay", arguments->relay, "serve the versions again: `freshet relay`");
  for (CLI::Option* option : add_relay_options(
           command, *arguments,
           "keep the N versions that were published last in DIR, and the version of DIR/latest; default: all. "
           "With --relay: also N versions in memory, for subscribers behind this one")) {
    option->needs(relay);
  }
  command.footer(
      "A line per version: model, version, file, tensors_fetched, bytes_fetched, channel, latency_ms.\n"
      "With --every also gap_before: so many versions before it did not come. The exit code is then 1.\n"
      "Without --count and --for, subscribe goes on until it is interrupted, also through restarts of the publisher.\n"
      "example: freshet subscribe demo --out models/ --exec 'kill -HUP $(cat server.pid) # {}'");
  act_with(command, program, arguments, subscribe);
}

}  // namespace freshet::cli
