// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of an answer with an object: its head, and whether it has the bytes that were asked for. Shared by
/// requests with credentials and signed ones. Private to this folder.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "repo/object_store/object_store.h"
#include "repo/s3/http.h"
#include "repo/s3/sender.h"

namespace freshet::s3 {

/// A CRC-32C as S3's headers have it, and back.
std::string base64_of_crc32c(std::uint32_t crc32c);
std::optional<std::uint32_t> crc32c_in(std::string_view base64);

/// "bytes=5-9", of at least one byte.
std::string range_of(std::uint64_t offset, std::size_t bytes);

/// unavailable: a header is missing or makes no sense.
Result<ObjectHead> head_in(const HttpClient& http, const HttpAnswer& answer);

/// Whether the answer to range_of(offset, bytes) brought these bytes.
Status check_range(const HttpAnswer& answer, std::uint64_t offset, std::size_t bytes);

}  // namespace freshet::s3
