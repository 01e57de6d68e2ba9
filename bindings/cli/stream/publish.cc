// SPDX-License-Identifier: Apache-2.0
// `freshet publish`: files of tensors become versions, and are served until somebody says stop.

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/model_file.h"
#include "bindings/cli/frame/program.h"
#include "bindings/cli/stream/folder_watch.h"
#include "bindings/cli/stream/patient_publisher.h"
#include "bindings/cli/stream/stray_file.h"
#include "bindings/cli/stream/watch_memory.h"
#include "bindings/cli/training/checkpoint_folder.h"
#include "core/base/format.h"
#include "core/safetensors/model_file.h"
#include "transport/file/folder_feed.h"
#include "transport/option_text.h"
#include "transport/publisher.h"

namespace freshet::cli {
namespace {

struct PublishArguments {
  std::string model;
  std::vector<std::string> files;
  std::string watch;
  std::string follow;
  std::string at;
  std::string directory;
  std::string advertise;
  ChannelChoice channels;
  SecurityOptions security;
  std::optional<double> linger;
  double settle = 1;
  bool any_architecture = false;
  std::uint64_t keep = 0;
  bool group_commit = false;
  double within = 10;
};

/// What becomes of a file whose tensors are not those of the version before.
enum class OtherArchitecture { taken, refused };

/// Turns files into versions, one after another. One thread at a time.
class FilePublisher {
 public:
  /// `other` is for files that turn up in a folder. Who names a file on the command line means that file.
  FilePublisher(Program& program, Publisher& publisher, std::string model, OtherArchitecture other)
      : program_(program), publisher_(program, publisher, std::move(model)), other_(other) {}

  /// Publishes a file of the command line, waits for the seal, prints the line. Errors name the file.
  Status publish(const std::string& path) { return publish_file(path, OtherArchitecture::taken); }

  /// Takes the file's architecture for that of the version before, and publishes nothing.
  Status adopt(const std::string& path) {
    FRESHET_ASSIGN(const std::string weights, weights_at(path));
    FRESHET_ASSIGN(const ModelFile file, ModelFile::read(weights));
    if (file.tensors().empty()) return fail(Code::invalid_argument, path + ": the file has no tensors");
    FRESHET_ASSIGN(architecture_, guess(file.tensors()));
    return {};
  }

  /// As publish() with a file that turned up in a folder. invalid_argument for one that is no version of this model;
  /// unavailable for one that is not whole yet.
  Status publish_found(const std::string& path) {
    Status published = publish_file(path, other_);
    // An index may come before its parts.
    const auto weights = weights_at(path);
    const bool waits =
        !published && published.error().code() == Code::not_found && weights && is_safetensors_index(*weights);
    return waits ? fail(Code::unavailable, published.error().message()) : published;
  }

  /// A version of a folder of versions, under its number. One that was published before (this name has given its number
  /// already) is passed over, but the newest is published anew, so that there is something to serve.
  Status publish(const file::FolderWeights& weights, bool is_newest) {
    const std::string name = file::folder_name_of(weights.number());
    const Json more{{"folder", name}};
    const Source source{.name = name, .other = other_};
    Status published = publish_tensors(weights.tensors(), {.number = weights.number(), .source = name}, more, source);
    if (!published && published.error().code() == Code::failed_precondition) {
      if (!is_newest) return {};
      published = publish_tensors(weights.tensors(), {.source = name}, more, source);
    }
    if (!published) return fail(std::move(published).error().with_context(name));
    return {};
  }

 private:
  struct Source {
    std::string name;
    OtherArchitecture other;
  };

  /// A folder stands for the weights in it.
  static Result<std::string> weights_at(const std::string& path) {
    std::error_code error;
    return std::filesystem::is_directory(path, error) ? weights_of_checkpoint(path) : path;
  }

  Status publish_file(const std::string& given, OtherArchitecture other) {
    FRESHET_ASSIGN(const std::string path, weights_at(given));
    FRESHET_ASSIGN(const ModelFile file, ModelFile::read(path));
    log_left_out(program_.out, path, file);
    TrainingFacts facts = facts_of(file, path);
    Status published = publish_tensors(
        file.tensors(), {.step = facts.step, .metrics = std::move(facts.metrics), .tags = file.tags(), .source = path},
        {{"file", path}}, {.name = path, .other = other});
    if (!published) return fail(std::move(published).error().with_context(path));
    return {};
  }

