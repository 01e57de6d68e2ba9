// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/shards/shard.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>

#include "core/base/bytes.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/model/graph.h"
#include "repo/levels/terms/wire.h"

namespace freshet::levels {
namespace {

constexpr std::string_view kShardMagic = "freshet shard 2\n";  // 16 bytes, then the head's bytes and its digest.
constexpr std::string_view kShardMagicOfFormat1 = "freshet shard 1\n";

tl::unexpected<Error> bad_shard(std::string_view what) { return fail(Code::corrupt, format("a shard: {}", what)); }

Result<LaidTensor> tensor_from(const wire::Tensor& from) {
  LaidTensor tensor;
  tensor.spec.name = from.name()->str();
  if (from.dtype() >= kDTypeCount) {
    return fail(Code::unsupported, format("a shard: tensor {} has dtype {}, which a newer Freshet may know",
                                          shown(tensor.spec.name), from.dtype()));
  }
  if (from.role() > 3 || from.cut() > static_cast<std::uint8_t>(kCutMax)) {
    return bad_shard(format("tensor {} is of no known type", shown(tensor.spec.name)));
  }
  tensor.spec.dtype = static_cast<DType>(from.dtype());
  tensor.spec.role = static_cast<Role>(from.role());
  if (from.shape() != nullptr) tensor.spec.shape.assign(from.shape()->begin(), from.shape()->end());
  tensor.layout = {.cut = static_cast<Cut>(from.cut()), .argument = from.argument()};
  FRESHET_TRY(tensor.spec.check());
  if (tensor.layout.cut == Cut::split && tensor.layout.argument >= tensor.spec.shape.size()) {
    return bad_shard(format("tensor {} is split along an axis that it does not have", tensor.spec.name));
  }
  if (tensor.layout.cut == Cut::split && !has_whole_byte_rows(tensor)) {
    return bad_shard(format("tensor {} is split along axis {}, whose rows begin inside a byte", shown(tensor.spec.name),
                            tensor.layout.argument));
  }
  return tensor;
}

Result<ParityOf> parity_from(const wire::ParityOf& from, const ShardHeader& header) {
  constexpr std::uint64_t kRowBytesMax = std::uint64_t{1} << 56;
  ParityOf parity{.losses = from.losses()};
  if (from.members() != nullptr) parity.members.assign(from.members()->begin(), from.members()->end());
  if (from.heads() != nullptr && from.heads()->size() <= kGroupRanksMax) {
    for (const wire::Blob* head : *from.heads()) {
      std::vector<std::byte>& bytes = parity.heads.emplace_back();
      if (head->bytes() == nullptr) continue;
      const auto* data = reinterpret_cast<const std::byte*>(head->bytes()->data());
      bytes.assign(data, data + head->bytes()->size());
    }
  }
  std::uint64_t row_bytes = 0;
  if (from.parts() != nullptr) {
    for (const std::uint64_t part : *from.parts()) {
      if (part == 0 || part % kPieceAlignment != 0 || part > kRowBytesMax - row_bytes) {
        return bad_shard("its rows of parity are impossible");
      }
      row_bytes += part;
      parity.parts.push_back(part);
    }
  }
  const bool ascend = std::ranges::adjacent_find(parity.members, std::ranges::greater_equal()) == parity.members.end();
  if (!ascend || parity.members.size() > kGroupRanksMax || parity.losses == 0 ||
      parity.losses >= parity.members.size() || parity.members.back() >= header.key.ranks ||
      !std::ranges::binary_search(parity.members, header.key.rank) || parity.heads.size() != parity.losses ||
      header.records.size() != parity.block_count() || !header.digests.empty()) {
    return bad_shard("its parity is impossible");
  }
  return parity;
}

}  // namespace

std::string to_string(const std::string& model, const ShardKey& key) {
  return format("{}@{}, rank {} of {}", model, key.version.number, key.rank, key.ranks);
}

std::uint64_t aligned_to_piece(std::uint64_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

std::vector<std::uint64_t> memory_offsets(std::span<const StoredPiece> pieces) {
  std::vector<std::uint64_t> offsets = {0};
  for (const StoredPiece& stored : pieces) offsets.push_back(offsets.back() + aligned_to_piece(stored.piece.bytes()));
  return offsets;
}

std::shared_ptr<const TensorTable> TensorTable::of(std::vector<LaidTensor> tensors) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<wire::Tensor>> offsets;
  for (const LaidTensor& tensor : tensors) {
    const auto name = builder.CreateString(tensor.spec.name);
    const auto shape = builder.CreateVector(tensor.spec.shape);
    offsets.push_back(wire::CreateTensor(builder, name, static_cast<std::uint8_t>(tensor.spec.dtype),
                                         static_cast<std::uint8_t>(tensor.spec.role), shape,
                                         static_cast<std::uint8_t>(tensor.layout.cut), tensor.layout.argument));
  }
  builder.Finish(wire::CreateTensorTable(builder, builder.CreateVector(offsets)), kTableId);
  TensorTable table{.tensors = std::move(tensors), .encoded = bytes_in(builder)};
  table.digest = digest_of(table.encoded);
  return std::make_shared<const TensorTable>(std::move(table));
}

Result<std::shared_ptr<const TensorTable>> TensorTable::decode(Bytes encoded, const Digest& digest) {
  if (digest_of(encoded) != digest) return bad_shard("its list of tensors differs from the written one");
  FRESHET_ASSIGN(const auto from, root_of<wire::TensorTable>(encoded, kTableId));
  TensorTable table;
  std::set<std::string_view> names;
  if (from->tensors() != nullptr) {
    if (from->tensors()->size() > kTensorsMax) return bad_shard("it has too many tensors");
    for (const wire::Tensor* tensor : *from->tensors()) {
      if (!names.insert(tensor->name()->string_view()).second) return bad_shard("two tensors have one name");
      FRESHET_ASSIGN(LaidTensor laid, tensor_from(*tensor));
      table.tensors.push_back(std::move(laid));
    }
  }
  table.encoded.assign(encoded.begin(), encoded.end());
  table.digest = digest;
  return std::make_shared<const TensorTable>(std::move(table));
}

std::vector<Version> ShardHeader::needs() const {
  std::set<std::uint32_t> stores;
  for (const PieceRecord& record : records) stores.insert(record.store);
  std::vector<Version> needed;
  for (const std::uint32_t store : stores) {
    if (versions[store] != key.version) needed.push_back(versions[store]);
  }
  return needed;
}

std::uint64_t ParityOf::row_bytes() const { return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0}); }

