// SPDX-License-Identifier: Apache-2.0
#include "bindings/serving/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <concepts>
#include <cstdio>
#include <utility>

#include "core/base/format.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace freshet::serving {

struct Journal::File {
  FileDescriptor descriptor;
  bool is_regular = false;
};

namespace {

constexpr mode_t kJournalMode = 0640;
/// So much more a full file takes while another process renames it, or while nobody can.
constexpr std::uint64_t kHeadroomBytes = std::uint64_t{64} << 20;

std::string name_of_file(const std::string& path, std::size_t age) {
  return age == 0 ? path : format("{}.{}", path, age);
}

bool is_same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

/// Takes back what a write left of a line, unless something came after it. Another process that appends between the
/// comparison and the cut would lose its line; the disk is full then, so its write fails, too.
void take_back(int file, std::string_view fragment) {
  struct stat status = {};
  if (::fstat(file, &status) != 0 || status.st_size < static_cast<off_t>(fragment.size())) return;
  const off_t begin = status.st_size - static_cast<off_t>(fragment.size());
  std::string there(fragment.size(), '\0');
  const ssize_t read = ::pread(file, there.data(), there.size(), begin);
  if (read == static_cast<ssize_t>(there.size()) && there == fragment) (void)!::ftruncate(file, begin);
}

/// PATH.1 gives way to PATH, PATH.2 to PATH.1, and so on; the oldest is replaced.
Status rename_files(const std::string& path, std::size_t files_max) {
  if (files_max == 1) {
    if (::unlink(path.c_str()) != 0) return fail_errno(errno, "remove " + path);
    return {};
  }
  for (std::size_t age = files_max - 1; age > 0; --age) {
    const std::string from = name_of_file(path, age - 1);
    if (::rename(from.c_str(), name_of_file(path, age).c_str()) != 0 && errno != ENOENT) {
      return fail_errno(errno, "rename " + from);
    }
  }
  return {};
}

}  // namespace

namespace {

/// A request waits for its line, so nothing here parses a format or makes a text on the way.
void append_number(std::string& line, std::integral auto number) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  line.append(digits.data(), end);
}

void append_metric(std::string& line, double value) {
  if (value - value != 0) {  // Of an infinity or NaN the difference is NaN.
    line += "null";
    return;
  }
  std::array<char, 32> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  line.append(digits.data(), end);
}

void append_escaped(std::string& line, std::string_view text) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      line += '\\';
      line += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      line += format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      line += c;
    }
  }
}

/// How many there is no room for.
std::size_t append_metrics(std::string& line, const Metrics& metrics) {
  constexpr std::size_t kMetricsBytesMax = kLineBytesMax / 2;
  const std::size_t begin = line.size();
  std::size_t left_out = 0;
  for (const auto& [name, value] : metrics) {
    const std::size_t before = line.size();
    line += before == begin ? "\"" : ",\"";
    append_escaped(line, name);
    line += "\":";
    append_metric(line, value);
    if (line.size() - begin <= kMetricsBytesMax) continue;
    line.resize(before);
    ++left_out;
  }
  return left_out;
}

}  // namespace

std::string json_escaped(std::string_view text) {
  std::string escaped;
  append_escaped(escaped, text);
  return escaped;
}

std::string journal_line(const JournalEntry& entry) {
  // Of kScheduleTag's value so much is kept; scheduled_publisher.h, which names the tag, is another room's.
  constexpr std::size_t kScheduleBytesMax = 1024;
  constexpr std::string_view kSchedule = "schedule";
  constexpr std::size_t kUsualBytes = 512;
  const Manifest& manifest = entry.manifest;
  const VersionNumber version = manifest.name.number;
  std::string line;
  line.reserve(kUsualBytes);
  line += R"({"request":")";
  append_escaped(line, entry.request);
  line += R"(","model":")";
  append_escaped(line, manifest.name.model);
  line += R"(","version":)";
  append_number(line, version);
  line += R"(,"served_unix_ns":)";
  append_number(line, entry.served_unix_ns);
  line += R"(,"versions_behind":)";
  append_number(line, entry.newest > version ? entry.newest - version : 0);
  line += R"(,"step":)";
  append_number(line, manifest.step);
  line += R"(,"metrics":{)";
  const std::size_t left_out = append_metrics(line, manifest.metrics);
  line += '}';
  for (const auto& [key, value] : manifest.tags) {
    if (key != kSchedule) continue;
    line += R"(,"schedule":")";
    append_escaped(line, shown(value, kScheduleBytesMax));
    line += '"';
  }
  if (left_out > 0) {
    line += R"(,"left_out":)";
    append_number(line, left_out);
  }
  line += "}\n";
  return line;
}

namespace {

Result<std::pair<FileDescriptor, struct stat>> open_journal(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return fail(Code::invalid_argument, format("a journal's path has a null character: {}", shown(path)));
  }
  // Opening a pipe must not wait for its reader.
  FileDescriptor file(
      ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, kJournalMode));
  struct stat status = {};
  if (!file || ::fstat(file.get(), &status) != 0) return fail_errno(errno, "open the journal " + path);
  if (!S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode)) {
    return fail(Code::invalid_argument, format("the journal {} is no regular file: give the path of a file", path));
  }
  return std::pair(std::move(file), status);
}

}  // namespace

