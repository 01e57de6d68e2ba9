// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan/loss_table.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "bindings/cli/training/loss_json.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/number.h"
#include "predictor/timing.h"

namespace freshet::cli {
namespace {

constexpr std::size_t kLineMax = std::size_t{1} << 16;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  text = text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
  const bool is_quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return is_quoted ? text.substr(1, text.size() - 2) : text;
}

/// A comma between quotes is part of its field.
std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  std::size_t first = 0;
  bool is_quoted = false;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line[at] == '"') is_quoted = !is_quoted;
    if (line[at] != ',' || is_quoted) continue;
    fields.push_back(trimmed(line.substr(first, at - first)));
    first = at + 1;
  }
  fields.push_back(trimmed(line.substr(first)));
  return fields;
}

template <typename Number>
std::optional<Number> signed_number_in(std::string_view text) {
  return number_in<Number>(text.substr(text.starts_with('+') ? 1 : 0));
}

/// Whole numbers, also as 1e3 or 10.0.
std::optional<std::int64_t> step_from(std::string_view text) {
  if (const auto step = signed_number_in<std::int64_t>(text)) return step;
  constexpr double kExactMax = 9007199254740992.0;
  const auto value = signed_number_in<double>(text);
  if (!value || !(std::fabs(*value) <= kExactMax) || *value != std::trunc(*value)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

/// Takes a header and rows of a log, from wherever they come.
class Reader {
 public:
  Reader(const std::string& path, const LossColumnNames& wanted) : path_(path), wanted_(wanted) {}

  Result<LossTable> read() {
    std::ifstream file(path_, std::ios::binary);
    if (!file) return fail_errno(errno, format("open {}", shown(path_)));
    std::error_code error;
    if (std::filesystem::is_directory(path_, error)) return fail_errno(EISDIR, format("read {}", shown(path_)));
    // Opened once: a pipe gives its bytes once.
    constexpr std::string_view kBlanks = " \t\r\n";
    while (file && kBlanks.find(static_cast<char>(file.peek())) != kBlanks.npos) line_ += file.get() == '\n' ? 1 : 0;
    if (file.peek() == '{' || file.peek() == '[') return read_json(file);
    file.clear(file.rdstate() & ~std::ios::failbit);
    std::vector<char> buffer(kLineMax);
    while (file.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()))) {
      const auto length = static_cast<std::size_t>(file.gcount()) - (file.eof() ? 0 : 1);
      ++line_;
      FRESHET_TRY(take(std::string_view(buffer.data(), length)));
    }
    if (file.bad()) return fail_errno(errno, format("read {}", shown(path_)));
    if (!file.eof()) return wrong(format("longer than {} bytes", kLineMax), line_ + 1);
    if (width_ == 0) return fail(Code::invalid_argument, format("{}: no header; step,loss is expected", shown(path_)));
    return finished();
  }

 private:
  tl::unexpected<Error> wrong(std::string_view why, std::uint64_t line) const {
    return fail(Code::invalid_argument, format("{} {} {}: {}", shown(path_), unit_, line, why));
  }
  tl::unexpected<Error> wrong(std::string_view why) const { return wrong(why, line_); }

  Result<LossTable> read_json(std::istream& file) {
    unit_ = "record";
    FRESHET_ASSIGN(const LossRecords records, read_json_log(file, path_));
    line_ = 1;
    FRESHET_TRY(take_header({records.names.begin(), records.names.end()}));
    columns_.is_plain = false;
    std::vector<std::string_view> fields(records.names.size());
    for (const auto& row : records.rows) {
      std::ranges::fill(fields, std::string_view());
      for (const auto& [column, number] : row) fields[column] = number;
      FRESHET_TRY(take_row(fields));
      ++line_;
    }
    return finished();
  }

  Status take(std::string_view line) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (line_ == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
    if (line.starts_with('#')) return {};
    if (trimmed(line).empty()) {
      if (blank_line_ == 0) blank_line_ = line_;
      return {};
    }
    if (blank_line_ != 0 && width_ != 0) return wrong("empty, but rows follow", blank_line_);
    blank_line_ = 0;
    const std::vector<std::string_view> fields = fields_of(line);
    return width_ == 0 ? take_header(fields) : take_row(fields);
  }

  Status take_header(const std::vector<std::string_view>& names) {
    const Result<LossColumns> columns = find_loss_columns(names, wanted_);
    if (!columns) return wrong(columns.error().message());
    columns_ = *columns;
    width_ = names.size();
    step_name_ = names[columns_.step];
    loss_name_ = names[columns_.loss];
    eval_name_ = has_eval() ? names[columns_.eval_loss] : "";
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (i != columns_.step && i != columns_.loss && i != columns_.eval_loss) passed_over_.push_back(shown(names[i]));
    }
    return {};
  }

  bool has_eval() const { return columns_.eval_loss != LossColumns::kNone; }

  Status take_row(const std::vector<std::string_view>& fields) {
    if (fields.size() != width_) return wrong(format("{} fields, the header has {}", fields.size(), width_));
    if (table_.rows() == ReplayClock::kRowsMax) return wrong(format("more than {} rows", ReplayClock::kRowsMax));
    return columns_.is_plain ? take_step_row(fields) : take_logged_row(fields);
  }

  /// A row of a file that has a row per step.
  Status take_step_row(const std::vector<std::string_view>& fields) {
    FRESHET_ASSIGN(const std::int64_t step, step_in(fields));
    FRESHET_ASSIGN(const std::optional<double> given_loss, number_at(fields, columns_.loss, "loss"));
    const double loss = given_loss.value_or(kNoLoss);
    double cost = loss;
    if (has_eval()) {
      FRESHET_ASSIGN(const std::optional<double> given, number_at(fields, columns_.eval_loss, "eval_loss"));
      if (!given) return wrong("eval_loss is empty: with that column every row needs one");
      cost = *given;
    }
    if (!std::isfinite(cost)) return not_finite(fields, has_eval() ? columns_.eval_loss : columns_.loss);
    add(step, loss, cost);
    return {};
  }

  /// A row of a trainer's log: it may have either loss, or none.
  Status take_logged_row(const std::vector<std::string_view>& fields) {
    FRESHET_ASSIGN(const std::optional<double> loss, number_at(fields, columns_.loss, loss_name_));
    std::optional<double> eval_loss;
    if (has_eval()) {
      FRESHET_ASSIGN(eval_loss, number_at(fields, columns_.eval_loss, eval_name_));
    }
    if (!loss && !eval_loss) {
      ++without_loss_;
      return {};
    }
    FRESHET_ASSIGN(const std::int64_t step, step_in(fields));
    if (eval_loss && !std::isfinite(*eval_loss)) return not_finite(fields, columns_.eval_loss);
    if (eval_loss) measured_[step] = *eval_loss;
    if (!loss) return {};
    if (!has_eval() && !std::isfinite(*loss)) return not_finite(fields, columns_.loss);
    add(step, *loss, kNoLoss);
    return {};
  }

  Result<std::int64_t> step_in(const std::vector<std::string_view>& fields) const {
    const std::optional<std::int64_t> step = step_from(fields[columns_.step]);
    if (!step) return wrong(format("{} {}: not a whole number", shown(step_name_), shown(fields[columns_.step])));
    return *step;
  }

  /// Nothing for an empty field, or for Keras' "NA" of a loss that was not measured.
  Result<std::optional<double>> number_at(const std::vector<std::string_view>& fields, std::size_t column,
                                          std::string_view name) const {
    const std::string_view field = fields[column];
    if (field.empty() || (!columns_.is_plain && field == "NA")) return std::optional<double>();
    const std::optional<double> number = signed_number_in<double>(field);
    if (!number) return wrong(format("{} {}: not a number", shown(name), shown(field)));
    return number;
  }

  Status not_finite(const std::vector<std::string_view>& fields, std::size_t column) const {
    return wrong(format("{} {}: not finite", column == columns_.loss ? shown(loss_name_) : shown(eval_name_),
                        shown(fields[column])));
  }

  void add(std::int64_t step, double loss, double cost) {
    if (std::isinf(loss)) {
      ++infinite_;
      loss = kNoLoss;
    }
    table_.steps.push_back(step);
    table_.losses.push_back(loss);
    table_.costs.push_back(cost);
  }

  Result<LossTable> finished() {
    table_.has_eval_losses = columns_.is_plain ? has_eval() : !measured_.empty();
    if (table_.steps.empty() && measured_.empty()) {
      return fail(Code::invalid_argument,
                  format("{}: no rows{}", shown(path_), without_loss_ > 0 ? " with a loss" : ""));
    }
    if (!columns_.is_plain) {
      FRESHET_TRY(finish_log());
    } else {
      for (const std::string& name : passed_over_) table_.notes.push_back(format("column {} is passed over", name));
    }
    if (infinite_ > 0) table_.notes.push_back(format("{} infinite losses are taken as missing", infinite_));
    return std::move(table_);
  }

  /// Gives each row the cost of its step, and notes what each column was taken for.
  Status finish_log() {
    if (table_.steps.empty()) {
      for (const auto& [step, loss] : measured_) add(step, kNoLoss, loss);
    }
    for (std::size_t row = 0; row < table_.steps.size(); ++row) {
      double& cost = table_.costs[row];
      cost = measured_.empty() ? table_.losses[row] : held_out_at(table_.steps[row]);
      if (!std::isfinite(cost)) {
        return fail(Code::invalid_argument,
                    format("{}: the {} of step {} is not finite", shown(path_), shown(loss_name_), table_.steps[row]));
      }
    }
    std::string note = format("step is {}, loss is {}", shown(step_name_), shown(loss_name_));
    if (table_.has_eval_losses) {
      note += format(", eval_loss is {} ({} measured, the rest in between)", shown(eval_name_), measured_.size());
    }
    if (!passed_over_.empty()) note += format("; {} other columns are passed over", passed_over_.size());
    if (without_loss_ > 0) note += format("; {} rows have no loss", without_loss_);
    const std::string apart = row_text();
    table_.notes.push_back(note + (apart.empty() ? "" : "; " + apart + ": --step-ms is the time of one row"));
    return {};
  }

  /// Between two measurements, on the straight line; before the first and after the last, these.
  double held_out_at(std::int64_t step) const {
    const auto after = measured_.lower_bound(step);
    if (after == measured_.end()) return std::prev(after)->second;
    if (after->first == step || after == measured_.begin()) return after->second;
    const auto before = std::prev(after);
    const double share = (static_cast<double>(step) - static_cast<double>(before->first)) /
                         (static_cast<double>(after->first) - static_cast<double>(before->first));
    return before->second + share * (after->second - before->second);
  }

  /// What a row is, where it is not a step.
  std::string row_text() const {
    if (step_name_ == "epoch") return "a row is an epoch";
    std::vector<double> distances;
    for (std::size_t i = 1; i < table_.steps.size(); ++i) {
      distances.push_back(static_cast<double>(table_.steps[i]) - static_cast<double>(table_.steps[i - 1]));
    }
    if (distances.empty()) return "";
    const auto middle = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
    std::nth_element(distances.begin(), middle, distances.end());
    return *middle > 1 ? format("rows are {} steps apart", *middle) : "";
  }

  static constexpr double kNoLoss = std::numeric_limits<double>::quiet_NaN();

  const std::string& path_;
  const LossColumnNames& wanted_;
  LossTable table_;
  std::string_view unit_ = "line";
  std::uint64_t line_ = 0;
  std::uint64_t blank_line_ = 0;
  std::uint64_t infinite_ = 0;
  std::uint64_t without_loss_ = 0;
  std::size_t width_ = 0;
  LossColumns columns_;
  std::string step_name_;
  std::string loss_name_;
  std::string eval_name_;
  std::vector<std::string> passed_over_;
  std::map<std::int64_t, double> measured_;  ///< Of a log: held-out losses by step.
};

}  // namespace

