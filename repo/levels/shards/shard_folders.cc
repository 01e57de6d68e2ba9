// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/shards/shard_folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/json_document.h"

namespace freshet::levels {
namespace {

/// By ShardKind.
constexpr std::array<std::string_view, 3> kWholeSuffixes = {".shard", ".copy", ".parity"};
constexpr std::array<std::string_view, 3> kBytesSuffixes = {".bytes", ".copybytes", ".paritybytes"};
constexpr std::string_view kHalfSuffix = ".tmp";
constexpr std::size_t kPromisesBytesMax = 4096;
constexpr std::size_t kTableBytesMax = std::size_t{256} << 20;
constexpr std::uint64_t kLongRunBytes = kReadBytes / 2;
constexpr std::uint64_t kReadAheadBytes = 4 * kReadBytes;

std::string shard_file(const ShardKey& key) {
  const VersionId& id = key.version.id;
  return format("{}.{:016x}{:016x}.{}.{}.r{}of{}", key.version.number, id.run.high, id.run.low, id.incarnation,
                id.sequence, key.rank, key.ranks);
}

std::string bytes_file(const ShardKey& key, ShardKind kind) {
  return shard_file(key) + std::string(kBytesSuffixes[static_cast<std::size_t>(kind)]);
}

struct FileRole {
  ShardKind kind = ShardKind::own;
  bool bytes_only = false;
};
std::optional<FileRole> role_of(std::string_view name) {
  for (std::size_t kind = 0; kind < kWholeSuffixes.size(); ++kind) {
    if (name.ends_with(kWholeSuffixes[kind])) return FileRole{static_cast<ShardKind>(kind), false};
    if (name.ends_with(kBytesSuffixes[kind])) return FileRole{static_cast<ShardKind>(kind), true};
  }
  return std::nullopt;
}

constexpr std::string_view kLockSuffix = ".lock";
std::string lock_file(std::uint32_t rank) { return format("rank{}{}", rank, kLockSuffix); }
std::string promises_file(std::uint32_t rank) { return format("rank{}.json", rank); }
std::string table_file(const Digest& digest) { return format("{}.tensors", to_hex(digest)); }

/// What is half-written, of other ranks' or of parity, at the rank that writes it.
std::string streamed_suffix(std::uint32_t rank) { return format(".by{}{}", rank, kHalfSuffix); }

std::uint64_t bytes_in(const OpenedFile& file) { return static_cast<std::uint64_t>(file.status.st_size); }

Result<std::vector<std::byte>> read_whole(const std::string& path, std::size_t bytes_max) {
  FRESHET_ASSIGN(const OpenedFile file, open_regular(path, O_NOFOLLOW));
  if (bytes_in(file) > bytes_max) return fail(Code::corrupt, format("{} is too long", path));
  std::vector<std::byte> content(bytes_in(file));
  FRESHET_TRY(read_at(file.descriptor.get(), content, 0, path));
  return content;
}

Result<std::vector<std::byte>> head_in(const OpenedFile& file, const std::string& path) {
  std::vector<std::byte> head(kShardPrefixBytes);
  FRESHET_TRY(read_at(file.descriptor.get(), head, 0, path));
  Result<std::uint64_t> bytes = shard_head_bytes(head);
  if (!bytes) return fail(std::move(bytes).error().with_context(path));
  if (*bytes > bytes_in(file)) return fail(Code::corrupt, format("{} is cut short", path));
  head.resize(*bytes);
  FRESHET_TRY(read_at(file.descriptor.get(), MutableBytes(head).subspan(kShardPrefixBytes), kShardPrefixBytes, path));
  return head;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (auto at = std::filesystem::directory_iterator(folder, failure); !failure && at != std::filesystem::end(at);
       at.increment(failure)) {
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

Result<HeldShard> look_at(const std::string& path) {
  FRESHET_ASSIGN(const OpenedFile file, open_regular(path, O_NOFOLLOW));
  FRESHET_ASSIGN(const std::vector<std::byte> head, head_in(file, path));
  Result<ShardHeader> header = decode_shard_head(head);
  if (!header) return fail(std::move(header).error().with_context(path));
  const std::uint64_t bytes = bytes_in(file);
  if (bytes != head.size() + header->payload_bytes) {
    return fail(Code::corrupt,
                format("{} has {} bytes, {} were written", path, bytes, head.size() + header->payload_bytes));
  }
  HeldShard held{
      .key = header->key, .step = header->step, .needs = header->needs(), .bytes = bytes, .members = {}, .folder = {}};
  if (header->parity) {
    held.kind = ShardKind::parity;
    held.members = std::move(header->parity->members);
    held.losses = header->parity->losses;
  }
  return held;
}

/// Without such a number: 0. Else what is there has to be one that a life of the job can have promised.
Status take_number(const JsonDocument& from, std::string_view key, std::uint64_t& number) {
  const auto at = from.find(key);
  if (at == from.end()) return {};
  if (!at->is_number_unsigned() || at->get<std::uint64_t>() > kNumberMax) {
    return fail(Code::corrupt, format("\"{}\" is {}, which no rank writes", key, shown(at->dump())));
  }
  number = at->get<std::uint64_t>();
  return {};
}

Result<Promises> decode_promises(std::string_view text) {
  FRESHET_ASSIGN(const JsonDocument json, parse_json(text));
  if (!json.is_object()) return fail(Code::corrupt, "it is no JSON object");
  Promises found;
  FRESHET_TRY(take_number(json, "number_max", found.number_max));
  FRESHET_TRY(take_number(json, "incarnation_max", found.incarnation_max));
  if (const auto levels = json.find("acknowledged"); levels != json.end()) {
    if (!levels->is_object()) return fail(Code::corrupt, "\"acknowledged\" is no JSON object");
    for (std::size_t level = 0; level < kLevels; ++level) {
      FRESHET_TRY(take_number(*levels, name_of(static_cast<Level>(level)), found.acknowledged[level]));
    }
  }
  if (std::ranges::max(found.acknowledged) > found.number_max) {
    return fail(Code::corrupt, "\"acknowledged\" has a version over \"number_max\"");
  }
  return found;
}

/// Without the promises, a life would give numbers again, and forget what was acknowledged.
Result<Promises> promises_in(const std::string& path) {
  FRESHET_ASSIGN(const std::vector<std::byte> text, read_whole(path, kPromisesBytesMax));
  auto promises = decode_promises({reinterpret_cast<const char*>(text.data()), text.size()});
  if (promises) return promises;
  return fail(Code::corrupt,
              format("{} is damaged: {}. If you remove it, the other ranks' records and the shards alone "
                     "say which numbers were given, and what was acknowledged",
                     path, promises.error().message()));
}

Status make_folders(const std::string& path) {
  std::error_code failure;
  std::filesystem::create_directories(path, failure);
  if (failure) return fail_errno(failure.value(), format("make the folder {}", path));
  return {};
}

}  // namespace

std::string whole_file(const ShardKey& key, ShardKind kind) {
  return shard_file(key) + std::string(kWholeSuffixes[static_cast<std::size_t>(kind)]);
}

void Promises::add(const Promises& other) {
  number_max = std::max(number_max, other.number_max);
  incarnation_max = std::max(incarnation_max, other.incarnation_max);
  for (std::size_t level = 0; level < kLevels; ++level) {
    acknowledged[level] = std::max(acknowledged[level], other.acknowledged[level]);
  }
}

std::string ShardFolders::path_in(const std::string& folder, const std::string& file) const {
  return format("{}/{}/{}", folder, model_, file);
}

Result<std::unique_ptr<ShardFolders>> ShardFolders::open(Env& env, std::vector<std::string> folders, std::string model,
                                                         std::uint32_t rank) {
  FRESHET_TRY(check_model_name(model));
  if (folders.empty() || folders.front().empty()) return refuse("a folder for shards is needed");
  const std::string own = format("{}/{}", folders.front(), model);
  FRESHET_TRY(make_folders(own));
  auto opened = std::unique_ptr<ShardFolders>(new ShardFolders(std::move(folders), std::move(model)));
  opened->env_ = &env;
  opened->rank_ = rank;
  const std::string lock = format("{}/{}", own, lock_file(rank));
  ParentsDescriptor file(FileDescriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)));
  if (!file) return fail_errno(errno, format("open {}", lock));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail_errno(errno, format("lock {}", lock));
    return fail(Code::already_exists, format("another process writes {} as rank {} in {}: end it first, or give this "
                                             "job another model or folder",
                                             opened->model_, rank, opened->first()));
  }
  opened->lock_ = std::move(file);
  const std::string mark = format(".r{}of", rank);
  const std::string streamed = streamed_suffix(rank);
  for (const std::string& name : files_in(own)) {
    if (!name.ends_with(kHalfSuffix)) continue;
    const bool is_mine = name.find(mark) != std::string::npos || name.ends_with(streamed) ||
                         name == promises_file(rank) + std::string(kHalfSuffix);
    if (!is_mine) continue;
    [[maybe_unused]] const Status gone = env.remove_file(format("{}/{}", own, name));
  }
  return opened;
}