std::uint64_t ParityOf::block_count() const {
  std::uint64_t count = 0;
  for (const std::uint64_t part : parts) count += (part + kParityBlockBytes - 1) / kParityBlockBytes;
  return losses * count;
}

std::vector<ByteRange> ParityOf::blocks() const {
  std::vector<ByteRange> blocks;
  std::uint64_t at = 0;
  for (std::uint32_t row = 0; row < losses; ++row) {
    for (const std::uint64_t part : parts) {
      for (const std::uint64_t end = at + part; at < end; at += blocks.back().bytes) {
        blocks.push_back({.offset = at, .bytes = std::min(kParityBlockBytes, end - at)});
      }
    }
  }
  return blocks;
}

std::uint32_t ParityOf::position_of(std::uint32_t rank) const {
  return static_cast<std::uint32_t>(std::ranges::lower_bound(members, rank) - members.begin());
}

std::vector<std::uint64_t> first_chunks(std::span<const StoredPiece> pieces) {
  std::vector<std::uint64_t> first = {0};
  for (const StoredPiece& stored : pieces) {
    first.push_back(first.back() + (stored.piece.bytes() + kChunkBytes - 1) / kChunkBytes);
  }
  return first;
}

ShareCut::ShareCut(std::shared_ptr<const TensorTable> tensors, std::uint32_t all, std::uint32_t own)
    : table(std::move(tensors)), ranks(all), rank(own), pieces(stored_pieces(table->tensors, all, own)) {
  offsets = memory_offsets(pieces);
  first_chunks = levels::first_chunks(pieces);
  for (const StoredPiece& stored : pieces) bytes += stored.piece.bytes();
}

