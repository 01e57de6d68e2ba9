// SPDX-License-Identifier: Apache-2.0
#include "bindings/serving/journal_search.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "bindings/serving/journal.h"
#include "core/base/file_io.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/json_document.h"

namespace freshet::serving {
namespace {

constexpr std::string_view kLineBegin = R"({"request":")";
constexpr std::size_t kSearchChunkBytes = std::size_t{256} << 10;

/// A whole number from 0, of an untrusted object.
template <typename Number>
bool take_count(const JsonDocument& object, const char* key, Number& number) {
  const auto member = object.find(key);
  if (member == object.end() || !member->is_number_unsigned()) return false;
  const auto value = member->get<std::uint64_t>();
  if (value > static_cast<std::uint64_t>(std::numeric_limits<Number>::max())) return false;
  number = static_cast<Number>(value);
  return true;
}

bool take_metrics(const JsonDocument& object, Metrics& metrics) {
  const auto member = object.find("metrics");
  if (member == object.end() || !member->is_object()) return false;
  for (const auto& [name, value] : member->items()) {
    if (!value.is_number() && !value.is_null()) return false;
    metrics.emplace_back(name, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return true;
}

/// Nothing for a line that no journal writes.
std::optional<JournalAnswer> answer_of(std::string_view line) {
  const Result<JsonDocument> parsed = parse_json(line);
  if (!parsed || !parsed->is_object()) return std::nullopt;
  JournalAnswer answer;
  const auto model = parsed->find("model");
  if (model == parsed->end() || !model->is_string()) return std::nullopt;
  answer.version.model = model->get<std::string>();
  if (!check_model_name(answer.version.model)) return std::nullopt;
  if (!take_count(*parsed, "version", answer.version.number) || answer.version.number == 0 ||
      !take_count(*parsed, "served_unix_ns", answer.served_unix_ns) ||
      !take_count(*parsed, "versions_behind", answer.versions_behind) || !take_count(*parsed, "step", answer.step) ||
      !take_metrics(*parsed, answer.metrics)) {
    return std::nullopt;
  }
  (void)take_count(*parsed, "left_out", answer.left_out);
  const auto schedule = parsed->find("schedule");
  if (schedule != parsed->end() && schedule->is_string()) answer.schedule = schedule->get<std::string>();
  return answer;
}

/// Takes a journal's bytes as they come, and keeps one line of them.
class Lines {
 public:
  Lines(JournalSearch& found, std::string_view request)
      : found_(found), begin_(format(R"({}{}",)", kLineBegin, json_escaped(request))) {}

  void take(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      const std::string_view part = bytes.substr(0, end);
      // No more is kept of a line without an end.
      if (line_.size() <= kLineBytesMax) line_.append(part.substr(0, kLineBytesMax + 1 - line_.size()));
      if (end == std::string_view::npos) return;
      judge(line_);
      line_.clear();
      bytes.remove_prefix(end + 1);
    }
  }

  /// What has no line break was cut.
  void end_file() {
    if (!line_.empty()) ++found_.damaged_lines;
    line_.clear();
  }

 private:
  void judge(std::string_view line) {
    if (line.empty()) return;
    // After a cut line stands the next one, without a break between them: quotes inside of strings are escaped, so a
    // line's begin stands nowhere else.
    const std::size_t begin = line.rfind(kLineBegin);
    const bool is_whole = begin != std::string_view::npos && line.ends_with('}') && line.size() <= kLineBytesMax;
    if (!is_whole || begin > 0) ++found_.damaged_lines;
    if (!is_whole) return;
    line.remove_prefix(begin);
    if (!line.starts_with(begin_)) {
      ++found_.lines;
      return;
    }
    std::optional<JournalAnswer> answer = answer_of(line);
    if (!answer) {
      ++found_.damaged_lines;
      return;
    }
    ++found_.lines;
    ++found_.answers;
    found_.newest = std::move(answer);
  }

  JournalSearch& found_;
  const std::string begin_;
  std::string line_;
};

/// PATH first. A file that is renamed while the others are opened is found twice, and kept once. A number may have no
/// file: a journal renames one file after another, may be killed between two of them, and files are archived.
Result<std::vector<OpenedFile>> open_files(const std::string& path) {
  std::vector<OpenedFile> files;
  for (std::size_t age = 0; age < kJournalFilesMax; ++age) {
    const std::string name = age == 0 ? path : format("{}.{}", path, age);
    Result<OpenedFile> opened = open_regular(name);
    if (!opened && opened.error().code() == Code::not_found) continue;
    if (!opened) return fail(std::move(opened).error().with_context("the journal"));
    const bool is_known = std::ranges::any_of(files, [&](const OpenedFile& file) {
      return file.status.st_dev == opened->status.st_dev && file.status.st_ino == opened->status.st_ino;
    });
    if (!is_known) files.push_back(*std::move(opened));
  }
  if (files.empty()) return fail(Code::not_found, format("there is no journal {}", path));
  return files;
}

}  // namespace

Result<JournalSearch> search_journal(const std::string& path, std::string_view request) {
  FRESHET_ASSIGN(std::vector<OpenedFile> files, open_files(path));
  JournalSearch found;
  Lines lines(found, request);
  std::vector<std::byte> chunk(kSearchChunkBytes);
  std::ranges::reverse(files);
  for (const OpenedFile& file : files) {
    // Whatever is appended meanwhile is not read: a busy server's journal would have no end.
    const auto size = static_cast<std::uint64_t>(file.status.st_size);
    for (std::uint64_t offset = 0; offset < size;) {
      const std::span<std::byte> wanted(chunk.data(), std::min<std::uint64_t>(chunk.size(), size - offset));
      FRESHET_ASSIGN(const std::size_t read, read_up_to(file.descriptor.get(), wanted, offset, path));
      if (read == 0) break;
      lines.take({reinterpret_cast<const char*>(chunk.data()), read});
      offset += read;
    }
    lines.end_file();
  }
  return found;
}

}  // namespace freshet::serving
