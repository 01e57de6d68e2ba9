// SPDX-License-Identifier: Apache-2.0
#include "examples/checkpoint_ranks/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <iostream>

#include "core/base/env.h"
#include "core/base/format.h"
#include "transport/group/launcher.h"

namespace freshet::ranks {
namespace {

constexpr int kUsage = 2;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// What the command line says, before it is understood.
struct Words {
  std::string group = "none";
  std::vector<std::string> keep;
  std::string when_behind = "skip";
  std::string restore = "newest";
  std::string die_at;
  double limit_mib_s = 0;
  double rejoin_s = 0;
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> ranks;
};

/// "LEVEL:COUNT" and the like.
Result<std::pair<std::string, std::uint64_t>> word_and_number(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::uint64_t number = 0;
  if (colon != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + colon + 1, end, number);
    if (error == std::errc() && at == end && colon + 1 < text.size()) return std::pair(text.substr(0, colon), number);
  }
  return refuse(format("\"{}\": a word, a colon and a number are expected", text));
}

void put_rank(std::string& text, std::uint32_t rank) {
  constexpr std::string_view kPlace = "{rank}";
  for (std::size_t at = text.find(kPlace); at != std::string::npos; at = text.find(kPlace, at)) {
    text.replace(at, kPlace.size(), format("{}", rank));
  }
}

Status find_ranks(const Words& words, Options& options) {
  std::optional<group::Launched> launched;
  if (!words.rank || !words.ranks || options.meet.empty()) {
    FRESHET_ASSIGN(launched, group::launched(system_env()));
  }
  options.rank = words.rank.value_or(launched ? launched->rank : 0);
  options.ranks = words.ranks.value_or(launched ? launched->ranks : 1);
  if (options.meet.empty() && launched) options.meet = launched->meet;
  if (words.rank.has_value() != words.ranks.has_value()) return refuse("--rank and --ranks go together");
  if (options.ranks > 1 && options.meet.empty()) {
    return refuse("more than one rank: --meet tcp://HOST:PORT says where they meet");
  }
  return {};
}

Status understand(const Words& words, Options& options) {
  FRESHET_TRY(find_ranks(words, options));
  if (auto group = levels::parse_group_scheme(words.group)) {
    options.group = *group;
  } else {
    return fail(std::move(group).error().with_context("--group"));
  }
  if (words.rejoin_s > 0) {
    return fail(Code::unsupported, "--rejoin: ranks do not come back into a running job; start the job again");
  }
  for (const std::string& one : words.keep) {
    FRESHET_ASSIGN(const auto parts, word_and_number(one));
    FRESHET_ASSIGN(const CheckpointLevel level, levels::parse_level(parts.first));
    if (parts.second == 0 || parts.second > UINT32_MAX) return refuse(format("--keep {}: 1 or more", one));
    options.keep[level] = static_cast<std::uint32_t>(parts.second);
  }
  if (words.when_behind != "skip" && words.when_behind != "wait") {
    return refuse(format("--when-behind {}: skip or wait", words.when_behind));
  }
  options.when_behind = words.when_behind == "wait" ? levels::WhenBehind::wait : levels::WhenBehind::skip;
  if (words.restore == "none") {
    options.restore.from_nothing = true;
  } else if (words.restore != "newest") {
    FRESHET_ASSIGN(const VersionName name, parse_version_name(words.restore));
    if (name.model != options.model || name.number == 0) {
      return refuse(format("--restore {}: newest, none or {}@V", words.restore, options.model));
    }
    options.restore.version = name.number;
  }
  if (!words.die_at.empty()) {
    FRESHET_ASSIGN(const auto parts, word_and_number(words.die_at));
    static constexpr std::array<std::string_view, 9> kPoints = {"captured",        "local_half",   "local_synced",
                                                                "group_half",      "group_synced", "external_half",
                                                                "external_synced", "restoring",    "rebuilding"};
    if (std::ranges::find(kPoints, parts.first) == kPoints.end()) {
      return refuse(format("--die-at {}: there is no such point", words.die_at));
    }
    options.die_point = parts.first;
    options.die_step = parts.second;
  }
  options.limit_bytes_per_second = static_cast<std::uint64_t>(words.limit_mib_s * static_cast<double>(kMiB));
  for (std::string& folder : options.local) put_rank(folder, options.rank);
  put_rank(options.host, options.rank);
  put_rank(options.dump, options.rank);
  return {};
}

}  // namespace

