// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/update_latency/subject.h"

#include <cstring>
#include <sstream>

#include "core/base/format.h"

namespace freshet::benchmarks {

Status check_stamp(const Model& model, std::span<const std::uint32_t> changed, std::uint64_t seen) {
  if (changed.empty()) return {};
  std::uint64_t written = 0;
  std::memcpy(&written, model.tensor(changed.back()).data(), sizeof(written));
  if (seen == written) return {};
  return fail(Code::corrupt, format("the reader saw {:x}, the writer wrote {:x}", seen, written));
}

std::string join(std::span<const std::uint32_t> numbers) {
  std::string text;
  for (const std::uint32_t number : numbers) text += format("{}{}", text.empty() ? "" : " ", number);
  return text;
}

std::vector<std::uint32_t> parse_numbers(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t number = 0; stream >> number;) numbers.push_back(number);
  return numbers;
}

Result<double> milliseconds_of(const std::string& answer, std::int64_t start_ns, const Model& model,
                               std::span<const std::uint32_t> changed) {
  std::istringstream stream(answer);
  std::int64_t end_ns = 0;
  std::uint64_t stamp = 0;
  if (!(stream >> end_ns >> stamp)) return fail(Code::corrupt, format("the reader answered '{}'", answer));
  FRESHET_TRY(check_stamp(model, changed, stamp));
  return static_cast<double>(end_ns - start_ns) / 1e6;
}

}  // namespace freshet::benchmarks
