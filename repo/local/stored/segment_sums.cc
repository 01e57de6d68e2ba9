// SPDX-License-Identifier: Apache-2.0
/// How many segments there are, and their bytes: read from their records, or from a line that the last owner kept.

#include <array>

#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/local/stored/segments.h"

namespace freshet {
namespace {

// The segments' sums as one line: the state of the records that they are of, how many, their bytes, and a digest of it.
constexpr std::string_view kSumsName = "sums";
constexpr std::uint64_t kSumsBytesMax = 4096;

std::string encode_sums(const std::string& state, const StoredSegments::Sums& sums) {
  if (state.empty()) return {};
  const std::string line = format("{} {} {}", state, sums.count, sums.bytes);
  return format("{} {}\n", line, to_hex(plain_xxh3_of(bytes_of(line.data(), line.size()))));
}

// Nothing unless they are those of this state.
std::optional<StoredSegments::Sums> decode_sums(const std::optional<std::string>& text, const std::string& state) {
  if (!text || state.empty() || !text->starts_with(state + " ")) return std::nullopt;
  std::string_view rest = std::string_view(*text).substr(state.size() + 1);
  std::array<std::uint64_t, 2> numbers{};
  for (std::uint64_t& number : numbers) {
    const Result<std::uint64_t> parsed = parse_number(rest.substr(0, rest.find(' ')));
    if (!parsed || rest.find(' ') == std::string_view::npos) return std::nullopt;
    number = *parsed;
    rest.remove_prefix(rest.find(' ') + 1);
  }
  const StoredSegments::Sums sums{numbers[0], numbers[1]};
  if (encode_sums(state, sums) != *text) return std::nullopt;
  return sums;
}

}  // namespace

void StoredSegments::keep_sums() {
  const MutexLock lock(known_.mutex);
  if (!known_.catalog.has_segments() || !known_.catalog.unread().empty()) return;
  const std::string sums = encode_sums(backend_.state(), {known_.catalog.segments(), known_.catalog.segment_bytes()});
  if (!sums.empty() && backend_.derived(kSumsName, kSumsBytesMax) != sums) {
    backend_.keep_derived(kSumsName, sums, Backend::Derived::instead);
  }
}

Status StoredSegments::need_records() {
  {
    const MutexLock lock(known_.mutex);
    if (known_.catalog.has_segments()) return {};
  }
  // Only a reader comes here, and its records are as they were when it opened the repository.
  FRESHET_ASSIGN(Catalog::Segments segments, Catalog::read_segments(backend_));
  const MutexLock lock(known_.mutex);
  if (!known_.catalog.has_segments()) known_.catalog.set_segments(std::move(segments));
  return {};
}

Result<StoredSegments::Sums> StoredSegments::sums() {
  for (bool was_read = false;; was_read = true) {
    {
      const MutexLock lock(known_.mutex);
      if (known_.catalog.has_segments()) return Sums{known_.catalog.segments(), known_.catalog.segment_bytes()};
    }
    if (const auto kept = decode_sums(backend_.derived(kSumsName, kSumsBytesMax), backend_.state());
        kept && !was_read) {
      return *kept;
    }
    FRESHET_TRY(need_records());
  }
}

}  // namespace freshet
