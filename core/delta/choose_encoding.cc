#include "core/delta/choose_encoding.h"

#include <algorithm>
#include <cmath>

namespace freshet {
namespace {

constexpr double kUnknownLink = 125e6;
constexpr double kFrameBytes = 160;  ///< Head, seal, a block's head.

/// Bytes of a difference after compression. Casts to 16 bits change by one unit in the last place as a rule; wider
/// elements change in nearly all bits below their largest change.
double difference_bytes(DType dtype) {
  const auto width = static_cast<double>(size_of(dtype));
  if (dtype == DType::bf16) return 0.35;
  return width == 1 ? 0.5 : std::max(1.0, width - 1);
}

/// Bytes that tell which of the elements changed, for each that did.
double place_bytes(double elements, double changed) {
  const double p = std::clamp(changed / elements, 1e-12, 1 - 1e-12);
  return -(std::log2(p) + (1 - p) / p * std::log2(1 - p)) / 8;
}

}  // namespace

std::string_view name_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::skip: return "skip";
    case Encoding::delta: return "delta";
    case Encoding::dense: return "dense";
  }
  return "unknown";
}

double expected_delta_bytes(const EncodingQuestion& question) {
  const auto changed = static_cast<double>(question.changed_elements);
  if (question.bytes_per_change > 0) return kFrameBytes + changed * question.bytes_per_change;
  const double elements = static_cast<double>(question.bytes) / static_cast<double>(size_of(question.dtype));
  return kFrameBytes + changed * (place_bytes(elements, changed) + difference_bytes(question.dtype));
}

Encoding choose_encoding(const EncodingQuestion& question) {
  if (question.changed_elements == 0 || question.bytes == 0) return Encoding::skip;
  const auto bytes = static_cast<double>(question.bytes);
  const auto changed = static_cast<double>(question.changed_elements);
  const double delta_bytes = expected_delta_bytes(question);
  if (!(delta_bytes < bytes)) return Encoding::dense;
  const double link = question.link_bytes_per_second > 0 ? question.link_bytes_per_second : kUnknownLink;
  const EncodingCosts& costs = question.costs;
  const double delta_ns = bytes * costs.scan_ns_per_byte +
                          changed * (costs.encode_ns_per_change + costs.apply_ns_per_change) + delta_bytes / link * 1e9;
  const double dense_ns = bytes * costs.dense_ns_per_byte + bytes / link * 1e9;
  return delta_ns < dense_ns ? Encoding::delta : Encoding::dense;
}

}  // namespace freshet