std::int64_t LossTable::step_of(std::int64_t row) const {
  if (row <= rows()) return steps[static_cast<std::size_t>(row - 1)];
  const std::int64_t distance = rows() > 1 ? steps.back() - steps[steps.size() - 2] : 1;
  std::int64_t step = 0;
  const bool too_large = __builtin_mul_overflow(row - rows(), std::max<std::int64_t>(1, distance), &step) ||
                         __builtin_add_overflow(step, steps.back(), &step);
  return too_large ? std::numeric_limits<std::int64_t>::max() : step;
}

Result<LossTable> read_loss_table(const std::string& path, const LossColumnNames& wanted) {
  Reader reader(path, wanted);
  return reader.read();
}

bool is_noisy(std::span<const double> costs) {
  constexpr std::size_t kFewest = 20;
  constexpr double kShare = 0.01;
  if (costs.size() < kFewest) return false;
  const auto median = [](std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  // A trend is straight from row to row, and a straight line has no second differences.
  std::vector<double> bends;
  for (std::size_t i = 2; i < costs.size(); ++i) {
    bends.push_back(std::fabs(costs[i] - 2 * costs[i - 1] + costs[i - 2]));
  }
  const double noise = 1.4826 * median(std::move(bends)) / std::sqrt(6.0);
  const std::size_t tenth = costs.size() / 10;
  const auto first = costs.first(tenth);
  const auto last = costs.last(tenth);
  return noise > kShare * std::fabs(median({first.begin(), first.end()}) - median({last.begin(), last.end()}));
}

}  // namespace freshet::cli
