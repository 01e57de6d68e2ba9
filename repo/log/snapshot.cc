// SPDX-License-Identifier: Apache-2.0
#include "repo/log/snapshot.h"

#include "core/base/format.h"
#include "repo/log/codec.h"

namespace freshet::log {
namespace {

constexpr std::int64_t kNoStamp = -1;

std::optional<std::int64_t> stamp_from(std::int64_t stored) {
  return stored < 0 || stored > kStampMax ? std::nullopt : std::optional(stored);
}

Digest plain_digest(std::string_view bytes) { return plain_xxh3_of(bytes_of(bytes.data(), bytes.size())); }

tl::unexpected<Error> damaged_snapshot(std::uint64_t position, std::string_view why) {
  return fail(Code::corrupt, format("the snapshot of the repository's log at record {} {}", position, why));
}

/// Fills parts, one after another.
class PartWriter {
 public:
  explicit PartWriter(std::size_t part_bytes) : part_bytes_(part_bytes) {}

  void add(const std::string& key, const Value& value) {
    changes_.push_back(write(builder_, key, &value));
    cut_if_full();
  }
  void add(const LogId& id, const LogState::Token& token) {
    tokens_.emplace_back(stored_id(id), token.since, token.life_s, token.stamp_unix_s.value_or(kNoStamp));
    cut_if_full();
  }
  void add(const ObjectName& name, const LogState::Condemned& condemned) {
    condemned_.emplace_back(stored_object(name), condemned.since, condemned.stamp_unix_s.value_or(kNoStamp));
    cut_if_full();
  }
  std::vector<std::string> finish() {
    cut();
    return std::move(parts_);
  }

 private:
  void cut_if_full() {
    const std::size_t bytes = builder_.GetSize() + 64 * (tokens_.size() + condemned_.size());
    if (bytes >= part_bytes_) cut();
  }
  void cut() {
    builder_.Finish(stored::CreateLogSnapshotPartDirect(builder_, &changes_, &tokens_, &condemned_));
    parts_.push_back(sealed(builder_));
    builder_.Clear();
    changes_.clear();
    tokens_.clear();
    condemned_.clear();
  }

  const std::size_t part_bytes_;
  flatbuffers::FlatBufferBuilder builder_;
  std::vector<flatbuffers::Offset<stored::LogChange>> changes_;
  std::vector<stored::LogToken> tokens_;
  std::vector<stored::LogCondemned> condemned_;
  std::vector<std::string> parts_;
};

}  // namespace

/// Fills a state with what parts have.
class SnapshotLoader {
 public:
  explicit SnapshotLoader(const SnapshotHead& head) {
    state_.position_ = head.position;
    state_.owner_ = head.owner;
    state_.owned_since_ = head.owned_since;
    state_.emptied_through_ = head.emptied_through;
    state_.newest_snapshot_ = head.position;
    state_.previous_snapshot_ = head.previous;
  }

  bool add(std::string_view part) {
    std::size_t content_bytes = 0;
    const auto content = unsealed(part, content_bytes);
    const auto* stored = content ? verified_table<stored::LogSnapshotPart>(*content, content_bytes) : nullptr;
    if (stored == nullptr) return false;
    std::vector<Change> changes;
    if (!read(stored->changes(), changes)) return false;
    for (const Change& change : changes) {
      if (!change.value || state_.values_.contains(change.key)) return false;
      state_.set(change);
    }
    if (stored->tokens() != nullptr) {
      for (const stored::LogToken* token : *stored->tokens()) {
        state_.tokens_[id_from(token->token())] = {
            .since = token->since(), .life_s = token->life_s(), .stamp_unix_s = stamp_from(token->stamp_unix_s())};
      }
    }
    if (stored->condemned() == nullptr) return true;
    for (const stored::LogCondemned* one : *stored->condemned()) {
      state_.condemned_[object_from(one->object())] = {.since = one->since(),
                                                       .stamp_unix_s = stamp_from(one->stamp_unix_s())};
    }
    return true;
  }

  LogState take() { return std::move(state_); }

