// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/job.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "core/base/format.h"
#include "core/base/log.h"
#include "transport/group/launcher.h"

namespace freshet::levels {
namespace {

std::string machine_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

}  // namespace

Job::Job(Checkpointer::Options options_given, std::vector<LaidTensor> tensors_given)
    : options(std::move(options_given)),
      tensors(std::move(tensors_given)),
      host(options.host.empty() ? machine_name() : options.host),
      env(options.env != nullptr ? *options.env : system_env()) {}

Status Job::check_options() const {
  FRESHET_TRY(check_model_name(options.model));
  FRESHET_TRY(check_layouts(tensors, options.ranks));
  if (options.rank >= options.ranks) {
    return refuse(format("rank {} of {} ranks cannot be: ranks count from 0", options.rank, options.ranks));
  }
  if (options.ranks > 1 && options.meet.empty()) return refuse("more than one rank: say where they meet");
  if (options.lost_after < std::chrono::milliseconds(200)) {
    return refuse("lost_after is 0.2 seconds or more: peers say twice as often that they live");
  }
  if (options.local.empty()) return refuse("a folder for the level local is needed");
  return {};
}

void Job::cut_tensors() {
  levels = {Level::memory, Level::local};
  if (options.group.kind != GroupScheme::Kind::none) levels.push_back(Level::group);
  if (options.external) levels.push_back(Level::external);
  const auto table = TensorTable::of(whole_tensors(tensors, options.ranks));
  cut = std::make_unique<ShareCut>(table, options.ranks, options.rank);

  std::unordered_map<std::string_view, std::uint32_t> whole;
  for (std::uint32_t i = 0; i < table->tensors.size(); ++i) whole.emplace(table->tensors[i].spec.name, i);
  for (const LaidTensor& tensor : tensors) {
    const std::string name =
        tensor.layout.cut == Cut::own ? own_name(tensor.spec.name, options.rank) : tensor.spec.name;
    OwnTensor& mine = own.emplace_back();
    mine.whole = whole.at(name);
    mine.bytes = held_piece(table->tensors[mine.whole], mine.whole, options.ranks, options.rank).bytes();
    const auto at = std::ranges::lower_bound(cut->pieces, mine.whole, {},
                                             [](const StoredPiece& stored) { return stored.piece.tensor; });
    if (at == cut->pieces.end() || at->piece.tensor != mine.whole) continue;
    mine.piece = static_cast<std::size_t>(at - cut->pieces.begin());
    mine.offset = at->offset_in_held;
  }
}

std::uint32_t Job::keeps(Level level, std::uint32_t otherwise) const {
  const auto wanted = options.keep.find(level);
  return wanted == options.keep.end() ? otherwise : std::max(wanted->second, 1U);
}

Version Job::version_of(VersionNumber number) const {
  Version version = life;
  version.number = number;
  version.id.sequence = number - life.number;
  return version;
}

group::Claims Job::claims() const {
  std::string level_names;
  for (const Level level : levels) level_names += format("{}{}", level_names.empty() ? "" : ",", name_of(level));
  group::Claims claims = {{"model", options.model},
                          {"tensors", to_hex(cut->table->digest)},
                          {"levels", level_names},
                          {"when-behind", options.when_behind == WhenBehind::skip ? "skip" : "wait"}};
  const std::string name = options.job.empty() ? group::job_of_launcher(env, options.ranks) : options.job;
  if (!name.empty()) claims.emplace_back(group::kJobClaim, name);
  if (options.group.kind != GroupScheme::Kind::none) claims.emplace_back("group", to_string(options.group));
  claims.insert(claims.end(), options.alike.begin(), options.alike.end());
  return claims;
}

void Job::point(std::string_view name, std::uint64_t step) const {
  if (options.at_point) options.at_point(name, step);
}

void Job::say(LevelNote::Kind kind, const Version& version, std::uint64_t step, Level level,
              const std::optional<Error>& error) const {
  group->note(0,
              encode(LevelNote{.kind = kind, .version = version.number, .step = step, .level = level, .error = error}));
}

void Job::warn(std::string_view text) const {
  log_line(LogLevel::warning, format("checkpoints of {}: {}", options.model, text));
}

}  // namespace freshet::levels