std::vector<std::byte> encode_shard_head(const ShardHeader& header) {
  flatbuffers::FlatBufferBuilder builder(1024 + header.records.size() * 48 + header.digests.size() * 16);
  std::vector<std::uint32_t> writers;
  std::vector<std::uint32_t> stores;
  std::vector<std::uint64_t> offsets;
  for (const PieceRecord& record : header.records) {
    writers.push_back(record.writer);
    stores.push_back(record.store);
    offsets.push_back(record.offset);
  }
  std::vector<wire::Version> versions;
  for (const Version& version : header.versions) versions.push_back(wire_of(version));
  std::vector<wire::Digest> digests;
  for (const Digest& digest : header.digests) digests.emplace_back(digest.low, digest.high);
  flatbuffers::Offset<wire::ParityOf> parity;
  if (header.parity) {
    std::vector<flatbuffers::Offset<wire::Blob>> heads;
    for (const std::vector<std::byte>& head : header.parity->heads) {
      heads.push_back(wire::CreateBlob(
          builder, builder.CreateVector(reinterpret_cast<const std::uint8_t*>(head.data()), head.size())));
    }
    const auto members = builder.CreateVector(header.parity->members);
    const auto head_list = builder.CreateVector(heads);
    const auto parts = builder.CreateVector(header.parity->parts);
    parity = wire::CreateParityOf(builder, members, header.parity->losses, head_list, parts);
  }
  const auto model = builder.CreateString(header.model);
  const auto host = builder.CreateString(header.host);
  const auto version_list = builder.CreateVectorOfStructs(versions);
  const auto writer_list = builder.CreateVector(writers);
  const auto store_list = builder.CreateVector(stores);
  const auto offset_list = builder.CreateVector(offsets);
  const auto digest_list = builder.CreateVectorOfStructs(digests);
  const wire::Version version = wire_of(header.key.version);
  const wire::Digest tensors(header.tensors.low, header.tensors.high);
  builder.Finish(wire::CreateShard(builder, model, &version, header.step, header.created_unix_ns, header.key.ranks,
                                   header.key.rank, host, &tensors, version_list, writer_list, store_list, offset_list,
                                   digest_list, header.payload_bytes, parity),
                 kShardId);
  const Bytes encoded(reinterpret_cast<const std::byte*>(builder.GetBufferPointer()), builder.GetSize());
  std::vector<std::byte> head(aligned_to_piece(kShardPrefixBytes + encoded.size()));
  std::memcpy(head.data(), kShardMagic.data(), kShardMagic.size());
  std::memcpy(head.data() + kShardPrefixBytes, encoded.data(), encoded.size());
  const Digest digest = digest_of(encoded);
  const std::array<std::uint64_t, 4> numbers = {head.size(), encoded.size(), digest.low, digest.high};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    store_little_endian(head.data() + kShardMagic.size() + 8 * i, numbers[i]);
  }
  return head;
}

Result<std::uint64_t> shard_head_bytes(Bytes prefix) {
  const auto begins_with = [&](std::string_view magic) {
    return prefix.size() >= kShardPrefixBytes && std::memcmp(prefix.data(), magic.data(), magic.size()) == 0;
  };
  if (begins_with(kShardMagicOfFormat1)) return bad_shard("it is of format 1, which this Freshet does not read");
  if (!begins_with(kShardMagic)) {
    return bad_shard("it is not a shard, or a newer Freshet wrote it");
  }
  const auto bytes = load_little_endian<std::uint64_t>(prefix.data() + kShardMagic.size());
  if (bytes < kShardPrefixBytes || bytes > kShardHeaderBytesMax || bytes % kPieceAlignment != 0) {
    return bad_shard("its head is of an impossible length");
  }
  return bytes;
}

