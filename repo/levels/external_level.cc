// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/external_level.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/clock.h"
#include "core/base/format.h"
#include "repo/levels/restart/fetch_ahead.h"

namespace freshet::levels {
namespace {

constexpr std::uint64_t kCachedBytesMax = std::uint64_t{1} << 30;
/// Of memory that the next put() uses again.
constexpr std::uint64_t kRoomBytesMax = std::uint64_t{1} << 30;

std::uint32_t ranks_of(const Manifest& manifest) {
  for (const auto& [key, value] : manifest.tags) {
    std::uint32_t ranks = 0;
    if (key == kRanksTag) std::from_chars(value.data(), value.data() + value.size(), ranks);
    if (ranks != 0 && ranks <= kRanksMax) return ranks;
  }
  return 0;
}

Version version_of(const Manifest& manifest) { return {.id = manifest.id, .number = manifest.name.number}; }

}  // namespace

Result<std::shared_ptr<const Architecture>> architecture_of(const TensorTable& table) {
  std::vector<TensorSpec> specs;
  for (const LaidTensor& tensor : table.tensors) specs.push_back(tensor.spec);
  return Architecture::guess_chain(std::move(specs));
}

Result<std::vector<StoredVersion>> ExternalLevel::versions(std::vector<std::string>* damaged) const {
  std::vector<StoredVersion> stored;
  const auto is_passed_over = [&](const Error& error, const std::string& what) {
    if (error.code() == Code::corrupt && damaged != nullptr) {
      damaged->push_back(format("{} is damaged: {}", what, error.message()));
    }
    return error.code() == Code::corrupt;
  };
  const auto rows = repository_->versions(model_);
  if (!rows && rows.error().code() == Code::not_found) return stored;
  if (!rows && damaged != nullptr && is_passed_over(rows.error(), "the repository")) return stored;
  if (!rows) return fail(rows.error());
  for (const LineageRow& row : *rows) {
    if (row.retired) continue;
    const Result<VersionRecord> record = repository_->get(row.version);
    if (!record) {
      if (record.error().code() == Code::not_found) continue;
      if (is_passed_over(record.error(), to_string(row.version) + " in the repository")) continue;
      return fail(record.error());
    }
    if (!record->has_weights) continue;
    stored.push_back({version_of(record->manifest), record->manifest.step, ranks_of(record->manifest)});
  }
  return stored;
}

Result<bool> ExternalLevel::knows_newest() const {
  if (!learned_ || !newest_) return learned_;
  const Result<VersionNumber> latest = repository_->latest(model_);
  if (!latest && latest.error().code() != Code::not_found) return fail(latest.error());
  return latest && *latest == newest_->manifest.name.number;
}

Status ExternalLevel::learn_newest() {
  FRESHET_ASSIGN(const std::vector<StoredVersion> stored, versions());
  if (newest_ && !stored.empty() && stored.back().version.id == newest_->manifest.id) return {};
  newest_.reset();
  if (stored.empty()) return {};
  FRESHET_ASSIGN(VersionRecord record, repository_->get({model_, stored.back().version.number}));
  const std::size_t tensors = record.manifest.architecture->tensors().size();
  newest_ = Newest{std::move(record.manifest), std::vector<std::optional<Version>>(tensors)};
  return {};
}

std::optional<std::uint32_t> ExternalLevel::known_tensor(const TensorSpec& spec) const {
  if (!newest_) return std::nullopt;
  const Architecture& architecture = *newest_->manifest.architecture;
  const std::optional<std::uint32_t> tensor = architecture.tensor_named(spec.name);
  return tensor && architecture.tensors()[*tensor] == spec ? tensor : std::nullopt;
}

Result<std::optional<ExternalLevel::Draft>> ExternalLevel::draft_of(const ShardedVersion& version) {
  const Version& which = version.plan().version;
  FRESHET_ASSIGN(const std::optional<VersionName> there, repository_->find(which.id));
  if (there) return std::optional<Draft>();
  FRESHET_ASSIGN(const bool knows, knows_newest());
  learned_ = false;  // Until this version is stored.
  if (!knows) FRESHET_TRY(learn_newest());
  if (newest_ && newest_->manifest.name.number >= which.number) {
    return fail(Code::failed_precondition, format("the repository has {}@{} already: another job writes this model",
                                                  model_, newest_->manifest.name.number));
  }
  FRESHET_ASSIGN(const auto architecture, architecture_of(version.tensors()));
  const auto in_graph = architecture->tensors();  // By layer: perhaps another order.
  Draft draft;
  draft.manifest = {.name = {model_, which.number},
                    .id = which.id,
                    .step = version.plan().step,
                    .created_unix_ns = system_clock().unix_ns(),
                    .tags = {{std::string(kRanksTag), format("{}", version.plan().ranks)}},
                    .architecture = architecture};
  if (newest_) {
    draft.manifest.ancestor = newest_->manifest.id;
    draft.manifest.ancestor_name = newest_->manifest.name;
  }
  draft.manifest.digests.resize(in_graph.size());
  draft.owners.resize(in_graph.size());
  std::map<std::string_view, std::uint32_t> index;
  const std::vector<LaidTensor>& tensors = version.tensors().tensors;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].spec.name, i);
  for (std::uint32_t at = 0; at < in_graph.size(); ++at) {
    draft.in_table.push_back(index.at(in_graph[at].name));
    const auto before = known_tensor(in_graph[at]);
    if (before && newest_->writers[*before] == version.writers()[draft.in_table.back()]) {
      draft.owners[at] = newest_->manifest.owners[*before];
      draft.manifest.digests[at] = newest_->manifest.digests[*before];
    } else {
      draft.fresh.push_back(at);
    }
  }
  return std::optional<Draft>(std::move(draft));
}

