// SPDX-License-Identifier: Apache-2.0
// `freshet archive`: every version of a model, stored in a repository as the publisher makes them.

#include <deque>
#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/cli/stream/version_feed.h"
#include "bindings/runtime/bucket_place.h"
#include "bindings/runtime/folder_socket.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "repo/sink.h"
#include "transport/option_text.h"

namespace freshet::cli {
namespace {

/// After an interruption, announced versions are stored for at most this time.
constexpr Duration kLastVersions = std::chrono::seconds(60);
/// Between two looks whether another process still owns the place.
constexpr Duration kOwnerPause = std::chrono::seconds(1);

struct ArchiveArguments {
  std::string model;
  std::string at;
  std::string directory;
  SecurityOptions security;
  std::string provider_key;
  bool dedup = false;
  bool deltas = false;
  std::optional<std::uint64_t> count;
  std::optional<double> duration;
};

/// What the sink's thread tells, for the thread that prints. Any thread.
class StoredVersions {
 public:
  void put(const SinkOptions::Event& event) {
    const MutexLock lock(mutex_);
    if (event.status) {
      events_.push_back(event);
      broken_.reset();
    } else if (event.status.error().code() == Code::io_error || event.status.error().code() == Code::not_found) {
      broken_ = event.status.error();
    }
  }
  std::deque<SinkOptions::Event> take() {
    const MutexLock lock(mutex_);
    return std::exchange(events_, {});
  }
  /// The store under the repository failed, or its files are gone. It takes nothing until it is opened again.
  std::optional<Error> broken() {
    const MutexLock lock(mutex_);
    return broken_;
  }
  /// It was opened again.
  void mend() {
    const MutexLock lock(mutex_);
    broken_.reset();
  }

 private:
  Mutex mutex_;
  std::deque<SinkOptions::Event> events_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Error> broken_ FRESHET_GUARDED_BY(mutex_);
};

class Archive {
 public:
  Archive(Program& program, const ArchiveArguments& arguments) : program_(program), arguments_(arguments) {}

  Result<ExitCode> run() {
    FRESHET_TRY(open_first());
    say_if_part(program_, repository_);
    FRESHET_TRY(open_sink());
    if (is_owner()) program_.out.log(format("{} is owned and served by this archive", program_.repository));
    const Time deadline = arguments_.duration ? started_ + seconds(*arguments_.duration) : Time::max();
    for (;;) {
      FRESHET_TRY(print_stored());
      if (has_all()) return ended();
      if (const auto broken = stored_.broken(); broken && is_owner()) return fail(with_advice(*broken));
      const Time now = system_clock().now();
      if (now >= deadline) return answer_deadline();
      if (program_.interrupt.wait_until(std::min(deadline, now + kInterruptLatency))) return interrupted();
      tell_waiting(now);
      FRESHET_TRY(take_place_over(now));
    }
  }

 private:
  Result<OpenedRepository> open(RepositoryAccess access) const {
    RepositoryOptions options{.access = access};
    options.security = {.key_file = arguments_.provider_key.empty() ? "" : arguments_.security.key_file,
                        .server_key = arguments_.provider_key,
                        .open_loopback = arguments_.security.open_loopback};
    return open_repository(program_.repository, options);
  }

  /// A bucket without a provider is refused, and without a repository nothing begins there.
  Status open_first() {
    const bool in_store = is_store_place(program_.repository);
    Result<OpenedRepository> opened = open(in_store ? RepositoryAccess::write : RepositoryAccess::create);
    if (opened) repository_ = std::move(*opened);
    const bool is_missing = !opened && opened.error().code() == Code::not_found;
    if (!in_store || (opened ? !is_owner() : !is_missing)) return opened.map([](const OpenedRepository&) {});
    return fail(
        Code::failed_precondition,
        format("{}, and an archive serves no bucket and no pool: start `freshet provider --repo {} --listen ADDRESS` "
               "first",
               opened ? program_.repository + " has no provider" : opened.error().message(), program_.repository));
  }

  Status open_sink() {
    FRESHET_ASSIGN(sink_, Sink::open(*repository_, {.model = arguments_.model,
                                                    .at = parse_addresses(arguments_.at),
                                                    .security = arguments_.security,
                                                    .directory = arguments_.directory,
                                                    .label = "freshet archive",
                                                    .dedup = arguments_.dedup,
                                                    .deltas = arguments_.deltas,
                                                    .on_event = [this](const auto& event) { stored_.put(event); }}));
    return {};
  }

  /// An archive that stores nothing must not look like one that runs.
  Error with_advice(const Error& error) const {
    return Error(error.code(), format("{}; nothing more can be stored: if {} was moved or its disk failed, mend that, "
                                      "and start the archive again",
                                      error.message(), program_.repository));
  }

  bool is_owner() const { return repository_.get_deleter().own() != nullptr; }
  bool has_all() const { return arguments_.count && versions_ >= *arguments_.count; }

  Status print_stored() {
    for (const SinkOptions::Event& event : stored_.take()) {
      if (has_all()) return {};
      ++versions_;
      missed_ += event.gap_before;
      FRESHET_TRY(print(event));
    }
    return {};
  }

