// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/base/digest.h"
#include "core/base/format.h"

namespace freshet::live {
namespace {

constexpr std::uint32_t kMagic = 0x4A4E4C46;  // "FLNJ"
constexpr std::size_t kHeaderBytes = 16;
constexpr std::size_t kFixedBytes = 32;
constexpr std::size_t kRowBytes = 12;
constexpr std::size_t kPayloadBytesMax = std::size_t{1} << 28;
constexpr std::string_view kPrefix = "journal-";

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T get(std::string_view& in) {
  T value;
  std::memcpy(&value, in.data(), sizeof(value));
  in.remove_prefix(sizeof(value));
  return value;
}

std::uint64_t line_digest(std::string_view bytes) { return digest_of(bytes_of(bytes.data(), bytes.size())).low; }

std::optional<std::uint32_t> parse_number(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string to_string(RecordId id) { return format("{}-{}", id.life, id.index); }

std::optional<RecordId> parse_record_id(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto life = parse_number(text.substr(0, dash));
  const auto index = parse_number(text.substr(dash + 1));
  if (!life || !index || *life == 0 || *index == 0) return std::nullopt;
  return RecordId{*life, *index};
}

std::string encode(const JournalRecord& record) {
  std::string payload;
  payload.reserve(kFixedBytes + record.dense.size() * 8 + record.rows.size() * kRowBytes);
  for (const RecordId id : {record.id, record.parent}) {
    put(payload, id.life);
    put(payload, id.index);
  }
  put(payload, record.step);
  put(payload, static_cast<std::uint32_t>(record.dense.size()));
  put(payload, static_cast<std::uint32_t>(record.rows.size()));
  for (const std::uint64_t digest : record.dense) put(payload, digest);
  for (const RowSeen& seen : record.rows) {
    put(payload, seen.row);
    put(payload, seen.digest);
  }
  std::string out;
  put(out, kMagic);
  put(out, static_cast<std::uint32_t>(payload.size()));
  put(out, line_digest(payload));
  return out + payload;
}

Result<std::optional<JournalRecord>> take_record(std::string_view& bytes) {
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  std::string_view in = bytes;
  const auto magic = get<std::uint32_t>(in);
  const auto size = get<std::uint32_t>(in);
  const auto digest = get<std::uint64_t>(in);
  if (magic != kMagic || size < kFixedBytes || size > kPayloadBytesMax) {
    return fail(Code::corrupt, "journal: not a record");
  }
  if (in.size() < size) return std::nullopt;
  in = in.substr(0, size);
  if (line_digest(in) != digest) return fail(Code::corrupt, "journal: a record does not match its digest");

  JournalRecord record;
  for (RecordId* id : {&record.id, &record.parent}) {
    id->life = get<std::uint32_t>(in);
    id->index = get<std::uint32_t>(in);
  }
  record.step = get<std::uint64_t>(in);
  const std::uint64_t dense = get<std::uint32_t>(in);
  const std::uint64_t rows = get<std::uint32_t>(in);
  if (in.size() != dense * 8 + rows * kRowBytes) return fail(Code::corrupt, "journal: a record's counts are wrong");
  for (std::uint64_t i = 0; i < dense; ++i) record.dense.push_back(get<std::uint64_t>(in));
  for (std::uint64_t i = 0; i < rows; ++i) {
    const auto row = get<std::uint32_t>(in);
    record.rows.push_back({.row = row, .digest = get<std::uint64_t>(in)});
  }
  bytes.remove_prefix(kHeaderBytes + size);
  return record;
}

Result<JournalWriter> JournalWriter::create(const std::string& folder, std::uint32_t life) {
  std::string path = format("{}/{}{}", folder, kPrefix, life);
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (descriptor < 0) return fail_errno(errno, format("journal {}", path));
  return JournalWriter(std::move(path), descriptor);
}

JournalWriter::JournalWriter(JournalWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

JournalWriter::~JournalWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status JournalWriter::append(const JournalRecord& record) {
  const std::string bytes = encode(record);
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(descriptor_, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail_errno(errno, format("journal {}", path_));
    written += static_cast<std::size_t>(n);
  }
  return {};
}

Status JournalReader::poll(const std::function<void(JournalRecord)>& each) {
  std::set<std::uint32_t> lives;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    if (const auto life = parse_number(std::string_view(name).substr(kPrefix.size()))) lives.insert(*life);
  }
  for (const std::uint32_t life : lives) FRESHET_TRY(follow(life, each));
  return {};
}

Status JournalReader::follow(std::uint32_t life, const std::function<void(JournalRecord)>& each) {
  Follow& follow = lives_[life];
  std::ifstream file(format("{}/{}{}", folder_, kPrefix, life), std::ios::binary);
  file.seekg(static_cast<std::streamoff>(follow.offset));
  std::vector<char> piece(1 << 18);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    follow.unread.append(piece.data(), static_cast<std::size_t>(file.gcount()));
    follow.offset += static_cast<std::uint64_t>(file.gcount());
    std::string_view rest = follow.unread;
    while (true) {
      FRESHET_ASSIGN(auto record, take_record(rest));
      if (!record) break;
      each(std::move(*record));
    }
    follow.unread.erase(0, follow.unread.size() - rest.size());
  }
  return {};
}

}  // namespace freshet::live
