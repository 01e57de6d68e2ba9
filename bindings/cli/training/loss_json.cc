// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/training/loss_json.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/json_document.h"

namespace freshet::cli {
namespace {

constexpr std::size_t kLogBytesMax = std::size_t{64} << 20;
/// Of a log that a server reads for two numbers.
constexpr std::uint64_t kSmallLogBytesMax = std::uint64_t{16} << 20;
constexpr std::size_t kColumnsMax = 4096;
constexpr std::string_view kBlank = " \t\r\n";

/// Python writes numbers that JSON has no word for as NaN and Infinity; here they become texts.
std::string with_quoted_nan(std::string_view json) {
  std::string quoted;
  bool is_in_text = false;
  for (std::size_t at = 0; at < json.size(); ++at) {
    if (is_in_text && json[at] == '\\' && at + 1 < json.size()) {
      quoted += json.substr(at++, 2);
      continue;
    }
    if (json[at] == '"') is_in_text = !is_in_text;
    const std::string_view rest = json.substr(at);
    const std::string_view word = is_in_text                      ? ""
                                  : rest.starts_with("NaN")       ? "NaN"
                                  : rest.starts_with("-Infinity") ? "-Infinity"
                                  : rest.starts_with("Infinity")  ? "Infinity"
                                                                  : "";
    if (word.empty()) {
      quoted += json[at];
    } else {
      quoted += format("\"{}\"", word);
      at += word.size() - 1;
    }
  }
  return quoted;
}

tl::unexpected<Error> no_log(const std::string& why) { return fail(Code::invalid_argument, why); }

Result<std::vector<JsonDocument>> records_of_lines(std::string_view text) {
  std::vector<JsonDocument> records;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (one.find_first_not_of(kBlank) == one.npos) continue;
    Result<JsonDocument> record = parse_json(one);
    if (!record) return no_log(format("line {}: {}", line, record.error().message()));
    records.push_back(*std::move(record));
  }
  return records;
}

Result<std::vector<JsonDocument>> records_in(std::string_view text) {
  const std::size_t first_end = std::min(text.find('\n'), text.size());
  const bool has_more = text.find_first_not_of(kBlank, first_end) != text.npos;
  if (has_more && parse_json(text.substr(0, first_end))) return records_of_lines(text);
  FRESHET_ASSIGN(JsonDocument document, parse_json(text));
  if (document.is_object() && document.contains("log_history")) document = JsonDocument(document["log_history"]);
  if (document.is_object()) return std::vector<JsonDocument>{std::move(document)};
  if (!document.is_array()) return no_log("neither a trainer_state.json with its log_history nor a list of records");
  return std::vector<JsonDocument>(document.begin(), document.end());
}

/// A number as text; empty for everything else.
std::string number_text(const JsonDocument& value) {
  if (value.is_number()) return value.dump();
  const std::string word = value.is_string() ? value.get<std::string>() : "";
  return word == "NaN" || word == "Infinity" || word == "-Infinity" ? word : "";
}

Result<LossRecords> table_of(const std::vector<JsonDocument>& records) {
  LossRecords table;
  std::map<std::string, std::uint32_t> columns;
  for (const JsonDocument& record : records) {
    if (!record.is_object()) return no_log(format("record {} is no object", table.rows.size() + 1));
    auto& row = table.rows.emplace_back();
    for (const auto& [name, value] : record.items()) {
      std::string number = number_text(value);
      if (number.empty()) continue;
      const auto [column, is_new] = columns.emplace(name, static_cast<std::uint32_t>(table.names.size()));
      if (is_new) table.names.push_back(name);
      if (table.names.size() > kColumnsMax) return no_log(format("more than {} members are numbers", kColumnsMax));
      row.emplace_back(column->second, std::move(number));
    }
  }
  return table;
}

}  // namespace

Result<LossRecords> read_json_log(std::istream& file, const std::string& path) {
  const auto named = [&](const Error& error) {
    return fail(error.code() == Code::corrupt ? Code::invalid_argument : error.code(),
                format("{}: {}", shown(path), error.message()));
  };
  // A pipe does not tell its length.
  std::string text;
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  for (std::size_t end = 0; text.size() <= kLogBytesMax; end = text.size()) {
    text.resize(end + kPiece);
    file.read(text.data() + end, kPiece);
    text.resize(end + static_cast<std::size_t>(file.gcount()));
    if (!file) break;
  }
  if (file.bad()) return fail_errno(EIO, format("read {}", shown(path)));
  if (text.size() > kLogBytesMax) {
    return named(Error(Code::invalid_argument, format("longer than {} bytes", kLogBytesMax)));
  }
  const auto records = records_in(with_quoted_nan(text));
  if (!records) return named(records.error());
  Result<LossRecords> table = table_of(*records);
  if (!table) return named(table.error());
  return table;
}

Result<LossRecords> read_small_json_log(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_errno(errno, format("open {}", shown(path)));
  std::error_code error;
  if (std::filesystem::file_size(path, error) > kSmallLogBytesMax && !error) {
    return fail(Code::invalid_argument, format("{}: longer than {} bytes", shown(path), kSmallLogBytesMax));
  }
  return read_json_log(file, path);
}

}  // namespace freshet::cli