  Status publish_tensors(const std::vector<TensorView>& given, PublishOptions options, const Json& more,
                         const Source& source) {
    if (given.empty()) return fail(Code::invalid_argument, "not published: the file has no tensors");
    std::vector<TensorView> tensors;
    // Said each time: a publish that failed may have left the publisher with another one.
    options.new_architecture = architecture_;
    if (architecture_ != nullptr) tensors = in_order_of(*architecture_, given);
    if (tensors.empty()) {
      FRESHET_TRY(admit_other(given, source));
      tensors = given;
      FRESHET_ASSIGN(options.new_architecture, guess(tensors));
    }
    FRESHET_TRY(publisher_.publish(tensors, options, more));
    architecture_ = options.new_architecture;
    return {};
  }

  /// A stray file in the folder must not take the place of the model that is served.
  Status admit_other(const std::vector<TensorView>& given, const Source& source) {
    if (architecture_ == nullptr) return {};
    const std::string difference = difference_from(*architecture_, given);
    if (source.other == OtherArchitecture::refused) {
      return fail(
          Code::invalid_argument,
          format(
              "not published: another architecture than the version before: {}; use --any-architecture to publish it",
              difference));
    }
    program_.out.log(format("{}: another architecture than the version before: {}", source.name, difference));
    return {};
  }

  static Result<std::shared_ptr<const Architecture>> guess(const std::vector<TensorView>& tensors) {
    std::vector<TensorSpec> specs;
    specs.reserve(tensors.size());
    for (const TensorView& view : tensors) specs.push_back(view.spec);
    return Architecture::guess_chain(std::move(specs));
  }

  Program& program_;
  PatientPublisher publisher_;
  OtherArchitecture other_;
  std::shared_ptr<const Architecture> architecture_;  ///< Of the version before.
};

/// Serves for `linger` after the last version, or until interrupted.
Status linger(const Program& program, const std::optional<double>& linger) {
  const Time deadline = linger ? system_clock().now() + seconds(*linger) : Time::max();
  if (program.interrupt.wait_until(deadline)) return fail(Code::cancelled, "interrupted");
  return {};
}

/// A folder's files as versions: which of those that are there at the start, and then what appears.
class WatchedFolder {
 public:
  WatchedFolder(Program& program, FilePublisher& files, FolderWatch& watch, WatchMemory& memory)
      : program_(program), files_(files), watch_(watch), memory_(memory) {}

  /// Leaves out what a publisher of this model published before, so that a restart takes nobody back: what is newer is
  /// left, or else what was published last. If that is not known, the newest file is left.
  void pass_over_published() {
    const std::vector<FolderWatch::File> waiting = watch_.waiting();
    std::vector<std::string> old;
    for (const FolderWatch::File& file : waiting) {
      if (memory_.is_empty() || !memory_.is_newer(file.name, file.modified_ns)) old.push_back(file.name);
    }
    // The best one to begin with is the last.
    std::ranges::stable_partition(old, [&](const std::string& name) { return name != memory_.last(); });
    std::ranges::stable_partition(old, [](const std::string& name) { return has_name_of_part(name); });
    if (old.size() == waiting.size() && !old.empty()) old.pop_back();
    for (const std::string& name : old) watch_.pass_over(name);
    older_ = std::move(old);
  }

  /// Until interrupted or until nothing came for `linger`. A bad file is logged, and the others go on.
  Status follow(const std::optional<double>& linger) {
    Time last = system_clock().now();
    for (;;) {
      const Time deadline = linger ? last + seconds(*linger) : Time::max();
      FRESHET_ASSIGN(const std::vector<std::string> paths, watch_.wait(deadline, program_.interrupt.descriptor()));
      if (program_.interrupt.requested()) return fail(Code::cancelled, "interrupted");
      if (paths.empty()) break;
      bool is_news = false;
      for (const std::string& path : paths) FRESHET_TRY(publish(path, is_news));
      // Nothing of what is new can be served: what was there before is better than nothing.
      while (!has_published_ && !older_.empty()) {
        const std::string path = watch_.path_of(older_.back());
        older_.pop_back();
        FRESHET_TRY(publish(path, is_news));
      }
      const Time now = system_clock().now();
      if (is_news) {
        last = now;
      } else if (now >= deadline) {
        break;
      }
    }
    tell_incomplete();
    return {};
  }

