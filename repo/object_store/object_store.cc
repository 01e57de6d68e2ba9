// SPDX-License-Identifier: Apache-2.0
#include "repo/object_store/object_store.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <limits>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

constexpr std::size_t kObjectKeyBytesMax = 512;
constexpr std::string_view kObjectKeyCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";

}  // namespace

std::string_view name_of(Created created) {
  switch (created) {
    case Created::created: return "created";
    case Created::exists: return "exists";
    case Created::unsettled: return "unsettled";
    case Created::refused: return "refused";
  }
  return "?";
}

std::uint32_t crc32c_of(Bytes bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  while (!bytes.empty()) {
    const std::size_t count = std::min<std::size_t>(bytes.size(), std::numeric_limits<int>::max());
    // The library takes no pointer to const, and writes nothing.
    auto* const from = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    crc = ::crc32_iscsi(from, static_cast<int>(count), crc);
    bytes = bytes.subspan(count);
  }
  return ~crc;
}

Status check_object_key(std::string_view key) {
  const auto refused = [&](std::string_view why) { return refuse(format("object key \"{}\": {}", shown(key), why)); };
  if (key.empty() || key.size() > kObjectKeyBytesMax) return refused(format("give 1 to {} bytes", kObjectKeyBytesMax));
  if (key.find_first_not_of(kObjectKeyCharacters) != std::string_view::npos) {
    return refused("only A-Z a-z 0-9 . _ - and / are allowed");
  }
  for (std::string_view rest = key;;) {
    const auto slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return refused("a part between slashes is empty, . or ..");
    if (slash == std::string_view::npos) return {};
    rest = rest.substr(slash + 1);
  }
}

}  // namespace freshet