bool ExternalLevel::is_doubted(const Draft& draft, std::uint32_t at) const {
  const auto before = known_tensor(draft.manifest.architecture->tensors()[at]);
  return before && !newest_->writers[*before];
}

bool ExternalLevel::inherit_equal(Draft& draft, std::uint32_t at, const Digest& digest) const {
  draft.manifest.digests[at] = digest;
  const auto before = known_tensor(draft.manifest.architecture->tensors()[at]);
  const bool is_equal = before && newest_->manifest.digests[*before] == digest;  // Written again, with the same bytes.
  draft.owners[at] = is_equal ? newest_->manifest.owners[*before] : SegmentName{draft.manifest.id, at};
  return is_equal;
}

Status ExternalLevel::learn_digests(Manifest& manifest, const VersionName& name) const {
  if (std::ranges::find(manifest.digests, Digest{}) == manifest.digests.end()) return {};
  FRESHET_ASSIGN(VersionRecord record, repository_->get(name));
  std::vector<Digest>& digests = record.manifest.digests;
  if (record.manifest.id != manifest.id || digests.size() != manifest.digests.size()) {
    return fail(Code::corrupt, format("the repository has another version as {}", to_string(name)));
  }
  manifest.digests = std::move(digests);
  return {};
}

Status ExternalLevel::note_stored(Draft&& draft, const VersionName& name, const ShardedVersion& version) {
  if (name.number != draft.manifest.name.number) {
    return fail(Code::failed_precondition, format("another job writes {}: version {} is {} in the repository", model_,
                                                  draft.manifest.name.number, name.number));
  }
  newest_ = Newest{std::move(draft.manifest), {}};
  for (const std::uint32_t tensor : draft.in_table) newest_->writers.emplace_back(version.writers()[tensor]);
  learned_ = true;
  return {};
}

