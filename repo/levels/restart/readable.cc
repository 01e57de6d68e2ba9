// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/readable.h"

#include <algorithm>

#include "repo/levels/restart/assembly.h"
#include "repo/levels/shards/shard.h"

namespace freshet::levels {
namespace {

constexpr std::size_t kHalvedMax = 8;
/// Given up around a byte that cannot be read: a block of a file system.
constexpr std::uint64_t kUnreadableBytes = 4096;

/// False: no descriptor was free, say.
bool is_unreadable(const Error& error) { return error.code() != Code::out_of_space && !is_no_damage(error); }

struct Reading {
  const std::function<Status(std::uint64_t at, MutableBytes out)>& read;
  std::size_t halved = 0;

  Status take(std::uint64_t at, MutableBytes out) {
    Status came = read(at, out);
    if (came || !is_unreadable(came.error())) return came;
    const bool is_chunk = out.size() <= kChunkBytes;
    if (out.size() <= kUnreadableBytes || (is_chunk && halved == kHalvedMax)) {
      std::ranges::fill(out, std::byte{0});
      return {};
    }
    if (is_chunk) ++halved;
    const std::uint64_t step = is_chunk ? (out.size() + 1) / 2 : kChunkBytes;
    while (!out.empty()) {
      const MutableBytes part = out.first(std::min<std::uint64_t>(step, out.size()));
      FRESHET_TRY(take(at, part));
      at += part.size();
      out = out.subspan(part.size());
    }
    return {};
  }
};

}  // namespace

Status read_readable(std::uint64_t at, MutableBytes out,
                     const std::function<Status(std::uint64_t at, MutableBytes out)>& read) {
  return Reading{.read = read}.take(at, out);
}

}  // namespace freshet::levels
