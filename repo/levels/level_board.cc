// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/level_board.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "repo/levels/terms/wire.h"

namespace freshet::levels {
std::vector<std::byte> encode(const LevelNote& note) {
  flatbuffers::FlatBufferBuilder builder;
  const auto text = note.error ? builder.CreateString(note.error->message()) : 0;
  builder.Finish(wire::CreateNote(builder, static_cast<std::uint8_t>(note.kind), note.version, note.step,
                                  static_cast<std::uint8_t>(note.level), code_on_wire(note.error), text),
                 kNoteId);
  return bytes_in(builder);
}

Result<LevelNote> decode_level_note(Bytes bytes) {
  FRESHET_ASSIGN(const auto from, root_of<wire::Note>(bytes, kNoteId));
  if (from->kind() > 5 || from->level() >= kLevels) {
    return fail(Code::corrupt, "a note about a level is malformed");
  }
  LevelNote note{.kind = static_cast<LevelNote::Kind>(from->kind()),
                 .version = from->version(),
                 .step = from->step(),
                 .level = static_cast<Level>(from->level())};
  FRESHET_ASSIGN(note.error, error_from(from->code(), from->text()));
  return note;
}

std::optional<Level> LevelBoard::level_after(Level level) const {
  const auto at = std::ranges::upper_bound(options_.levels, level);
  return at == options_.levels.end() ? std::nullopt : std::optional(*at);
}

std::vector<LevelNote> LevelBoard::on_note(std::uint32_t rank, const LevelNote& note) {
  std::vector<LevelNote> out;
  if (rank >= options_.ranks || note.version == 0) return out;
  if (note.kind == LevelNote::Kind::captured) {
    if (note.version <= newest_captured_) return out;
    // A rank's messages come in the order of its versions: what it said before a refused version is open, or refused.
    const bool is_full = versions_.size() >= kOpenVersionsMax || note.version <= newest_refused_;
    if (!versions_.contains(note.version) && is_full) {
      newest_refused_ = std::max(newest_refused_, note.version);
      fail_from(
          Level::memory, note.version, note.step,
          Error(Code::out_of_space, format("{} versions wait for ranks that did not capture them", kOpenVersionsMax)),
          out);
      return out;
    }
    versions_[note.version].step = note.step;
    take_said(note.version, Level::memory, rank, note, out);
  } else if (note.kind == LevelNote::Kind::done) {
    const auto way = ways_.find(note.level);
    if (way == ways_.end() || way->second.running != note.version) return out;
    take_said(note.version, note.level, rank, note, out);
  }
  return out;
}

void LevelBoard::take_said(VersionNumber version, Level level, std::uint32_t rank, const LevelNote& note,
                           std::vector<LevelNote>& out) {
  State& state = versions_.at(version);
  if (level == Level::external && rank != 0) return;
  if (!state.said.insert(rank).second) return;
  if (note.error && !state.error) {
    state.error = options_.ranks == 1 ? *note.error : Error(*note.error).with_context(format("rank {}", rank));
  }
  if (level != Level::external && state.said.size() < options_.ranks) return;  // Rank 0 alone brings a version there.
  state.said.clear();
  if (level == Level::memory) newest_captured_ = std::max(newest_captured_, version);
  if (level != Level::memory) ways_.at(level).running.reset();
  if (state.error) {
    fail_from(level, version, state.step, Error(*state.error), out);
  } else {
    out.push_back({.kind = LevelNote::Kind::reached, .version = version, .step = state.step, .level = level});
    if (const auto next = level_after(level)) {
      wait_for(*next, version, out);
      begin_next(*next, out);
    } else {
      versions_.erase(version);
    }
  }
  if (level != Level::memory) begin_next(level, out);
}

void LevelBoard::wait_for(Level level, VersionNumber version, std::vector<LevelNote>& out) {
  Way& way = ways_[level];
  if (options_.when_behind == WhenBehind::skip) {
    for (const VersionNumber passed : std::exchange(way.waiting, {})) {
      fail_from(level, passed, versions_.at(passed).step,
                Error(Code::cancelled, format("passed over by version {}: the level is behind", version)), out);
    }
  }
  way.waiting.insert(version);
}

void LevelBoard::fail_from(Level level, VersionNumber version, std::uint64_t step, const Error& why,
                           std::vector<LevelNote>& out) {
  std::optional<Level> at = level;
  bool first = true;
  while (at) {
    Error error =
        first ? why : Error(why.code(), format("not tried: {} was not reached", freshet::levels::name_of(level)));
    out.push_back(
        {.kind = LevelNote::Kind::failed, .version = version, .step = step, .level = *at, .error = std::move(error)});
    at = level_after(*at);
    first = false;
  }
  versions_.erase(version);
}

void LevelBoard::begin_next(Level level, std::vector<LevelNote>& out) {
  Way& way = ways_[level];
  if (way.running || way.waiting.empty()) return;
  const VersionNumber next = *way.waiting.begin();
  way.waiting.erase(next);
  way.running = next;
  out.push_back({.kind = LevelNote::Kind::begin, .version = next, .step = versions_.at(next).step, .level = level});
}

}  // namespace freshet::levels
