// SPDX-License-Identifier: Apache-2.0
#include "core/delta/choose_encoding.h"

#include <algorithm>
#include <cmath>

#include "core/delta/element_delta.h"

namespace freshet {
namespace {

constexpr double kUnknownLink = 125e6;
/// A delta that saves less than this share is not worth the processors' time on any link.
constexpr double kSavingMin = 0.1;
constexpr std::uint64_t kSampledShare = 128;
constexpr std::uint64_t kSampledBytesMin = std::uint64_t{16} << 10;
/// Of a small tensor: to count all changes of one that changed everywhere takes several times as long as to send it.
constexpr std::uint64_t kSampledShareOfSmall = 8;
constexpr std::uint64_t kSampledBytesMax = std::uint64_t{1} << 20;
constexpr double kFrameBytes = 160;  ///< Head, seal, a block's head.

/// Bytes of a difference after compression. Casts to 16 bits change by one unit in the last place as a rule; wider
/// elements change in nearly all bits below their largest change.
double difference_bytes(DType dtype) {
  const auto width = static_cast<double>(word_bytes_of(dtype));
  if (dtype == DType::bf16) return 0.35;
  return width == 1 ? 0.5 : std::max(1.0, width - 1);
}

/// Bytes that tell which of the elements changed, for each that did.
double place_bytes(double elements, double changed) {
  const double p = std::clamp(changed / elements, 1e-12, 1 - 1e-12);
  return -(std::log2(p) + (1 - p) / p * std::log2(1 - p)) / 8;
}

}  // namespace

double expected_delta_bytes(const EncodingQuestion& question) {
  const auto changed = static_cast<double>(question.changed_elements);
  if (question.bytes_per_change > 0) return kFrameBytes + changed * question.bytes_per_change;
  const double elements = static_cast<double>(question.bytes) / static_cast<double>(word_bytes_of(question.dtype));
  return kFrameBytes + changed * (place_bytes(elements, changed) + difference_bytes(question.dtype));
}

EncodingQuestion sampled_question(DType dtype, Bytes base, Bytes target, double link_bytes_per_second,
                                  const EncodingCosts& costs) {
  const std::uint64_t least = std::min(kSampledBytesMin, base.size() / kSampledShareOfSmall);
  const std::uint64_t read = std::clamp(base.size() / kSampledShare, least, kSampledBytesMax);
  return {.dtype = dtype,
          .bytes = base.size(),
          .changed_elements = std::max<std::uint64_t>(1, estimate_changed_elements(dtype, base, target, read)),
          .link_bytes_per_second = link_bytes_per_second,
          .costs = costs};
}

double expected_encode_ns(const EncodingQuestion& question) {
  return static_cast<double>(question.bytes) * question.costs.scan_ns_per_byte +
         static_cast<double>(question.changed_elements) * question.costs.encode_ns_per_change;
}

std::uint64_t longest_delta(const EncodingQuestion& question) {
  const auto bytes = static_cast<double>(question.bytes);
  const EncodingCosts& costs = question.costs;
  const double link = question.link_bytes_per_second > 0 ? question.link_bytes_per_second : kUnknownLink;
  const double work_ns =
      expected_encode_ns(question) + static_cast<double>(question.changed_elements) * costs.apply_ns_per_change;
  // work + delta / link < dense + bytes / link
  const double most = bytes + (bytes * costs.dense_ns_per_byte - work_ns) * link / 1e9;
  return static_cast<std::uint64_t>(std::clamp(most, 0.0, bytes * (1 - kSavingMin)));
}

Encoding choose_encoding(const EncodingQuestion& question) {
  if (question.changed_elements == 0 || question.bytes == 0) return Encoding::skip;
  return expected_delta_bytes(question) <= static_cast<double>(longest_delta(question)) ? Encoding::delta
                                                                                        : Encoding::dense;
}

}  // namespace freshet