Parsed parse(int argc, char** argv) {
  Options options;
  Words words;
  CLI::App app("One rank of a job that trains, and checkpoints what it trains.");
  app.add_option("--model", options.model, "name of the model")->required();
  app.add_option("--state", options.state, "a JSON file: what the ranks train")->required();
  app.add_option("--steps", options.steps, "steps to train")->required();
  app.add_option("--every", options.every, "steps between two checkpoints (default: 1)")
      ->check(CLI::Range(std::uint64_t{1}, UINT64_MAX));
  app.add_option("--step-ms", options.step_ms, "how long a step takes beside its writes (default: 0)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--local", options.local, "folders for shards: the first is written, all are read")->required();
  app.add_option("--host", options.host, "the failure domain (default: this machine)");
  app.add_option(
      "--group", words.group,
      "what ranks of different hosts keep of each other's shards: none, partner (a copy), xor (one host may go), "
      "rs:F (any F) (default: none)");
  app.add_option("--external", options.external, "a repository: folder or address");
  app.add_option("--external-server-key", options.external_server_key,
                 "public key of the provider at --external; this rank's key is that of --keys");
  app.add_option("--keep", words.keep, "LEVEL:COUNT, versions that stay (default: memory:1 local:2)");
  app.add_option("--limit-mib-s", words.limit_mib_s, "limit on what a rank sends, in MiB/s")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--when-behind", words.when_behind, "when a level falls behind: skip or wait (default: skip)");
  app.add_option("--restore", words.restore, "newest, none or MODEL@V (default: newest)");
  app.add_flag("--allow-left", options.restore.allow_left,
               "go on though the version has tensors that no rank takes, and others begin fresh");
  app.add_option("--dump", options.dump, "folder for what the rank holds when it starts");
  app.add_option("--die-at", words.die_at, "POINT:STEP, for tests: the rank kills itself there");
  app.add_option("--lost-after", options.lost_after_s, "seconds of silence after which a peer is lost (default: 10)")
      ->check(CLI::Range(0.2, 3600.0));
  app.add_option("--patience", options.patience_s, "seconds to wait for peers (default: 30)")
      ->check(CLI::Range(0.01, 86400.0));
  app.add_option("--rejoin", words.rejoin_s, "not in this build");
  app.add_option("--rank", words.rank, "this rank, from 0 (default: as mpirun, srun or torchrun say)");
  app.add_option("--ranks", words.ranks, "how many there are");
  app.add_option("--meet", options.meet, "tcp://HOST:PORT where rank 0 listens");
  app.add_option("--job", options.job,
                 "the job's name: ranks of two jobs do not meet (default: as mpirun, srun or torchrun name it)");
  app.add_option("--keys", options.security.key_file, "this rank's secret key; needed beyond one host");
  app.add_option("--allow", options.security.allow_file, "the keys of all ranks");
  app.add_option("--server-key", options.security.server_key, "rank 0's public key");
  app.add_flag("--open-loopback", options.security.open_loopback,
               "without keys: ranks of other users of this host are admitted, and believed");
  app.footer(
      "Four ranks on one host, and again from where they were with two:\n"
      "  for r in 0 1 2 3; do checkpoint_ranks --model net --state S.json --steps 100 --local /tmp/ck/{rank} \\\n"
      "    --external /tmp/runs --rank $r --ranks 4 --meet tcp://127.0.0.1:7400 & done; wait");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return {.options = {}, .exit_code = code == 0 ? 0 : kUsage};
  }
  if (const Status understood = understand(words, options); !understood) {
    std::cerr << "checkpoint_ranks: " << understood.error().message() << "\n";
    return {.options = {}, .exit_code = kUsage};
  }
  return {.options = std::move(options), .exit_code = 0};
}

}  // namespace freshet::ranks