Status ExternalLevel::put(const ShardedVersion& version, ShardSource& source, Pace& pace, std::vector<BadShard>& bad,
                          const std::function<void()>& half, const std::function<bool()>& stop) {
  FRESHET_ASSIGN(std::optional<Draft> draft, draft_of(version));
  if (!draft) return {};
  const auto in_graph = draft->manifest.architecture->tensors();
  auto rooms = std::exchange(rooms_, {});
  std::uint64_t to_read = 0;
  for (const std::uint32_t at : draft->fresh) to_read += in_graph[at].bytes();
  std::uint64_t read = 0;
  AtHalf at_half(to_read, half);
  const auto wanted_of = [&](std::uint32_t at) {
    const std::uint64_t bytes = in_graph[at].bytes();
    Room& room = rooms[at];
    if (room.bytes != bytes) room = {.memory = std::make_unique_for_overwrite<std::byte[]>(bytes), .bytes = bytes};
    return WantedPiece{
        .piece = {.tensor = draft->in_table[at], .count = 1, .stride = bytes, .begin = 0, .length = bytes},
        .out = {room.memory.get(), bytes}};
  };
  const auto fetch = [&](std::span<const WantedPiece> wanted, const std::stop_token& end) -> Status {
    const auto stops = [&] { return end.stop_requested() || (stop && stop()); };
    FRESHET_ASSIGN([[maybe_unused]] const auto fetched, version.fetch(source, wanted, bad, &pace, stops));
    return {};
  };
  struct Fresh {
    Bytes bytes;
    std::size_t turn = 0;  ///< The bytes are there once so many were fetched ahead.
  };
  std::map<std::uint32_t, Fresh> fresh;
  std::vector<WantedPiece> ahead;
  for (const std::uint32_t at : draft->fresh) {
    const WantedPiece wanted = wanted_of(at);
    // A slow source comes before the put, whose promises to a store end by time.
    if (!pace.is_limited() && !is_doubted(*draft, at)) {
      draft->owners[at] = SegmentName{draft->manifest.id, at};
      if (!wanted.out.empty()) ahead.push_back(wanted);
      fresh.emplace(at, Fresh{wanted.out, ahead.size()});
      continue;
    }
    if (!wanted.out.empty()) FRESHET_TRY(fetch(std::span(&wanted, 1), {}));
    read += wanted.out.size();
    at_half.reached(read);
    if (inherit_equal(*draft, at, digest_of(wanted.out))) {
      rooms.erase(at);  // After a restart that may be all of them: they must not be in memory together.
    } else {
      fresh.emplace(at, Fresh{wanted.out});
    }
  }
  Manifest& manifest = draft->manifest;
  manifest.owners = OwnerMap(draft->owners);
  FetchAhead fetched(std::move(ahead), fetch);
  const auto bytes_of_tensor = [&](std::uint32_t tensor) -> Result<Bytes> {
    const auto at = fresh.find(tensor);
    if (at == fresh.end()) return fail(Code::corrupt, format("the repository lost {}", in_graph[tensor].name));
    const auto& [bytes, turn] = at->second;
    FRESHET_TRY(fetched.wait_for(turn));
    if (turn != 0) at_half.reached(read += bytes.size());
    if (is_paced_) FRESHET_TRY(pace.wait_for(bytes.size(), stop));
    return bytes;
  };
  FRESHET_ASSIGN(const VersionName name, repository_->put(manifest, bytes_of_tensor, {}));
  at_half.reached(to_read);
  FRESHET_TRY(learn_digests(manifest, name));
  std::uint64_t room_bytes = 0;
  for (const auto& [tensor, room] : rooms) room_bytes += room.bytes;
  if (room_bytes <= kRoomBytesMax) rooms_ = std::move(rooms);
  return note_stored(*std::move(draft), name, version);
}

Status ExternalLevel::put_by_parts(const ShardedVersion& version, const Bring& bring) {
  FRESHET_ASSIGN(std::optional<Draft> draft, draft_of(version));
  if (!draft) return {};
  Manifest& manifest = draft->manifest;
  PartPuts& parts = repository_->part_puts();
  FRESHET_ASSIGN(const PutToken token, parts.begin_put(model_, manifest.id, manifest.architecture));
  const auto bring_and_commit = [&]() -> Result<VersionName> {
    std::vector<std::uint32_t> tensors;
    for (const std::uint32_t at : draft->fresh) tensors.push_back(draft->in_table[at]);
    std::ranges::sort(tensors);
    FRESHET_TRY(bring(token, tensors));
    FRESHET_ASSIGN(const std::vector<std::optional<Digest>> came, parts.part_digests(token));
    for (const std::uint32_t at : draft->fresh) {
      const TensorSpec& spec = manifest.architecture->tensors()[at];
      if (!came[at] && spec.bytes() != 0) return fail(Code::failed_precondition, "no rank brought " + spec.name);
      inherit_equal(*draft, at, came[at] ? *came[at] : digest_of({}));
    }
    manifest.owners = OwnerMap(draft->owners);
    return parts.commit_put(token, manifest, {});
  };
  const Result<VersionName> name = bring_and_commit();
  if (name) return note_stored(*std::move(draft), *name, version);
  // Else it would end by itself, later. What counts is why.
  static_cast<void>(parts.abort_put(token));
  return fail(name.error());
}

Status ExternalLevel::keep_newest(std::uint32_t count) {
  FRESHET_ASSIGN(std::vector<StoredVersion> stored, versions());
  std::erase_if(stored, [](const StoredVersion& one) { return one.ranks == 0; });  // Others' versions of the model.
  bool any = false;
  for (std::size_t i = 0; i + std::max(count, 1U) < stored.size(); ++i) {
    const auto retired = repository_->retire({model_, stored[i].version.number}, {});
    // One that somebody pinned, or an alias means, stays.
    if (!retired && retired.error().code() != Code::failed_precondition) return fail(retired.error());
    any = any || retired.has_value();
  }
  if (!any) return {};
  FRESHET_ASSIGN([[maybe_unused]] const GcReport report, repository_->gc({}, {}));
  return {};
}

