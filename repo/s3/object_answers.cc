// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/object_answers.h"

#include <sodium.h>

#include <array>
#include <charconv>

#include "core/base/format.h"

namespace freshet::s3 {
namespace {

constexpr std::size_t kCrcBytes = 4;

/// The first byte and the whole object's size in "bytes 5-9/100".
struct ContentRange {
  std::uint64_t first = 0;
  std::optional<std::uint64_t> whole;
};

std::optional<ContentRange> content_range_in(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  const auto dash = text.find('-');
  const auto slash = text.find('/');
  if (!text.starts_with(kUnit) || dash == std::string_view::npos || slash == std::string_view::npos) return {};
  ContentRange range;
  if (std::from_chars(text.data() + kUnit.size(), text.data() + dash, range.first).ec != std::errc()) return {};
  std::uint64_t whole = 0;
  if (std::from_chars(text.data() + slash + 1, text.data() + text.size(), whole).ec == std::errc()) range.whole = whole;
  return range;
}

}  // namespace

std::string base64_of_crc32c(std::uint32_t crc32c) {
  std::array<unsigned char, kCrcBytes> bytes{};
  for (std::size_t i = 0; i < kCrcBytes; ++i) bytes[i] = static_cast<unsigned char>(crc32c >> (8 * (3 - i)));
  std::array<char, sodium_base64_ENCODED_LEN(kCrcBytes, sodium_base64_VARIANT_ORIGINAL)> text{};
  ::sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  return text.data();
}

std::optional<std::uint32_t> crc32c_in(std::string_view base64) {
  std::array<unsigned char, kCrcBytes> bytes{};
  std::size_t count = 0;
  const char* end = nullptr;
  if (::sodium_base642bin(bytes.data(), bytes.size(), base64.data(), base64.size(), nullptr, &count, &end,
                          sodium_base64_VARIANT_ORIGINAL) != 0 ||
      count != kCrcBytes || end != base64.data() + base64.size()) {
    return std::nullopt;
  }
  std::uint32_t crc32c = 0;
  for (const unsigned char byte : bytes) crc32c = crc32c << 8 | byte;
  return crc32c;
}

std::string range_of(std::uint64_t offset, std::size_t bytes) {
  return format("bytes={}-{}", offset, offset + bytes - 1);
}

Result<ObjectHead> head_in(const HttpClient& http, const HttpAnswer& answer) {
  ObjectHead head;
  const std::string_view length = answer.header("content-length");
  const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), head.bytes);
  const std::string modified(answer.header("last-modified"));
  const std::optional<std::int64_t> modified_unix_s = modified.empty() ? std::nullopt : http.unix_s_of(modified);
  if (length.empty() || error != std::errc() || end != length.data() + length.size() || !modified_unix_s) {
    return fail(Code::unavailable, "the store's answer lacks Content-Length or Last-Modified");
  }
  head.modified_unix_s = *modified_unix_s;
  head.crc32c = crc32c_in(answer.header("x-amz-checksum-crc32c"));
  return head;
}

Status check_range(const HttpAnswer& answer, std::uint64_t offset, std::size_t bytes) {
  if (answer.status == 206) {
    const std::optional<ContentRange> range = content_range_in(answer.header("content-range"));
    if (!range || range->first != offset || answer.is_cut) {
      return fail(Code::unavailable, "the store's answer has another range than the asked one");
    }
    if (answer.out_bytes == bytes) return {};
    return fail(Code::corrupt, format("the object has {} bytes, not {}",
                                      range->whole.value_or(offset + answer.out_bytes), offset + bytes));
  }
  // A store may answer with the whole object instead; then only a range at its begin is right.
  if (offset == 0 && answer.out_bytes == bytes) return {};
  if (offset == 0 && !answer.is_cut) {
    return fail(Code::corrupt, format("the object has {} bytes, not {}", answer.out_bytes, bytes));
  }
  return fail(Code::unsupported, "the store does not read parts of objects (the header Range)");
}

}  // namespace freshet::s3
