// SPDX-License-Identifier: Apache-2.0
#include "transport/security/allow_list.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{16} << 20;
/// Times in inodes advance by a timer's tick, or by seconds on some file systems.
constexpr std::int64_t kTimesAdvanceNs = 2'100'000'000;

bool equal(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

bool is_recent(const timespec& time) {
  const std::int64_t ns = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  return ns > system_clock().unix_ns() - kTimesAdvanceNs;
}

/// A line without the word writer, and whether it had it. Operators are those of parse_key_line().
std::pair<std::string_view, bool> without_writer(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = std::min(line.find_first_not_of(kBlanks), line.size());
  const std::string_view rest = line.substr(begin);
  const bool is_writer = rest.substr(0, rest.find_first_of(kBlanks)) == word_of(Right::write);
  return {is_writer ? rest.substr(word_of(Right::write).size()) : line, is_writer};
}

Result<AllowedKeys> parse(const std::string& path, std::string_view text) {
  AllowedKeys keys;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto [said, is_writer] = without_writer(text.substr(0, end));
    Result<std::optional<KeyLine>> line = parse_key_line(said);
    if (is_writer && line && (!*line || (*line)->is_operator)) {
      line = fail(Code::invalid_argument, "the word writer needs a public key behind it (40 characters of Z85)");
    }
    if (!line) return fail(std::move(line).error().with_context(format("{}:{}", path, number)));
    if (*line) {
      const Right right = (*line)->is_operator ? Right::operate : is_writer ? Right::write : Right::read;
      keys.insert_or_assign((*line)->key.text(), AllowedKey{.label = (*line)->label, .right = right});
    }
    if (keys.size() > kAllowedKeysMax) {
      return fail(Code::invalid_argument, format("{} has more than {} keys", path, kAllowedKeysMax));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return keys;
}

}  // namespace

std::string_view word_of(Right right) {
  switch (right) {
    case Right::write: return "writer";
    case Right::operate: return "operator";
    default: return "";
  }
}

bool AllowList::Stamp::operator==(const Stamp& other) const {
  return inode == other.inode && bytes == other.bytes && equal(written, other.written) &&
         equal(changed, other.changed) && failure == other.failure;
}

AllowList::Stamp AllowList::stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Stamp{.failure = errno};
  return Stamp{.inode = status.st_ino, .bytes = status.st_size, .written = status.st_mtim, .changed = status.st_ctim};
}

Result<AllowList> AllowList::open(std::string path) {
  AllowList list(std::move(path));
  list.stamp_ = stamp_of(list.path_);
  FRESHET_TRY(list.read());
  return list;
}

Status AllowList::refresh() {
  const Stamp stamp = stamp_of(path_);
  if (stamp == stamp_ && !may_hide_a_change_) return {};
  stamp_ = stamp;
  Status status = read();
  if (status) {
    told_.clear();
    return {};
  }
  if (status.error().message() == told_) return {};
  told_ = status.error().message();
  return fail(std::move(status).error().with_context("the allow-list stays as it was"));
}

Status AllowList::read() {
  may_hide_a_change_ = is_recent(stamp_.changed);
  FRESHET_ASSIGN(const FileText file, read_file(path_, kFileBytesMax));
  if ((file.status.st_mode & 022) != 0) {
    return fail(Code::invalid_argument, format("allow-list {} has mode {:04o}: others can add to it; chmod go-w it",
                                               path_, file.status.st_mode & 07777));
  }
  FRESHET_ASSIGN(AllowedKeys keys, parse(path_, file.text));
  if (keys_ == nullptr || *keys_ != keys) keys_ = std::make_shared<const AllowedKeys>(std::move(keys));
  return {};
}

}  // namespace freshet