Result<const VersionRecord*> ExternalLevel::record_of(const Version& version) {
  if (!record_ || record_->manifest.id != version.id) {
    FRESHET_ASSIGN(VersionRecord record, repository_->get({model_, version.number}));
    if (record.manifest.id != version.id) {
      return fail(Code::not_found, format("{}@{} is a different version now", model_, version.number));
    }
    std::vector<LaidTensor> tensors;
    for (const TensorSpec& spec : record.manifest.architecture->tensors()) {
      tensors.push_back({.spec = spec, .layout = {.cut = Cut::on}});
    }
    cut_.emplace(TensorTable::of(std::move(tensors)), 1, 0);
    record_ = std::move(record);
    cache_.clear();
    cached_bytes_ = 0;
  }
  return &*record_;
}

Result<std::vector<std::byte>> ExternalLevel::head(const Version& version) {
  const MutexLock lock(mutex_);
  FRESHET_ASSIGN(const VersionRecord* const record, record_of(version));
  const Manifest& manifest = record->manifest;
  FRESHET_ASSIGN(const std::vector<OwnerRow> owners, repository_->owners(manifest.name));
  ShardHeader header{.model = model_,
                     .key = {.version = version, .rank = 0, .ranks = 1},
                     .step = manifest.step,
                     .created_unix_ns = manifest.created_unix_ns,
                     .tensors = cut_->table->digest,
                     .versions = {version},
                     .payload_bytes = cut_->offsets.back()};
  std::map<VersionId, std::uint32_t> known = {{version.id, 0}};
  for (std::size_t i = 0; i < cut_->pieces.size(); ++i) {
    const std::uint32_t tensor = cut_->pieces[i].piece.tensor;
    const VersionId& writer = manifest.owners[tensor].writer;
    const auto [at, is_new] = known.try_emplace(writer, static_cast<std::uint32_t>(header.versions.size()));
    if (is_new) {
      Version& named = header.versions.emplace_back(Version{.id = writer});
      // Of another model, or not known: no number.
      if (tensor < owners.size() && owners[tensor].owner.model == model_) named.number = owners[tensor].owner.number;
      if (!named.is_possible()) named.number = 0;
    }
    header.records.push_back({.writer = at->second, .store = 0, .offset = cut_->offsets[i]});
  }
  return encode_shard_head(header);
}

Result<std::vector<std::byte>> ExternalLevel::table(const Digest& digest) const {
  const MutexLock lock(mutex_);
  if (!cut_ || cut_->table->digest != digest)
    return fail(Code::not_found, "this rank does not know this list of tensors");
  return cut_->table->encoded;
}

Result<Bytes> ExternalLevel::tensor_of(const VersionRecord& record, std::uint32_t tensor) {
  auto at = cache_.find(tensor);
  if (at == cache_.end()) {
    std::vector<std::byte> whole(cut_->table->tensors[tensor].spec.bytes());
    const Repository::TensorRead read{.tensor = tensor, .out = whole};
    FRESHET_TRY(repository_->read(record, std::span(&read, 1)));
    // Ranks ask for tensors in one order: the first ones are done with.
    while (!cache_.empty() && cached_bytes_ + whole.size() > kCachedBytesMax) {
      cached_bytes_ -= cache_.begin()->second.size();
      cache_.erase(cache_.begin());
    }
    cached_bytes_ += whole.size();
    at = cache_.emplace(tensor, std::move(whole)).first;
  }
  return Bytes(at->second);
}

Result<std::vector<std::byte>> ExternalLevel::read(const Version& version, std::span<const ByteRange> ranges) {
  const MutexLock lock(mutex_);
  FRESHET_ASSIGN(const VersionRecord* const record, record_of(version));
  const std::vector<std::uint64_t>& offsets = cut_->offsets;
  std::vector<std::byte> out;
  for (auto [offset, bytes] : ranges) {
    if (offset > offsets.back() || bytes > offsets.back() - offset) return refuse("outside of the version");
    while (bytes > 0) {
      const auto i = static_cast<std::size_t>(std::ranges::upper_bound(offsets, offset) - offsets.begin() - 1);
      FRESHET_ASSIGN(const Bytes tensor, tensor_of(*record, cut_->pieces[i].piece.tensor));
      const std::uint64_t begin = offset - offsets[i];
      const std::uint64_t count = std::min(bytes, offsets[i + 1] - offset);
      const Bytes part =
          begin < tensor.size() ? tensor.subspan(begin, std::min(count, tensor.size() - begin)) : Bytes();
      out.insert(out.end(), part.begin(), part.end());
      out.resize(out.size() + count - part.size());  // Between two tensors.
      offset += count;
      bytes -= count;
    }
  }
  return out;
}

}  // namespace freshet::levels
