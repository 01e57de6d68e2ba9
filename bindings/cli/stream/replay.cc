// SPDX-License-Identifier: Apache-2.0
// `freshet replay`: a run that a repository stored is published again, at its own pace or faster, so that a server can
// be tested against it.

#include <cmath>
#include <limits>
#include <memory>
#include <new>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/cli/stream/patient_publisher.h"
#include "bindings/cli/stream/replay_pace.h"
#include "core/base/format.h"
#include "core/model/own_tags.h"

namespace freshet::cli {
namespace {

struct ReplayArguments {
  std::string run;
  VersionNumber from = 0;
  VersionNumber to = std::numeric_limits<VersionNumber>::max();
  double speed = 1;
  bool fast = false;
  std::optional<double> pause_max;
  std::string as;
  std::string at;
  std::string directory;
  ChannelChoice channels;
  SecurityOptions security;
  std::size_t wait_for = 0;
  std::optional<double> linger;
};

/// The stored run's model in memory, brought from version to version by reading only what changed.
class StoredModel {
 public:
  explicit StoredModel(const Repository& repository) : repository_(repository) {}

  /// Reads what `record` has and memory has not. The indices of those tensors.
  Result<std::vector<std::uint32_t>> bring_to(const VersionRecord& record) {
    const Manifest& manifest = record.manifest;
    const bool same_form = architecture_ != nullptr && architecture_->digest() == manifest.architecture->digest();
    if (!same_form) FRESHET_TRY(make_room(manifest.architecture));
    std::vector<std::uint32_t> changed = manifest.owners.changed_since(owners_);
    owners_ = {};  // Until the memory is whole again.
    std::vector<Repository::TensorRead> reads;
    for (const std::uint32_t tensor : changed) reads.push_back({.tensor = tensor, .out = memory_of(tensor)});
    FRESHET_TRY(repository_.read(record, reads));
    owners_ = manifest.owners;
    return changed;
  }

  std::vector<TensorView> tensors() const {
    std::vector<TensorView> views;
    for (std::uint32_t i = 0; i < offsets_.size(); ++i) {
      views.push_back({.spec = architecture_->tensors()[i], .data = memory_of(i)});
    }
    return views;
  }
  const std::shared_ptr<const Architecture>& architecture() const { return architecture_; }

 private:
  Status make_room(std::shared_ptr<const Architecture> architecture) {
    owners_ = {};
    architecture_ = std::move(architecture);
    offsets_.clear();
    std::uint64_t bytes = 0;
    for (const TensorSpec& spec : architecture_->tensors()) {
      offsets_.push_back(bytes);
      bytes += spec.bytes();
    }
    memory_.reset();
    memory_.reset(new (std::nothrow) std::byte[bytes]);
    if (memory_ != nullptr) return {};
    return fail(Code::out_of_space, format("no {} bytes of memory for the model", bytes));
  }

  MutableBytes memory_of(std::uint32_t tensor) const {
    return {memory_.get() + offsets_[tensor], architecture_->tensors()[tensor].bytes()};
  }