 private:
  /// Sets `is_news` when a version came of the file, or a complaint that was not made before.
  Status publish(const std::string& path, bool& is_news) {
    const FolderWatch::File file = watch_.handed_out(path);
    const Status published = files_.publish_found(path);
    if (published) {
      is_news = has_published_ = true;
      incomplete_.erase(path);
      memory_.note(file.name, file.modified_ns);
      return {};
    }
    const Error& why = published.error();
    if (why.code() == Code::cancelled) return published;
    // A file that waits for its writer is looked at again and again.
    const bool waits = why.code() == Code::unavailable;
    std::string& said = waits ? incomplete_[path] : said_;
    if (why.message() != said) {
      program_.out.log(why.message());
      said = why.message();
      is_news = true;
    }
    if (waits) {
      watch_.look_again(path);
    } else {
      incomplete_.erase(path);
    }
    return {};
  }

  void tell_incomplete() const {
    for (const FolderWatch::File& file : watch_.waiting()) {
      const std::string path = watch_.path_of(file.name);
      if (incomplete_.contains(path)) program_.out.log(path + " stayed incomplete, and is not published");
    }
  }

  Program& program_;
  FilePublisher& files_;
  FolderWatch& watch_;
  WatchMemory& memory_;
  std::vector<std::string> older_;                 ///< Names of files that were passed over at the start.
  std::string said_;                               ///< The last complaint about a whole file.
  std::map<std::string, std::string> incomplete_;  ///< The last complaint about each file that waits for its writer.
  bool has_published_ = false;
};

/// Publishes the versions that appear in a folder of weight_vNNNNNN, in the same way.
Status follow(Program& program, FilePublisher& files, const std::string& folder, const std::optional<double>& linger) {
  file::FolderFeed feed(folder, {.every = true});
  const auto is_newest = [&](VersionNumber number) {
    const auto reader = file::WeightFolderReader::open(folder);
    const Result<std::vector<VersionNumber>> all = reader ? reader->versions() : fail(reader.error());
    return all && !all->empty() && all->back() == number;
  };
  Time last = system_clock().now();
  for (;;) {
    const Time deadline = linger ? last + seconds(*linger) : Time::max();
    const auto weights = feed.next(deadline, program.interrupt.descriptor());
    if (program.interrupt.requested()) return fail(Code::cancelled, "interrupted");
    if (weights && *weights == nullptr) return {};
    const Status published =
        weights ? files.publish(**weights, is_newest((*weights)->number())) : Status(fail(weights.error()));
    last = system_clock().now();
    if (published) continue;
    if (published.error().code() == Code::cancelled) return published;
    program.out.log(published.error().message());
  }
}

Result<ExitCode> publish(Program& program, const PublishArguments& arguments) {
  const Interrupt::Deferral deferral;
  program.out.outlives_full_disk = true;
  std::optional<FolderWatch> watch;
  if (!arguments.watch.empty()) {
    FRESHET_ASSIGN(FolderWatch opened, FolderWatch::open(arguments.watch, seconds(arguments.settle)));
    watch.emplace(std::move(opened));
  }
  PublisherOptions options{.model = arguments.model};
  options.hub_options = {.listen = arguments.at,
                         .directory = arguments.directory,
                         .channels = arguments.channels,
                         .security = arguments.security,
                         .advertise = parse_addresses(arguments.advertise)};
  options.keep_versions = arguments.keep;
  // No loop of this process's waits for memory to be touched, and many a command never has a second version.
  options.arena_copies = 1;
  options.group_commit = arguments.group_commit;
  options.group_within = seconds(arguments.within);
  FRESHET_ASSIGN(const std::unique_ptr<Publisher> publisher, open_patiently(program, options));
  FilePublisher files(program, *publisher, arguments.model,
                      arguments.any_architecture ? OtherArchitecture::taken : OtherArchitecture::refused);
  WatchMemory memory;
  std::optional<WatchedFolder> folder;
  if (watch) {
    memory = WatchMemory::open(arguments.model, arguments.watch);
    folder.emplace(program, files, *watch, memory);
    if (publisher->number_before() != 0) folder->pass_over_published();
  }
  // What a restart has published before, and the folder has something newer for, would take subscribers back.
  const bool goes_on = watch && publisher->number_before() != 0 && !memory.is_empty() && !watch->waiting().empty();
  for (const std::string& path : arguments.files) {
    if (program.interrupt.requested()) return ExitCode::interrupted;
    if (goes_on && memory.has_given(path)) {
      FRESHET_TRY(files.adopt(path));
      continue;
    }
    FRESHET_TRY(files.publish(path));
    if (watch) memory.note_given(path);
  }
  program.out.log(format("{} is served at {}", arguments.model, served_at(publisher->address(), arguments.at)));
  if (folder) {
    FRESHET_TRY(folder->follow(arguments.linger));
  } else if (!arguments.follow.empty()) {
    FRESHET_TRY(follow(program, files, arguments.follow, arguments.linger));
  } else {
    FRESHET_TRY(linger(program, arguments.linger));
  }
  return ExitCode::done;
}

}  // namespace

void add_publish(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<PublishArguments>();
  CLI::App& command = *root.add_subcommand("publish", "make versions from safetensors files, and serve them");
  add_json_flag(command, program);
  add_model(command, arguments->model);
  command
      .add_option("FILE", arguments->files,
                  "each is one version, in order; an index of parts is one, and a folder checkpoint-N")
      ->type_name("FILE.safetensors");
  CLI::Option* watch =
      command
          .add_option("--watch", arguments->watch,
                      "each complete *.safetensors or checkpoint-N that appears in DIR is a version; parts are one, by "
                      "their index")
          ->type_name("DIR");
  command
      .add_option("--follow", arguments->follow,
                  "each weight_vNNNNNN that appears in DIR, whole or a delta, is a version with its number")
      ->type_name("DIR")
      ->excludes(watch);
  add_seconds(command, "--settle", arguments->settle,
              "a watched file is complete when it has not changed for this time, or was renamed into place")
      ->capture_default_str();
  command.add_flag("--any-architecture", arguments->any_architecture,
                   "publish also files of the folder with other tensor names, types or shapes than the version before");
  add_seconds(command, "--linger", arguments->linger,
              "how long to serve after the last version; default: until interrupted");
  command
      .add_option("--keep", arguments->keep,
                  "keep the last N versions, for `freshet rollback` and for subscribers that fetch differences")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N");
  CLI::Option* const group =
      command.add_flag("--group-commit", arguments->group_commit,
                       "subscribers serve a version when all `subscribe --staged` have staged it");
  add_seconds(command, "--within", arguments->within, "the longest time for the members")
      ->needs(group)
      ->capture_default_str();
  add_address(command, arguments->at, AddressUse::bind, "listen here, e.g. tcp://127.0.0.1:7070");
  command
      .add_option("--advertise", arguments->advertise,
                  "the address that the directory gives to others, if they cannot use --listen; several with commas")
      ->type_name("ADDRESS");
  add_offer(command, arguments->channels);
  add_directory(command, arguments->directory);
  add_security(command, arguments->security, arguments->at, AddressUse::bind);
  command.footer(
      "The file's __metadata__ travels with the version. A checkpoint-N gives its step, and the losses of its\n"
      "trainer_state.json.\n"
      "A line per version: model, version, tensors, changed_tensors, bytes (of the changed tensors), blocked_ms,\n"
      "file.\n"
      "example: freshet publish demo --watch checkpoints/");
  command.callback([&program, arguments] {
    if (arguments->files.empty() && arguments->watch.empty() && arguments->follow.empty()) {
      throw CLI::ValidationError("publish: give FILEs, --watch DIR or --follow DIR");
    }
    program.action = [&program, arguments] { return publish(program, *arguments); };
  });
}

}  // namespace freshet::cli
