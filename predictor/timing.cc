// SPDX-License-Identifier: Apache-2.0
#include "predictor/timing.h"

#include <string>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/number.h"

namespace freshet {
namespace {

/// Sums of two times stay below 2^63.
constexpr std::int64_t kTimeMax = std::int64_t{1} << 61;

/// A number as written: 0.DIGITS times ten to the power of `point`, without leading zeros.
struct Decimal {
  bool negative = false;
  std::string digits;
  std::int64_t point = 0;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// False when `text` goes on after the number, or there is none.
bool read_decimal(std::string_view text, Decimal& number) {
  std::size_t at = 0;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) number.negative = text[at++] == '-';
  bool any = false;
  bool fraction = false;
  for (; at < text.size() && (is_digit(text[at]) || (text[at] == '.' && !fraction)); ++at) {
    if (text[at] == '.') {
      fraction = true;
      continue;
    }
    any = true;
    if (number.digits.empty() && text[at] == '0') {
      number.point -= fraction ? 1 : 0;
      continue;
    }
    number.digits += text[at];
    number.point += fraction ? 0 : 1;
  }
  if (!any) return false;
  if (at == text.size()) return true;
  if (text[at] != 'e' && text[at] != 'E') return false;
  ++at;
  if (at < text.size() && text[at] == '+') ++at;
  const auto exponent = number_in<std::int32_t>(text.substr(at));
  number.point += exponent.value_or(0);
  return exponent.has_value();
}

/// What comes after the first `point` digits, against a half: below 0, 0, or above.
int against_half(const Decimal& number) {
  if (number.point < 0) return -1;
  const std::string_view rest = std::string_view(number.digits).substr(static_cast<std::size_t>(number.point));
  if (rest.empty() || rest.front() < '5') return -1;
  return rest.front() > '5' || rest.find_first_not_of('0', 1) != rest.npos ? 1 : 0;
}

/// The whole number nearest to it; false when it has more than 18 digits.
bool round_to_whole(Decimal number, std::int64_t& whole) {
  constexpr std::int64_t kDigitsMax = 18;
  whole = 0;
  if (number.digits.empty()) return true;
  if (number.point > kDigitsMax) return false;
  const auto length = static_cast<std::int64_t>(number.digits.size());
  if (length < number.point) number.digits.append(static_cast<std::size_t>(number.point - length), '0');
  for (std::int64_t i = 0; i < number.point; ++i)
    whole = whole * 10 + (number.digits[static_cast<std::size_t>(i)] - '0');
  const int rest = against_half(number);
  if (rest > 0 || (rest == 0 && whole % 2 == 1)) ++whole;
  if (number.negative) whole = -whole;
  return true;
}

Status out_of_range(std::string_view what, std::int64_t value, std::string_view rule) {
  return fail(Code::invalid_argument, format("{} {}: {}", what, value, rule));
}

Status check_times(const Timing& timing) {
  if (timing.step_ns <= 0) return out_of_range("step time in ns", timing.step_ns, "must be above 0");
  if (timing.stall_ns < 0) return out_of_range("stall time in ns", timing.stall_ns, "must not be negative");
  if (timing.delivery_ns < 0) return out_of_range("delivery time in ns", timing.delivery_ns, "must not be negative");
  if (timing.infer_ns <= 0) return out_of_range("time between inferences in ns", timing.infer_ns, "must be above 0");
  return {};
}

Status check_counts(const Horizon& horizon) {
  if (horizon.rows > ReplayClock::kRowsMax) {
    return out_of_range("rows", horizon.rows, format("at most {} are taken", ReplayClock::kRowsMax));
  }
  if (horizon.warmup < 1) return out_of_range("warm-up", horizon.warmup, "at least one row is needed");
  if (horizon.warmup >= horizon.rows) {
    return out_of_range("warm-up", horizon.warmup, format("must end before the last row, {}", horizon.rows));
  }
  if (horizon.requests < 1) return out_of_range("inferences", horizon.requests, "at least one is needed");
  if (horizon.requests > ReplayClock::kRequestsMax) {
    return out_of_range("inferences", horizon.requests, format("at most {} are taken", ReplayClock::kRequestsMax));
  }
  return {};
}

}  // namespace

Result<std::int64_t> nanoseconds_of_ms(std::string_view text) {
  Decimal number;
  if (!read_decimal(text, number)) {
    return fail(Code::invalid_argument, format("{}: not a number of milliseconds", shown(text)));
  }
  constexpr int kDigitsFromMsToNs = 6;
  number.point += kDigitsFromMsToNs;
  std::int64_t whole = 0;
  if (!round_to_whole(std::move(number), whole)) {
    return fail(Code::invalid_argument, format("{} ms: longer than 31 years", shown(text)));
  }
  return whole;
}

double ms_of_nanoseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

Result<ReplayClock> ReplayClock::make(const Timing& timing, const Horizon& horizon) {
  FRESHET_TRY(check_times(timing));
  FRESHET_TRY(check_counts(horizon));
  const __int128 steps = horizon.rows - horizon.warmup;
  const __int128 last_publish = steps * (static_cast<__int128>(timing.step_ns) + timing.stall_ns) + timing.delivery_ns;
  const __int128 last_request = static_cast<__int128>(horizon.requests) * timing.infer_ns;
  if (last_publish > kTimeMax) {
    return fail(Code::invalid_argument, format("{} steps with publishes at such times last longer than 73 years",
                                               horizon.rows - horizon.warmup));
  }
  if (last_request > kTimeMax) {
    return fail(Code::invalid_argument, format("{} inferences come over longer than 73 years", horizon.requests));
  }
  return ReplayClock(timing, horizon);
}

}  // namespace freshet
