// SPDX-License-Identifier: Apache-2.0
// `freshet tier stat`: what the tiers hold, and what came from them.

#include <memory>
#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/tier/tier.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::cli {
namespace {

/// Without a keeper nobody keeps the books: they are made from the folders.
void take_stock(const tier::Config& config, tier::Board& board) {
  for (std::size_t i = 0; i < config.tiers.size(); ++i) {
    std::uint64_t used = 0;
    std::uint64_t count = 0;
    const Status listed =
        tier::each_copy(config.tiers[i].path, [&](const tier::Identity&, std::uint64_t bytes, bool sound) {
          used += bytes;
          count += sound ? 1 : 0;
        });
    const bool absent = !listed && listed.error().code() == Code::not_found;
    tier::store(board.tiers[i].used_bytes, used);
    tier::store(board.tiers[i].files, count);
    if (listed || absent) continue;
    const std::string& why = listed.error().message();
    why.copy(board.tiers[i].reason, sizeof board.tiers[i].reason - 1);
    tier::store(board.tiers[i].off, std::uint32_t{1});
  }
  tier::store(board.queued_files, std::uint64_t{0});
}

std::string reason_of(const tier::BoardTier& tier) {
  if (tier::load(tier.off) == 0) return "";
  return std::string(tier.reason, ::strnlen(tier.reason, sizeof tier.reason));
}

/// What the system said, without what differs from file to file.
std::string kind_of(const std::string& reason) {
  const std::size_t last = reason.rfind(": ");
  std::string kind = last == std::string::npos ? reason : reason.substr(last + 2);
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

Result<ExitCode> stat_tiers(Program& program, const tier::Config& config) {
  FRESHET_ASSIGN(const tier::BoardFile file, tier::BoardFile::open(config));
  tier::Board& board = file.board();
  std::uint32_t seen = tier::load(board.keeper_pid);
  if (!tier::KeeperLine::connect(config)) {
    // One that was killed; not one that begins just now.
    (void)__atomic_compare_exchange_n(&board.keeper_pid, &seen, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    take_stock(config, board);
  }
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    const tier::BoardTier& tier = board.tiers[i];
    const bool off = tier::load(tier.off) != 0;
    const std::string reason = reason_of(tier);
    FRESHET_TRY(
        program.out.emit({{"tier", i + 1},
                          {"path", tier.path},
                          {"quota_bytes", tier::load(tier.quota_bytes)},
                          {"used_bytes", tier::load(tier.used_bytes)},
                          {"files", tier::load(tier.files)},
                          {"state", off ? "off" : "ok"},
                          {"reason", reason}},
                         format("tier {}: {}: {} of {}, {} files, {}{}", i + 1, printable(tier.path),
                                human_bytes(tier::load(tier.used_bytes)), human_bytes(tier::load(tier.quota_bytes)),
                                tier::load(tier.files), off ? "off: " : "ok", printable(reason))));
  }
  const tier::Counters& counters = board.counters;
  const Json total = total_of(board, nullptr);
  std::string text = format("{} opens, {} from a tier ({}), {} from the source ({}); {} files copied ({}), {} waiting",
                            tier::load(counters.opens), tier::load(counters.hits),
                            human_bytes(tier::load(counters.hit_bytes)), tier::load(counters.misses),
                            human_bytes(tier::load(counters.miss_bytes)), tier::load(counters.copied_files),
                            human_bytes(tier::load(counters.copied_bytes)), tier::load(board.queued_files));
  for (const Json& row : total["epochs"]) {
    text +=
        format("\nepoch {}: {} opens, {} from a tier ({}), {} from the source", row["epoch"].get<std::uint64_t>(),
               row["opens"].get<std::uint64_t>(), row["hits"].get<std::uint64_t>(),
               human_bytes(row["hit_bytes"].get<std::uint64_t>()), human_bytes(row["miss_bytes"].get<std::uint64_t>()));
  }
  FRESHET_TRY(program.out.emit(total, text));
  return ExitCode::done;
}

}  // namespace

Json total_of(const tier::Board& board, const tier::Counters* before) {
  static const auto zero = std::make_unique<tier::Counters>();
  const tier::Counters& from = before != nullptr ? *before : *zero;
  const tier::Counters& now = board.counters;
  const auto since = [](const std::uint64_t& later, const std::uint64_t& earlier) {
    return tier::load(later) - earlier;
  };
  Json epochs = Json::array();
  std::optional<std::uint32_t> first;  // The first epoch with opens. A run's epochs count from 1.
  for (std::uint32_t i = 0; i < tier::kEpochRows; ++i) {
    const std::uint64_t opens = since(now.epochs[i].opens, from.epochs[i].opens);
    if (opens == 0) continue;
    if (!first) first = before != nullptr ? i : 0;
    epochs.push_back({{"epoch", i - *first + 1},
                      {"opens", opens},
                      {"hits", since(now.epochs[i].hits, from.epochs[i].hits)},
                      {"hit_bytes", since(now.epochs[i].hit_bytes, from.epochs[i].hit_bytes)},
                      {"miss_bytes", since(now.epochs[i].miss_bytes, from.epochs[i].miss_bytes)}});
  }
  const std::uint32_t pid = tier::load(board.keeper_pid);
  return {{"total", true},
          {"opens", since(now.opens, from.opens)},
          {"hits", since(now.hits, from.hits)},
          {"misses", since(now.misses, from.misses)},
          {"hit_bytes", since(now.hit_bytes, from.hit_bytes)},
          {"miss_bytes", since(now.miss_bytes, from.miss_bytes)},
          {"copied_files", since(now.copied_files, from.copied_files)},
          {"copied_bytes", since(now.copied_bytes, from.copied_bytes)},
          {"source_read_bytes", since(now.source_read_bytes, from.source_read_bytes)},
          {"evicted_files", since(now.evicted_files, from.evicted_files)},
          {"fallbacks", since(now.fallbacks, from.fallbacks)},
          {"corrupt", since(now.corrupt, from.corrupt)},
          {"lost_requests", since(now.lost_requests, from.lost_requests)},
          {"queued_files", tier::load(board.queued_files)},
          {"keeper_pid", pid != 0 ? Json(pid) : Json(nullptr)},
          {"epochs", std::move(epochs)}};
}

Troubles::Troubles(const tier::Board& board) : board_(board), before_(std::make_unique<tier::Counters>()) {
  tier::copy_counters(board.counters, *before_);
}

void Troubles::tell_once(const std::string& cause, const std::string& line) {
  if (told_.insert(cause).second) tell_tier(line);
}

void Troubles::tell() {
  // Before the tiers: one that goes off just now has counted its fallback after that.
  const std::uint64_t fallbacks = tier::load(board_.counters.fallbacks) - before_->fallbacks;
  for (std::uint32_t i = 0; i < board_.tier_count; ++i) {
    const std::string reason = reason_of(board_.tiers[i]);
    was_any_off_ |= !reason.empty();
    // While a tier is off, each copy that was under way may fail in its own way.
    if (reason.empty()) off_.erase(i);
    if (reason.empty() || !off_.insert(i).second) continue;
    const std::string name = format("tier {}", i + 1);
    tell_once(format("{}: {}", name, kind_of(reason)),
              format("{} is off until it works again, the source is read instead: {}", name, reason));
  }
  const tier::Counters& now = board_.counters;
  const auto since = [](const std::uint64_t& later, std::uint64_t earlier) { return tier::load(later) - earlier; };
  if (since(now.source_faults, before_->source_faults) > 0)
    tell_once("source", "a file could not be copied, since the source failed: it is read there");
  // A tier that is off says so itself.
  if (!was_any_off_ && fallbacks > 0) {
    tell_once("fallback",
              "a copy was cut short, replaced or could not be opened: the source is read instead "
              "(`freshet tier verify` drops bad copies)");
  }
  if (since(now.corrupt, before_->corrupt) > 0)
    tell_once("corrupt", "a copy was damaged on the tier's disk, and was dropped: look at that disk");
  if (since(now.lost_requests, before_->lost_requests) > 0) {
    tell_once("lost",
              "the keeper had too much to do and lost requests for copies: those files are copied when they are "
              "opened again");
  }
}

void add_tier_stat(CLI::App& tier, Program& program) {
  CLI::App& command = *tier.add_subcommand("stat", "what the tiers hold, and what came from them");
  auto file = std::make_shared<std::string>();
  add_tier_config(command, *file);
  add_json_flag(command, program);
  act_on_tiers(command, program, file, stat_tiers);
}

}  // namespace freshet::cli
