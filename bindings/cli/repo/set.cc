// SPDX-License-Identifier: Apache-2.0
// `freshet repo set`: what is said of a version after it was stored.

#include <optional>
#include <set>
#include <utility>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct SetArguments {
  std::string version;
  std::optional<double> quality;
  bool no_quality = false;
  std::vector<std::string> tags;
  std::vector<std::string> untags;
};

Annotations annotations_of(const SetArguments& arguments) {
  Annotations annotations{.sets_quality = arguments.quality || arguments.no_quality, .quality = arguments.quality};
  for (const std::string& text : arguments.tags) {
    auto tag = tag_of(text);
    annotations.tags.emplace_back(std::move(tag.first), std::move(tag.second));
  }
  for (const std::string& key : arguments.untags) annotations.tags.emplace_back(key, std::nullopt);
  return annotations;
}

Result<ExitCode> set(Program& program, Repository& repository, const SetArguments& arguments) {
  FRESHET_ASSIGN(VersionName name, repository.resolve(arguments.version));
  if (name.number == 0) {
    FRESHET_ASSIGN(name.number, repository.latest(name.model));
  }
  FRESHET_TRY(repository.annotate(name, annotations_of(arguments)));
  FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
  Json tags = Json::object();
  for (const auto& [key, value] : record.manifest.tags) tags[key] = value;
  FRESHET_TRY(program.out.emit(
      {{"model", name.model}, {"version", name.number}, {"quality", quality_json(record.quality)}, {"tags", tags}},
      format("{}  quality {}, tags {}", to_string(name), record.quality ? format("{}", *record.quality) : "-",
             printable(to_line(tags)))));
  return ExitCode::done;
}

void check_set_options(const SetArguments& arguments) {
  if (!arguments.quality && !arguments.no_quality && arguments.tags.empty() && arguments.untags.empty()) {
    throw CLI::ValidationError("set: give --quality, --no-quality, --tag or --untag");
  }
  std::set<std::string> keys;
  std::vector<std::string> named = arguments.untags;
  for (const std::string& tag : arguments.tags) named.push_back(tag_of(tag).first);
  for (const std::string& key : named) {
    if (!keys.insert(key).second) throw CLI::ValidationError("set: tag " + key + " is named twice");
  }
}

}  // namespace

void add_set(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<SetArguments>();
  CLI::App& command = add_repo_command(repo, program, "set", "change the quality and the tags of a stored version");
  add_reference(command, "MODEL[@V]", arguments->version, "the version; without @V the newest");
  CLI::Option* const quality =
      command.add_option("--quality", arguments->quality, "the version's quality; larger is better");
  quality->type_name("Q")->check(number_check());
  command.add_flag("--no-quality", arguments->no_quality, "remove the quality")->excludes(quality);
  command.add_option("--tag", arguments->tags, "a tag; replaces a tag with the same key; repeatable")
      ->type_name("K=V")
      ->check(tag_check())
      ->allow_extra_args(false);
  command.add_option("--untag", arguments->untags, "the key of a tag to remove; repeatable")
      ->type_name("K")
      ->allow_extra_args(false);
  command.footer(
      "All of it or nothing, and visible to `match` at once. A line of JSON: model, version, quality, tags.\n"
      "example: freshet repo set net@7 --quality 0.93 --tag evaluated=yes");
  act_on_repository(command, program, arguments, RepositoryAccess::write, set, check_set_options);
}

}  // namespace freshet::cli