Result<std::unique_ptr<ShardFolders>> ShardFolders::open_to_read(std::vector<std::string> folders, std::string model) {
  FRESHET_TRY(check_model_name(model));
  return std::unique_ptr<ShardFolders>(new ShardFolders(std::move(folders), std::move(model)));
}

Result<std::vector<std::string>> ShardFolders::models(const std::vector<std::string>& folders) {
  std::set<std::string> names;
  for (const std::string& folder : folders) {
    std::error_code failure;
    if (!std::filesystem::is_directory(folder, failure))
      return fail(Code::not_found, format("{} is not a folder", folder));
    for (const std::string& name : files_in(folder)) {
      if (check_model_name(name) && std::filesystem::is_directory(format("{}/{}", folder, name), failure)) {
        names.insert(name);
      }
    }
  }
  return std::vector<std::string>(names.begin(), names.end());
}

std::vector<HeldShard> ShardFolders::scan(std::vector<std::string>* damaged, bool* unsure) const {
  std::vector<HeldShard> held;
  std::map<std::pair<ShardKey, ShardKind>, std::size_t> known;
  for (const std::string& folder : folders_) {
    for (const std::string& name : files_in(format("{}/{}", folder, model_))) {
      const std::optional<FileRole> role = role_of(name);
      if (!role) continue;
      const auto [kind, bytes_only] = *role;
      Result<HeldShard> shard = look_at(path_in(folder, name));
      if (shard) {
        const bool is_parity = shard->kind == ShardKind::parity;
        if (is_parity != (kind == ShardKind::parity) ||
            (bytes_only ? bytes_file(shard->key, kind) : whole_file(shard->key, kind)) != name) {
          shard = fail(Code::corrupt,
                       format("{} is another shard's file: {}", path_in(folder, name), shard_file(shard->key)));
        }
      }
      if (!shard) {
        const Code code = shard.error().code();
        if (unsure != nullptr && code != Code::corrupt && code != Code::not_found) *unsure = true;
        if (damaged != nullptr) damaged->push_back(shard.error().message());
        continue;
      }
      shard->bytes_only = bytes_only;
      shard->kind = kind;
      shard->folder = folder;
      const auto [at, is_new] = known.try_emplace({shard->key, kind}, held.size());
      if (is_new) {
        held.push_back(*std::move(shard));
      } else if (held[at->second].bytes_only && !bytes_only) {
        held[at->second] = *std::move(shard);
      }
    }
  }
  return held;
}