Result<ShardHeader> decode_shard_head(Bytes head) {
  FRESHET_ASSIGN(const std::uint64_t bytes, shard_head_bytes(head));
  const std::byte* const numbers = head.data() + kShardMagic.size();
  const auto encoded_bytes = load_little_endian<std::uint64_t>(numbers + 8);
  const Digest digest{.low = load_little_endian<std::uint64_t>(numbers + 16),
                      .high = load_little_endian<std::uint64_t>(numbers + 24)};
  if (bytes != head.size() || encoded_bytes > bytes - kShardPrefixBytes) return bad_shard("its head is cut short");
  const Bytes encoded = head.subspan(kShardPrefixBytes, encoded_bytes);
  if (digest_of(encoded) != digest) return bad_shard("its head differs from the written one");
  FRESHET_ASSIGN(const auto from, root_of<wire::Shard>(encoded, kShardId));
  if (from->version() == nullptr || from->tensors() == nullptr) return bad_shard("its head names no version");
  ShardHeader header{.model = from->model()->str(),
                     .key = {.version = version_from(*from->version()), .rank = from->rank(), .ranks = from->ranks()},
                     .step = from->step(),
                     .created_unix_ns = from->created_unix_ns(),
                     .host = from->host() == nullptr ? "" : from->host()->str(),
                     .tensors = {.low = from->tensors()->low(), .high = from->tensors()->high()},
                     .payload_bytes = from->payload_bytes()};
  if (header.key.ranks == 0 || header.key.ranks > kRanksMax || header.key.rank >= header.key.ranks) {
    return bad_shard("its rank is impossible");
  }
  if (!header.key.version.is_possible() || header.payload_bytes > kNumberMax) {
    return bad_shard(
        format("its numbers are impossible: version {}, {} bytes", header.key.version.number, header.payload_bytes));
  }
  if (from->versions() != nullptr) {
    for (const wire::Version* version : *from->versions()) header.versions.push_back(version_from(*version));
    if (!std::ranges::all_of(header.versions, &Version::is_possible))
      return bad_shard("it names an impossible version");
  }
  const std::size_t records = from->writers() == nullptr ? 0 : from->writers()->size();
  const std::size_t stores = from->stores() == nullptr ? 0 : from->stores()->size();
  const std::size_t offsets = from->offsets() == nullptr ? 0 : from->offsets()->size();
  if (stores != records || offsets != records) return bad_shard("its records are not whole");
  for (std::size_t i = 0; i < records; ++i) {
    const auto at = static_cast<flatbuffers::uoffset_t>(i);
    const PieceRecord record{
        .writer = from->writers()->Get(at), .store = from->stores()->Get(at), .offset = from->offsets()->Get(at)};
    if (record.writer >= header.versions.size() || record.store >= header.versions.size()) {
      return bad_shard("a record names no version");
    }
    if (record.offset > kNumberMax) return bad_shard("a record's offset is impossible");
    header.records.push_back(record);
  }
  if (from->digests() != nullptr) {
    for (const wire::Digest* one : *from->digests()) header.digests.push_back({one->low(), one->high()});
  }
  if (from->parity() != nullptr) {
    FRESHET_ASSIGN(header.parity, parity_from(*from->parity(), header));
  }
  return header;
}

Status check_table(const TensorTable& table, std::uint32_t ranks) {
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 62;
  std::uint64_t all = 0;
  for (const LaidTensor& tensor : table.tensors) {
    if (tensor.layout.cut == Cut::own && tensor.layout.argument >= ranks) {
      return bad_shard(
          format("tensor {} is of rank {}, there are {}", tensor.spec.name, tensor.layout.argument, ranks));
    }
    if (tensor.spec.bytes() > kBytesMax - all) return bad_shard("its tensors are of more than 2^62 bytes");
    all += tensor.spec.bytes();
  }
  return {};
}

Status check_records(const ShardHeader& header, std::span<const StoredPiece> pieces, ShardKind kind) {
  const std::uint64_t chunks = kind == ShardKind::stored ? 0 : first_chunks(pieces).back();
  if (header.records.size() != pieces.size() || header.digests.size() != chunks) {
    return bad_shard(format("of {}: its records are not those of its tensors", to_string(header.model, header.key)));
  }
  // Who copies the payload takes room for all of it.
  if (const std::uint64_t most = memory_offsets(pieces).back(); header.payload_bytes > most) {
    return bad_shard(format("of {}: its payload has {} bytes, its tensors have {} at most",
                            to_string(header.model, header.key), header.payload_bytes, most));
  }
  return {};
}

void add_writers(const ShardHeader& header, std::span<const StoredPiece> pieces,
                 std::vector<std::optional<Version>>& writers) {
  const auto age = [](const Version& version) { return std::pair(version.id.incarnation, version.id.sequence); };
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Version& writer = header.versions[header.records[i].writer];
    std::optional<Version>& last = writers[pieces[i].piece.tensor];
    if (!last || age(writer) > age(*last)) last = writer;
  }
}

}  // namespace freshet::levels
