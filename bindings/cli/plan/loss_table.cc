// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan/loss_table.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/number.h"
#include "predictor/timing.h"

namespace freshet::cli {
namespace {

constexpr std::size_t kLineMax = std::size_t{1} << 16;
constexpr std::size_t kMissing = std::numeric_limits<std::size_t>::max();

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

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Result<LossTable> read() {
    std::ifstream file(path_, std::ios::binary);
    if (!file) return fail_errno(errno, format("open {}", shown(path_)));
    std::error_code error;
    if (std::filesystem::is_directory(path_, error)) return fail_errno(EISDIR, format("read {}", shown(path_)));
    std::vector<char> buffer(kLineMax);
    while (file.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()))) {
      const auto length = static_cast<std::size_t>(file.gcount()) - (file.eof() ? 0 : 1);
      ++line_;
      FRESHET_TRY(take(std::string_view(buffer.data(), length)));
    }
    if (file.bad()) return fail_errno(errno, format("read {}", shown(path_)));
    if (!file.eof()) return wrong(format("longer than {} bytes", kLineMax), line_ + 1);
    if (width_ == 0) return fail(Code::invalid_argument, format("{}: no header; step,loss is expected", shown(path_)));
    if (table_.steps.empty()) return fail(Code::invalid_argument, format("{}: no rows", shown(path_)));
    tell_infinite();
    return std::move(table_);
  }

 private:
  tl::unexpected<Error> wrong(std::string_view why, std::uint64_t line) const {
    return fail(Code::invalid_argument, format("{} line {}: {}", shown(path_), line, why));
  }
  tl::unexpected<Error> wrong(std::string_view why) const { return wrong(why, line_); }

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
    for (std::size_t i = 0; i < names.size(); ++i) {
      std::size_t* column = names[i] == "step"        ? &step_
                            : names[i] == "loss"      ? &loss_
                            : names[i] == "eval_loss" ? &eval_loss_
                                                      : nullptr;
      if (column == nullptr) {
        table_.notes.push_back(format("column {} is passed over", shown(names[i])));
      } else if (*column != kMissing) {
        return wrong(format("column {} is there twice", names[i]));
      } else {
        *column = i;
      }
    }
    if (step_ == kMissing || loss_ == kMissing) {
      return wrong(format("the header has no column {}; step,loss is expected", step_ == kMissing ? "step" : "loss"));
    }
    width_ = names.size();
    table_.has_eval_losses = eval_loss_ != kMissing;
    return {};
  }

  Status take_row(const std::vector<std::string_view>& fields) {
    if (fields.size() != width_) return wrong(format("{} fields, the header has {}", fields.size(), width_));
    if (table_.rows() == ReplayClock::kRowsMax) return wrong(format("more than {} rows", ReplayClock::kRowsMax));
    const std::optional<std::int64_t> step = step_from(fields[step_]);
    if (!step) return wrong(format("step {}: not a whole number", shown(fields[step_])));
    const auto given_loss = signed_number_in<double>(fields[loss_]);
    if (!fields[loss_].empty() && !given_loss) return wrong(format("loss {}: not a number", shown(fields[loss_])));
    double loss = given_loss.value_or(std::numeric_limits<double>::quiet_NaN());
    const bool has_eval = eval_loss_ != kMissing;
    const auto given_cost = has_eval ? signed_number_in<double>(fields[eval_loss_]) : loss;
    if (!given_cost) {
      if (fields[eval_loss_].empty()) return wrong("eval_loss is empty: with that column every row needs one");
      return wrong(format("eval_loss {}: not a number", shown(fields[eval_loss_])));
    }
    const double cost = *given_cost;
    if (!std::isfinite(cost)) {
      return wrong(format("{} {}: not finite", has_eval ? "eval_loss" : "loss",
                          has_eval ? shown(fields[eval_loss_]) : shown(fields[loss_])));
    }
    if (std::isinf(loss)) {
      ++infinite_;
      loss = std::numeric_limits<double>::quiet_NaN();
    }
    table_.steps.push_back(*step);
    table_.losses.push_back(loss);
    table_.costs.push_back(cost);
    return {};
  }

  void tell_infinite() {
    if (infinite_ > 0) table_.notes.push_back(format("{} infinite losses are taken as missing", infinite_));
  }

  const std::string& path_;
  LossTable table_;
  std::uint64_t line_ = 0;
  std::uint64_t blank_line_ = 0;
  std::uint64_t infinite_ = 0;
  std::size_t width_ = 0;
  std::size_t step_ = kMissing;
  std::size_t loss_ = kMissing;
  std::size_t eval_loss_ = kMissing;
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

Result<LossTable> read_loss_table(const std::string& path) {
  Reader reader(path);
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