Result<std::unique_ptr<Journal>> Journal::open(JournalOptions options) {
  if (options.bytes_max < kJournalBytesMin || options.files_max < 1 || options.files_max > kJournalFilesMax) {
    return fail(
        Code::invalid_argument,
        format("the journal {}: a file has at least {} bytes, and there are 1 to {} files; {} bytes and {} files "
               "were asked",
               options.path, kJournalBytesMin, kJournalFilesMax, options.bytes_max, options.files_max));
  }
  FRESHET_ASSIGN(auto opened, open_journal(options.path));
  auto file = std::make_shared<File>();
  file->descriptor = std::move(opened.first);
  file->is_regular = S_ISREG(opened.second.st_mode);
  return std::unique_ptr<Journal>(new Journal(std::move(options), std::move(file)));
}

Journal::Journal(JournalOptions options, std::shared_ptr<File> file)
    : options_(std::move(options)), file_(std::move(file)) {}
Journal::~Journal() = default;

std::shared_ptr<Journal::File> Journal::file() const {
  MutexLock lock(mutex_);
  return file_;
}

Result<std::shared_ptr<Journal::File>> Journal::next_file(const File& full) {
  // Another process that renames now is left to it: this one writes on in the full file.
  if (::flock(full.descriptor.get(), LOCK_EX | LOCK_NB) == 0) {
    struct stat here = {};
    struct stat named = {};
    const bool is_named = ::fstat(full.descriptor.get(), &here) == 0 && ::stat(options_.path.c_str(), &named) == 0 &&
                          is_same_file(here, named);
    const Status renamed = is_named ? rename_files(options_.path, options_.files_max) : Status();
    (void)::flock(full.descriptor.get(), LOCK_UN);
    if (!renamed) return fail(renamed.error());
  } else {
    return fail_errno(errno, "lock the full journal " + options_.path);
  }
  FRESHET_ASSIGN(auto opened, open_journal(options_.path));
  auto next = std::make_shared<File>();
  next->descriptor = std::move(opened.first);
  next->is_regular = S_ISREG(opened.second.st_mode);
  MutexLock lock(mutex_);
  file_ = next;
  return next;
}

Result<std::shared_ptr<Journal::File>> Journal::file_with_room(std::int64_t unix_ns) {
  constexpr std::int64_t kLookEvery = 1'000'000;
  constexpr std::uint64_t kLargeBytes = std::uint64_t{1} << 20;
  std::shared_ptr<File> now = file();
  if (!now->is_regular) return now;
  const std::int64_t since = unix_ns - looked_unix_ns_.load(std::memory_order_relaxed);
  if (since >= 0 && since < kLookEvery && options_.bytes_max >= kLargeBytes) return now;
  looked_unix_ns_.store(unix_ns, std::memory_order_relaxed);
  struct stat status = {};
  if (::fstat(now->descriptor.get(), &status) != 0) return fail_errno(errno, "look at the journal " + options_.path);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (status.st_nlink > 0 && size < options_.bytes_max) return now;
  const bool has_headroom = status.st_nlink > 0 && size - std::min(size, options_.bytes_max) < kHeadroomBytes;
  if (is_rotating_.exchange(true)) {
    if (has_headroom) return now;
    return fail(Code::out_of_space, format("the journal {} is full, and is not renamed", options_.path));
  }
  auto next = next_file(*now);
  is_rotating_.store(false);
  return !next && has_headroom ? now : std::move(next);
}

bool Journal::lose(const Error& error) {
  lost_.fetch_add(1, std::memory_order_relaxed);
  if (!is_losing_.exchange(true)) {
    log_line(LogLevel::warning,
             format("{}; requests are answered on, and are not recorded until there is room again", error.message()));
  }
  return false;
}

Result<bool> Journal::record(const JournalEntry& entry) {
  if (mark_.is_inherited()) FRESHET_TRY(check_not_inherited(mark_, "the journal " + options_.path));
  FRESHET_TRY(check_label("a request's id", entry.request, kRequestBytesMax));
  const std::string line = journal_line(entry);
  const auto file = file_with_room(entry.served_unix_ns);
  if (!file) return lose(file.error());
  const int descriptor = (*file)->descriptor.get();
  ssize_t written = 0;
  do {
    written = ::write(descriptor, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) {
    if (is_losing_.load(std::memory_order_relaxed) && is_losing_.exchange(false)) {
      log_line(LogLevel::info, format("the journal {} takes lines again; {} were lost", options_.path, lost()));
    }
    return true;
  }
  const int reason = written < 0 ? errno : ENOSPC;
  if (written > 0 && (*file)->is_regular)
    take_back(descriptor, std::string_view(line).substr(0, static_cast<std::size_t>(written)));
  const tl::unexpected<Error> failed = fail_errno(reason, "write to the journal " + options_.path);
  return lose(failed.value());
}

}  // namespace freshet::serving