bool ShardFolders::is_shared() const {
  const std::string own = format("{}/{}", first(), model_);
  for (const std::string& name : files_in(own)) {
    if (!name.starts_with("rank") || !name.ends_with(kLockSuffix) || name == lock_file(rank_)) continue;
    const FileDescriptor file(::open(format("{}/{}", own, name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return true;
  }
  return false;
}

Result<Promises> ShardFolders::promises() const {
  Promises all;
  for (const std::string& folder : folders_) {
    for (const std::string& name : files_in(format("{}/{}", folder, model_))) {
      if (!name.starts_with("rank") || !name.ends_with(".json")) continue;
      const auto one = promises_in(path_in(folder, name));
      if (one) all.add(*one);
      if (!one && one.error().code() != Code::not_found) return fail(one.error());
    }
  }
  return all;
}

Result<OpenedFile> ShardFolders::open_shard(const ShardKey& key, ShardKind kind) const {
  std::optional<Error> why;
  for (const std::string& folder : folders_) {
    for (const std::string& name : {whole_file(key, kind), bytes_file(key, kind)}) {
      Result<OpenedFile> file = open_regular(path_in(folder, name), O_NOFOLLOW);
      if (file) return file;
      if (!why || why->code() == Code::not_found) why = file.error();
    }
  }
  return fail(*why);
}

Result<std::vector<std::byte>> ShardFolders::read_head(const ShardKey& key, ShardKind kind) const {
  FRESHET_ASSIGN(const OpenedFile file, open_shard(key, kind));
  return head_in(file, shard_file(key));
}

Result<ShardHeader> ShardFolders::read_header(const ShardKey& key, ShardKind kind) const {
  FRESHET_ASSIGN(const std::vector<std::byte> head, read_head(key, kind));
  FRESHET_ASSIGN(ShardHeader header, decode_shard_head(head));
  if (header.key != key || header.parity.has_value() != (kind == ShardKind::parity)) {
    return fail(Code::corrupt, format("{} has the head of another shard", whole_file(key, kind)));
  }
  return header;
}

Result<DescribedShard> ShardFolders::describe(const ShardKey& key, ShardKind kind) const {
  FRESHET_ASSIGN(ShardHeader header, read_header(key, kind));
  FRESHET_ASSIGN(const std::vector<std::byte> encoded, read_table(header.tensors));
  FRESHET_ASSIGN(auto table, TensorTable::decode(encoded, header.tensors));
  FRESHET_TRY(check_table(*table, key.ranks));
  ShareCut cut(std::move(table), key.ranks, key.rank);
  if (Status checked = check_records(header, cut.pieces); !checked) {
    return fail(std::move(checked).error().with_context(whole_file(key, kind)));
  }
  return DescribedShard{.header = std::move(header), .cut = std::move(cut)};
}

Result<std::vector<std::byte>> ShardFolders::read(const ShardKey& key, std::span<const ByteRange> ranges,
                                                  ShardKind kind) const {
  std::uint64_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.bytes;
  std::vector<std::byte> out(bytes);
  MutableBytes left(out);
  std::vector<PlacedRange> placed;
  for (const ByteRange& range : ranges) {
    placed.push_back({.offset = range.offset, .out = left.first(range.bytes)});
    left = left.subspan(range.bytes);
  }
  FRESHET_TRY(read_into(key, placed, kind));
  return out;
}

Status ShardFolders::read_into(const ShardKey& key, std::span<const PlacedRange> ranges, ShardKind kind) const {
  FRESHET_ASSIGN(const OpenedFile opened, open_shard(key, kind));
  const FileDescriptor& file = opened.descriptor;
  const std::string name = shard_file(key);
  std::vector<std::byte> prefix(kShardPrefixBytes);
  FRESHET_TRY(read_at(file.get(), prefix, 0, name));
  FRESHET_ASSIGN(const std::uint64_t payload, shard_head_bytes(prefix));
  // Whoever reads a long run goes on with what lies behind it, and computes in between.
  if (ranges.size() == 1 && ranges[0].out.size() >= kLongRunBytes) {
    (void)::posix_fadvise(file.get(), static_cast<off_t>(payload + ranges[0].offset),
                          static_cast<off_t>(ranges[0].out.size() + kReadAheadBytes), POSIX_FADV_WILLNEED);
  }
  for (const PlacedRange& range : ranges) {
    FRESHET_TRY(read_at(file.get(), range.out, payload + range.offset, name));
  }
  return {};
}

Result<std::vector<std::byte>> ShardFolders::read_table(const Digest& digest) const {
  std::optional<Error> why;
  for (const std::string& folder : folders_) {
    auto content = read_whole(path_in(folder, table_file(digest)), kTableBytesMax);
    if (content && digest_of(*content) == digest) return content;
    if (!why) why = content ? Error(Code::corrupt, format("{} is damaged", table_file(digest))) : content.error();
  }
  return fail(*why);
}

Status ShardFolders::write_beside(const std::string& path, const std::string& temporary,
                                  const std::function<Status(WritableFile&)>& content) {
  [[maybe_unused]] const Status old = env_->remove_file(temporary);
  return replace_file(*env_, path, temporary, content, true);
}

Status ShardFolders::write_table(const TensorTable& table) {
  const std::string path = path_in(first(), table_file(table.digest));
  const auto there = read_whole(path, kTableBytesMax);
  if (there && *there == table.encoded) return {};
  // Ranks that share the folder write the same bytes, each to a name of its own first.
  return write_beside(path, format("{}.r{}of{}", path, rank_, kHalfSuffix),
                      [&](WritableFile& file) { return file.append(table.encoded); });
}

Status ShardFolders::write(const std::vector<std::byte>& head, const ShardKey& key, std::span<const Bytes> payload,
                           const std::function<void()>& half) {
  std::uint64_t bytes = 0;
  for (const Bytes& part : payload) bytes += part.size();
  AtHalf at_half(bytes, half);
  const std::uint64_t middle = (bytes + 1) / 2;
  std::uint64_t written = 0;
  Bytes left;
  const auto next = [&]() -> Result<std::optional<Bytes>> {
    at_half.reached(written);
    for (; left.empty() && !payload.empty(); payload = payload.subspan(1)) left = payload.front();
    if (left.empty()) return std::optional<Bytes>();
    const Bytes part = left.first(written < middle ? std::min(left.size(), middle - written) : left.size());
    left = left.subspan(part.size());
    written += part.size();
    return std::optional(part);
  };
  return write_streamed(head, key, ShardKind::own, false, next);
}

bool ShardFolders::has_copy(const ShardKey& key) const {
  std::error_code failure;
  return has_whole_copy(key) || std::filesystem::exists(path_in(first(), bytes_file(key, ShardKind::copy)), failure);
}

bool ShardFolders::has_whole_copy(const ShardKey& key) const {
  std::error_code failure;
  return std::filesystem::exists(path_in(first(), whole_file(key, ShardKind::copy)), failure);
}

Status ShardFolders::write_streamed(const std::vector<std::byte>& head, const ShardKey& key, ShardKind kind,
                                    bool bytes_only, const std::function<Result<std::optional<Bytes>>()>& next) {
  const std::string path = path_in(first(), bytes_only ? bytes_file(key, kind) : whole_file(key, kind));
  return write_beside(path, path + streamed_suffix(rank_), [&](WritableFile& file) -> Status {
    FRESHET_TRY(file.append(head));
    for (;;) {
      FRESHET_ASSIGN(const std::optional<Bytes> bytes, next());
      if (!bytes) return {};
      FRESHET_TRY(file.append(*bytes));
    }
  });
}

Status ShardFolders::write_promises(const Promises& promises) {
  JsonDocument levels = JsonDocument::object();
  for (std::size_t level = 0; level < kLevels; ++level) {
    levels[std::string(name_of(static_cast<Level>(level)))] = promises.acknowledged[level];
  }
  const JsonDocument json = {{"number_max", promises.number_max},
                             {"incarnation_max", promises.incarnation_max},
                             {"acknowledged", std::move(levels)}};
  const std::string text = json.dump() + "\n";
  const Bytes bytes = bytes_of(text.data(), text.size());
  return write_file_atomically(*env_, path_in(first(), promises_file(rank_)), std::span(&bytes, 1), true);
}

Status ShardFolders::remove(const ShardKey& key, ShardKind kind) {
  const Status bytes = env_->remove_file(path_in(first(), bytes_file(key, kind)));
  const Status whole = env_->remove_file(path_in(first(), whole_file(key, kind)));
  return whole ? bytes || bytes.error().code() == Code::not_found ? Status() : bytes
         : bytes && whole.error().code() == Code::not_found ? Status()
                                                            : whole;
}

Status ShardFolders::demote(const ShardKey& key, std::span<const ByteRange> kept, ShardKind kind) {
  const std::string path = path_in(first(), bytes_file(key, kind));
  const Status renamed = env_->rename_file(path_in(first(), whole_file(key, kind)), path);
  if (!renamed && renamed.error().code() != Code::not_found) return renamed;
  if (renamed) FRESHET_TRY(env_->sync_folder(format("{}/{}", first(), model_)));
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return fail_errno(errno, format("open {}", path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return fail_errno(errno, format("look at {}", path));
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  std::vector<std::byte> prefix(kShardPrefixBytes);
  FRESHET_TRY(read_at(file.get(), prefix, 0, path));
  FRESHET_ASSIGN(const std::uint64_t payload, shard_head_bytes(prefix));
  std::uint64_t at = payload;
  const auto give_back = [&](std::uint64_t end) {
    // A file system that cannot keeps the bytes.
    if (at < end) {
      [[maybe_unused]] const int done = ::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                    static_cast<off_t>(at), static_cast<off_t>(end - at));
    }
  };
  for (const ByteRange& range : kept) {
    give_back(std::min(bytes, payload + range.offset));
    at = std::max(at, payload + range.offset + range.bytes);
  }
  give_back(bytes);
  return {};
}

}  // namespace freshet::levels