  Status print(const SinkOptions::Event& event) {
    Json metrics = Json::object();
    std::string told;
    for (const auto& [name, value] : event.metrics) {
      metrics[name] = value;
      told += format("  {} {}", printable(name), value);
    }
    const double put_ms = std::chrono::duration<double, std::milli>(event.put_time).count();
    return program_.out.emit({{"model", event.version.model},
                              {"version", event.version.number},
                              {"published", event.published},
                              {"step", event.step},
                              {"metrics", metrics},
                              {"own_bytes", event.own_bytes},
                              {"gap_before", event.gap_before},
                              {"put_ms", put_ms}},
                             format("{}  step {}{}  {} in {:.1f} ms{}", to_string(event.version), event.step, told,
                                    human_bytes(event.own_bytes), put_ms,
                                    event.gap_before == 0 ? "" : format("  ({} before it missing)", event.gap_before)));
  }

  /// Publisher and archive may start in either order. But a wrong name looks like a publisher that is not there yet.
  void tell_waiting(Time now) {
    if (told_waiting_ || versions_ != 0 || now < started_ + kWaitPatience || sink_->status().connected) return;
    program_.out.log(nobody_text(arguments_.model, arguments_.at, arguments_.directory) + "; waiting for one");
    told_waiting_ = true;
  }

  /// Another process owned the folder, and ended: its place is free. A folder that is gone was moved with its owner.
  /// The archive makes no other in its place.
  Status take_place_over(Time now) {
    if (now < look_at_ || is_owner() || is_repository_address(program_.repository)) return {};
    look_at_ = now + kOwnerPause;
    if (is_folder_offered(program_.repository)) return {};
    Result<OpenedRepository> opened = open(RepositoryAccess::write);
    if (!opened && opened.error().code() == Code::not_found) return fail(with_advice(opened.error()));
    if (!opened || opened->get_deleter().own() == nullptr) return {};
    sink_.reset();
    repository_ = std::move(*opened);
    stored_.mend();
    FRESHET_TRY(open_sink());
    program_.out.log(format("the owner of {} ended; this archive owns and serves it now", program_.repository));
    return {};
  }

  Result<ExitCode> interrupted() {
    if (!sink_->finish(kLastVersions)) {
      const std::string reason = sink_->status().last_error;
      program_.out.log(format("not every version of {} is stored{}{}", arguments_.model, reason.empty() ? "" : ": ",
                              reason.empty() ? "; the disk was too slow" : reason));
    }
    FRESHET_TRY(print_stored());
    return ExitCode::interrupted;
  }

  Result<ExitCode> answer_deadline() {
    const bool known = versions_ != 0 || sink_->status().connected;
    if (versions_ != 0 && !arguments_.count) return ended();
    return fail(
        Code::timed_out,
        format("{} versions of {} were stored in {} s{}{}", versions_, arguments_.model, *arguments_.duration,
               known ? "" : ": ", known ? "" : nobody_text(arguments_.model, arguments_.at, arguments_.directory)));
  }

  ExitCode ended() const { return missed_ == 0 ? ExitCode::done : ExitCode::failed; }

  Program& program_;
  const ArchiveArguments& arguments_;
  const Time started_ = system_clock().now();
  Time look_at_{};
  bool told_waiting_ = false;
  std::uint64_t versions_ = 0;
  std::uint64_t missed_ = 0;
  StoredVersions stored_;
  OpenedRepository repository_;
  std::unique_ptr<Sink> sink_;  // Ends before the repository.
};

Result<ExitCode> archive(Program& program, const ArchiveArguments& arguments) {
  const Interrupt::Deferral deferral;
  program.out.outlives_full_disk = true;
  return Archive(program, arguments).run();
}

}  // namespace

void add_archive(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<ArchiveArguments>();
  CLI::App& command = *root.add_subcommand("archive", "store every version of a model in a repository, as it comes");
  add_json_flag(command, program);
  add_model(command, arguments->model);
  add_repository_option(command, program);
  add_addresses(command, arguments->at, "the publisher's address; default: ask the directory");
  add_directory(command, arguments->directory);
  add_security(command, arguments->security, arguments->at, AddressUse::connect);
  command
      .add_option("--provider-key", arguments->provider_key,
                  "for a PLACE that is a provider with keys: its public key, or its NAME.pub")
      ->type_name("KEY")
      ->needs(command.get_option("--keys"));
  command.add_flag("--dedup", arguments->dedup, "inherit tensors with equal content from any version");
  command.add_flag("--deltas", arguments->deltas,
                   "keep fine-tuned tensors as lossless differences from the ancestor's, if that saves a quarter");
  command.add_option("--count", arguments->count, "end after N versions")->type_name("N")->transform(positive_check());
  add_seconds(command, "--for", arguments->duration, "end after this time");
  command.footer(
      "Owns the folder and serves it: other commands with the same --repo go through the archive. If another process\n"
      "owns the folder, the archive stores through that process, and owns the folder when that process has ended.\n"
      "A line of JSON for each stored version: model, version, published (the publisher's number), step, metrics,\n"
      "own_bytes, gap_before, put_ms. A version that came while the disk was full is tried again until the next "
      "comes.\n"
      "SIGTERM: the archive stores the announced versions, and ends with 130.\n"
      "example: freshet archive demo --repo runs");
  command.callback([&program, arguments] {
    require_repository(program);
    program.action = [&program, arguments] { return archive(program, *arguments); };
  });
}

}  // namespace freshet::cli
