// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/uuid.h"

#include <charconv>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::gpu {
namespace {

constexpr std::string_view kUuidShape = "00000000-0000-0000-0000-000000000000";

}  // namespace

std::string Uuid::text() const {
  std::string out = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += format("{:02x}", bytes[i]);
  }
  return out;
}

Result<Uuid> Uuid::parse(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("GPU-")) rest.remove_prefix(4);
  // The driver has one call for the UUIDs of both, so the name here begins alike.
  if (text.starts_with("MIG-")) {
    return refuse(
        format("read a device's UUID: '{}' names a MIG device; write GPU- for MIG- "
               "(freshet doctor lists the devices)",
               shown(text)));
  }
  const auto other = [&] {
    return refuse(format("read a device's UUID: '{}' is not like GPU-{}", shown(text), kUuidShape));
  };
  if (rest.size() != kUuidShape.size()) return other();
  Uuid uuid;
  std::size_t count = 0;
  for (std::size_t at = 0; at < rest.size();) {
    if (kUuidShape[at] == '-') {
      if (rest[at++] != '-') return other();
      continue;
    }
    const char* const end = rest.data() + at + 2;
    const auto [stopped, error] = std::from_chars(rest.data() + at, end, uuid.bytes[count++], 16);
    if (error != std::errc() || stopped != end) return other();
    at += 2;
  }
  return uuid;
}

}  // namespace freshet::gpu