 private:
  LogState state_;
};

Result<Snapshot> make_snapshot(const LogState& state, const LogId& writer, std::uint64_t attempt,
                               std::size_t part_bytes, bool with_tokens) {
  Snapshot snapshot{.head = {.position = state.position(),
                             .writer = writer,
                             .attempt = attempt,
                             .owner = *state.owner(),
                             .owned_since = state.owned_since(),
                             .emptied_through = state.emptied_through(),
                             .previous = state.newest_snapshot(),
                             .parts = {}},
                    .parts = {}};
  PartWriter parts(part_bytes);
  for (const auto& [key, value] : state.values()) parts.add(key, value);
  if (with_tokens) {
    for (const auto& [id, token] : state.tokens()) parts.add(id, token);
  }
  for (const auto& [name, condemned] : state.condemned()) parts.add(name, condemned);
  snapshot.parts = parts.finish();
  if (snapshot.parts.size() > kSnapshotPartsMax) {
    return fail(Code::out_of_space, format("a snapshot has at most {} parts", kSnapshotPartsMax));
  }
  std::uint64_t bytes = 0;
  for (const std::string& part : snapshot.parts) {
    snapshot.head.parts.push_back({.digest = plain_digest(part), .bytes = part.size()});
    bytes += part.size();
  }
  if (bytes > kSnapshotBytesMax) {
    return fail(Code::out_of_space, format("a snapshot has at most {} bytes", kSnapshotBytesMax));
  }
  return snapshot;
}

std::string encode(const SnapshotHead& head) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<stored::LogPart> parts;
  for (const auto& part : head.parts) parts.emplace_back(part.digest.low, part.digest.high, part.bytes);
  const stored::LogId writer = stored_id(head.writer);
  const stored::LogId owner = stored_id(head.owner.id);
  builder.Finish(stored::CreateLogSnapshotDirect(builder, kLogFormat, head.position, &writer, head.attempt, &owner,
                                                 head.owner.address.c_str(), head.owner.public_key.c_str(),
                                                 head.owned_since, head.emptied_through, &parts, head.previous));
  return sealed(builder);
}

Result<SnapshotHead> decode_snapshot_head(std::string_view bytes, std::uint64_t position) {
  std::size_t content_bytes = 0;
  const auto content = bytes.size() <= kSnapshotHeadBytesMax ? unsealed(bytes, content_bytes) : std::nullopt;
  const auto* stored = content ? verified_table<stored::LogSnapshot>(*content, content_bytes) : nullptr;
  if (stored == nullptr) return damaged_snapshot(position, "is damaged, or is none of Freshet");
  if (stored->format() != kLogFormat) {
    return fail(Code::unsupported, format("the snapshot at record {} has format {}; this Freshet reads format {}",
                                          position, stored->format(), kLogFormat));
  }
  if (stored->position() != position || position == 0) {
    return damaged_snapshot(position, format("says that it is of record {}", stored->position()));
  }
  SnapshotHead head{.position = position,
                    .writer = id_from(*stored->writer()),
                    .attempt = stored->attempt(),
                    .owner = {.id = id_from(*stored->owner()),
                              .address = stored->address() == nullptr ? "" : stored->address()->str(),
                              .public_key = stored->public_key() == nullptr ? "" : stored->public_key()->str()},
                    .owned_since = stored->owned_since(),
                    .emptied_through = stored->emptied_through(),
                    .previous = stored->previous(),
                    .parts = {}};
  if (head.owner.address.size() > kAddressBytesMax || head.owner.public_key.size() > kAddressBytesMax ||
      head.owned_since > position || head.emptied_through > position || head.previous >= position) {
    return damaged_snapshot(position, "contradicts itself");
  }
  if (stored->parts() == nullptr) return head;
  if (stored->parts()->size() > kSnapshotPartsMax) return damaged_snapshot(position, "has too many parts");
  std::uint64_t all = 0;
  for (const stored::LogPart* part : *stored->parts()) {
    if (part->bytes() > 2 * kSnapshotPartBytesMax) return damaged_snapshot(position, "has too large a part");
    all += part->bytes();
    if (all > kSnapshotBytesMax) {
      return damaged_snapshot(position, format("has more than {} bytes", kSnapshotBytesMax));
    }
    head.parts.push_back({.digest = {.low = part->digest_low(), .high = part->digest_high()}, .bytes = part->bytes()});
  }
  return head;
}

Result<LogState> load_snapshot(const SnapshotHead& head, const std::vector<std::string>& parts) {
  if (parts.size() != head.parts.size()) return damaged_snapshot(head.position, "lacks parts");
  SnapshotLoader loader(head);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool same = parts[i].size() == head.parts[i].bytes && plain_digest(parts[i]) == head.parts[i].digest;
    if (!same || !loader.add(parts[i])) return damaged_snapshot(head.position, format("has a damaged part {}", i));
  }
  return loader.take();
}

}  // namespace freshet::log
