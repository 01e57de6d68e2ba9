// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/shards/share.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "core/base/format.h"
#include "core/vector/copy.h"

namespace freshet::levels {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

}  // namespace

Result<ShareMemory> ShareMemory::allocate(std::uint64_t bytes) {
  const std::uint64_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  const std::uint64_t rounded = (std::max<std::uint64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  const std::uint64_t spare = alignment - kPage;
  void* const mapped = ::mmap(nullptr, rounded + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return fail(Code::out_of_space, format("{} bytes of memory for a checkpoint", bytes));
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::uint64_t past = reinterpret_cast<std::uintptr_t>(mapped) % alignment;
  const std::uint64_t before = past == 0 ? 0 : alignment - past;
  if (before > 0) ::munmap(begin, before);
  if (spare > before) ::munmap(begin + before + rounded, spare - before);
  ShareMemory memory(begin + before, rounded);
  // Pages that a child shares are copied at the parent's next write, and a GPU's copies might go on into the old ones.
  // The first write to each page after a fork would cost the loop a page fault, too.
  if (::madvise(memory.data(), rounded, MADV_DONTFORK) != 0) {
    return fail_errno(errno, "keep a checkpoint's memory from children");
  }
  if (alignment == kHugePage) {
    [[maybe_unused]] const int advised = ::madvise(memory.data(), rounded, MADV_HUGEPAGE);
  }
  std::memset(memory.data(), 0, rounded);  // Touched now, and not while the loop waits.
  return memory;
}

void ShareMemory::Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

std::uint64_t chunks_of(const ShareCut& cut, std::size_t piece) {
  return cut.first_chunks[piece + 1] - cut.first_chunks[piece];
}

void capture_chunk(const ShareCut& cut, Share& share, std::size_t piece, std::uint64_t chunk, Bytes from) {
  const std::uint64_t at = chunk * kChunkBytes;
  const Bytes part = from.subspan(at, std::min<std::uint64_t>(from.size() - at, kChunkBytes));
  share.digests[cut.first_chunks[piece] + chunk] =
      copy_and_digest(MutableBytes(share.memory.data() + cut.offsets[piece] + at, part.size()), part);
}

void capture_piece(const ShareCut& cut, Share& share, std::size_t piece, Bytes from) {
  for (std::uint64_t chunk = 0; chunk < chunks_of(cut, piece); ++chunk) capture_chunk(cut, share, piece, chunk, from);
}

void digest_piece(const ShareCut& cut, std::size_t piece, Bytes from, std::vector<Digest>& digests) {
  std::uint64_t chunk = cut.first_chunks[piece];
  while (!from.empty()) {
    const Bytes part = from.first(std::min<std::size_t>(from.size(), kChunkBytes));
    digests[chunk++] = digest_of(part);
    from = from.subspan(part.size());
  }
}

bool is_equal_piece(const ShareCut& cut, std::size_t piece, const std::vector<Digest>& a,
                    const std::vector<Digest>& b) {
  const auto first = static_cast<std::ptrdiff_t>(cut.first_chunks[piece]);
  const auto last = static_cast<std::ptrdiff_t>(cut.first_chunks[piece + 1]);
  return std::equal(a.begin() + first, a.begin() + last, b.begin() + first);
}

ShardHeader header_of(const ShareCut& cut, const Share& share, const std::string& model, const std::string& host) {
  ShardHeader header{.model = model,
                     .key = {.version = share.version, .rank = cut.rank, .ranks = cut.ranks},
                     .step = share.step,
                     .host = host,
                     .tensors = cut.table->digest,
                     .versions = {share.version},
                     .digests = share.digests,
                     .payload_bytes = cut.offsets.back()};
  std::map<Version, std::uint32_t> known = {{share.version, 0}};
  for (std::size_t i = 0; i < cut.pieces.size(); ++i) {
    const auto next = static_cast<std::uint32_t>(header.versions.size());
    const auto [at, is_new] = known.try_emplace(share.writers[i], next);
    if (is_new) header.versions.push_back(share.writers[i]);
    header.records.push_back({.writer = at->second, .store = 0, .offset = cut.offsets[i]});
  }
  return header;
}

}  // namespace freshet::levels