  const Repository& repository_;
  std::shared_ptr<const Architecture> architecture_;
  std::vector<std::uint64_t> offsets_;
  std::unique_ptr<std::byte[]> memory_;
  OwnerMap owners_;  ///< Of what the memory holds; empty when that is no whole version.
};

/// The versions that are to be replayed, ascending.
Result<std::vector<VersionName>> versions_of(const Repository& repository, const ReplayArguments& arguments) {
  FRESHET_ASSIGN(const std::vector<LineageRow> rows, repository.versions(arguments.run));
  std::vector<VersionName> chosen;
  for (const LineageRow& row : rows) {
    const VersionNumber number = row.version.number;
    if (!row.retired && number >= arguments.from && number <= arguments.to) chosen.push_back(row.version);
  }
  if (!chosen.empty()) return chosen;
  return fail(Code::not_found,
              format("{}: none of its {} versions lies between --from and --to", arguments.run, rows.size()));
}

PublishOptions options_of(const VersionRecord& record, const StoredModel& model, std::vector<std::uint32_t> changed) {
  PublishOptions options{.step = record.manifest.step,
                         .metrics = record.manifest.metrics,
                         .changed = Changed::only(std::move(changed)),
                         .tags = record.manifest.tags,
                         .new_architecture = model.architecture()};
  drop_bad_own_tags(options.tags);  // Of a version that is older than the check.
  // The last word on where it comes from is this one.
  std::erase_if(options.tags, [](const auto& tag) { return tag.first == "replay_of"; });
  options.tags.emplace_back("replay_of", to_string(record.manifest.name));
  return options;
}

Status replay_all(Program& program, const Repository& repository, Publisher& publisher,
                  const std::vector<VersionName>& versions, const ReplayArguments& arguments) {
  PatientPublisher patient(program, publisher, arguments.as);
  StoredModel model(repository);
  ReplayPace pace({.speed = arguments.fast ? std::numeric_limits<double>::infinity() : arguments.speed,
                   .pause_max = arguments.pause_max ? seconds(*arguments.pause_max) : Duration::max()},
                  system_clock().now());
  for (const VersionName& name : versions) {
    FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
    if (!record.has_weights) {
      program.out.log(format("{} is passed over: it has no weights", to_string(name)));
      continue;
    }
    FRESHET_ASSIGN(auto changed, model.bring_to(record));
    const Time due = pace.next(record.manifest.created_unix_ns);
    if (program.interrupt.wait_until(due)) return fail(Code::cancelled, "interrupted");
    const Duration late = system_clock().now() - due;
    const double late_ms = arguments.fast ? 0 : std::chrono::duration<double, std::milli>(late).count();
    FRESHET_TRY(patient.publish(model.tensors(), options_of(record, model, std::move(changed)),
                                {{"replay_of", to_string(name)}, {"late_ms", late_ms}}));
  }
  return {};
}

/// A run that starts before its servers would be half over when they come.
Status wait_for_subscribers(const Program& program, const Publisher& publisher, std::size_t wanted) {
  while (publisher.stat().subscribers.size() < wanted) {
    if (program.interrupt.wait_until(system_clock().now() + kInterruptLatency)) {
      return fail(Code::cancelled, "interrupted");
    }
  }
  return {};
}

Result<ExitCode> replay(Program& program, const Repository& repository, const ReplayArguments& arguments) {
  FRESHET_ASSIGN(const auto versions, versions_of(repository, arguments));
  const Interrupt::Deferral deferral;
  program.out.outlives_full_disk = true;
  PublisherOptions options{.model = arguments.as};
  options.hub_options = {.listen = arguments.at,
                         .directory = arguments.directory,
                         .channels = arguments.channels,
                         .security = arguments.security};
  FRESHET_ASSIGN(const std::unique_ptr<Publisher> publisher, open_patiently(program, options));
  program.out.log(format("{} versions of {} are replayed as {} at {}", versions.size(), arguments.run, arguments.as,
                         publisher->address()));
  FRESHET_TRY(wait_for_subscribers(program, *publisher, arguments.wait_for));
  FRESHET_TRY(replay_all(program, repository, *publisher, versions, arguments));
  const Time until = arguments.linger ? system_clock().now() + seconds(*arguments.linger) : Time::max();
  return program.interrupt.wait_until(until) ? ExitCode::interrupted : ExitCode::done;
}

}  // namespace

void add_replay(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<ReplayArguments>();
  CLI::App& command = *root.add_subcommand("replay", "publish a stored run again, at its own pace or faster");
  add_json_flag(command, program);
  command.add_option("--repo", program.repository, "the repository: a folder, or an address that needs no keys")
      ->type_name("PLACE")
      ->envname("FRESHET_REPO");
  command.add_option("RUN", arguments->run, "the model to replay")->required()->check(model_check());
  command.add_option("--from", arguments->from, "the first version")->type_name("V");
  command.add_option("--to", arguments->to, "the last version")->type_name("V");
  auto* speed = command.add_option("--speed", arguments->speed, "X times the speed of the training")
                    ->check(number_check())
                    ->check(CLI::PositiveNumber)
                    ->type_name("X")
                    ->capture_default_str();
  command.add_flag("--fast", arguments->fast, "do not wait: publish each version as soon as the one before is sealed")
      ->excludes(speed);
  add_seconds(command, "--pause-max", arguments->pause_max, "the longest wait between two versions");
  command.add_option("--as", arguments->as, "publish under this name; default: the run's own")->check(model_check());
  command.add_option("--wait-for", arguments->wait_for, "begin when N subscribers are there")->type_name("N");
  add_seconds(command, "--linger", arguments->linger,
              "how long to serve after the last version; default: until interrupted");
  add_address(command, arguments->at, AddressUse::bind, "listen here, e.g. tcp://127.0.0.1:7070");
  add_offer(command, arguments->channels);
  add_directory(command, arguments->directory);
  add_security(command, arguments->security, arguments->at, AddressUse::bind);
  command.footer(
      "Versions keep steps, metrics and tags. The tag replay_of names the stored version. Only changed tensors are "
      "read.\n"
      "A line per version: as publish prints it, and replay_of, late_ms.\n"
      "example: freshet replay demo --repo ~/models --speed 10");
  act_on_repository(command, program, arguments, RepositoryAccess::read,
                    [](Program& running, const Repository& repository, ReplayArguments& given) -> Result<ExitCode> {
                      if (given.as.empty()) given.as = given.run;
                      return replay(running, repository, given);
                    });
}

}  // namespace freshet::cli
