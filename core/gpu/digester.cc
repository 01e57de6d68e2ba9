// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/digester.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kSumsOfTileBytes = kDigestSumsOfBlock * sizeof(std::uint64_t);
constexpr std::uint64_t kDigestBytes = 2 * sizeof(std::uint64_t);
/// A warp does a tile; so many blocks of eight warps fill a device. Where these are not all needed, smaller blocks
/// spread the tiles over more of its processors.
constexpr std::uint64_t kSumsBlocksMax = 1024;
constexpr std::uint32_t kSumsThreadsOfFew = 64;
/// The chain of a part is a latency, and small blocks spread the parts over the device's processors.
constexpr std::uint32_t kChainThreads = 32;
constexpr std::uint64_t kChainPartsOfBlock = kChainThreads / 8;
constexpr std::uint32_t kSmallThreads = 32;
constexpr std::uint64_t kSmallBlocksMax = 1024;

/// Each area begins at a multiple of this, as every type in them wants it.
std::uint64_t whole_areas(std::uint64_t bytes) { return (bytes + 15) / 16 * 16; }

std::uint64_t tiles_of_part(const DigestPart& part) {
  return (part.length + kDigestBlockBytes - 1) / kDigestBlockBytes;
}

/// The parts from `begin` on whose tiles have room in `tiles_max`; at least one.
std::size_t end_of_group(std::span<const DigestPart> parts, std::size_t begin, std::uint64_t tiles_max) {
  std::uint64_t tiles = tiles_of_part(parts[begin]);
  std::size_t end = begin + 1;
  for (; end < parts.size() && tiles + tiles_of_part(parts[end]) <= tiles_max; ++end)
    tiles += tiles_of_part(parts[end]);
  return end;
}

}  // namespace

std::vector<Digest> Digester::Job::digests() const {
  FRESHET_CHECK(is_whole_);
  const auto* const words = reinterpret_cast<const std::uint64_t*>(pages_->begin() + results_offset_);
  const std::span<const std::uint64_t> of_device(words, 2 * plan_.device_parts().size());
  const std::byte* bytes = reinterpret_cast<const std::byte*>(of_device.data() + of_device.size());
  std::vector<Digest> of_host;
  for (const DigestPlan::HostPart& part : plan_.host_parts()) {
    of_host.push_back(plain_xxh3_of({bytes, part.length}));
    bytes += part.length;
  }
  std::vector<Digest> digests;
  for (std::uint64_t i = 0; i < plan_.tensors(); ++i) digests.push_back(plan_.digest_of(i, of_device, of_host));
  return digests;
}

Digester::Digester(std::shared_ptr<Device> device, std::uint64_t sums_bytes_max)
    : device_(std::move(device)), sums_bytes_max_(sums_bytes_max) {}

Digester::Layout Digester::lay_out(const DigestPlan& plan) {
  Layout layout;
  layout.small = whole_areas(plan.device_parts().size_bytes());
  layout.results = layout.small + whole_areas(plan.host_parts().size() * sizeof(CopyTensor));
  layout.small_bytes = layout.results + plan.device_parts().size() * kDigestBytes;
  std::uint64_t end = layout.small_bytes;
  for (const DigestPlan::HostPart& part : plan.host_parts()) end += part.length;
  layout.sums = whole_areas(end);
  return layout;
}

/// Memory that is too small is used up by earlier work first; so it ends with this job, and no thread waits here.
Status Digester::make_room(const Layout& layout, Job& job) {
  std::uint64_t tiles = std::min(job.plan_.tiles(), sums_bytes_max_ / kSumsOfTileBytes);
  for (const DigestPart& part : job.plan_.device_parts()) tiles = std::max(tiles, tiles_of_part(part));
  const std::uint64_t wanted = layout.sums + tiles * kSumsOfTileBytes;
  if (memory_.bytes() >= wanted) return {};
  FRESHET_ASSIGN(Memory larger, device_->allocate(wanted));
  job.retired_ = std::exchange(memory_, std::move(larger));
  return {};
}

std::span<CopyTensor> Digester::write_tables(const Layout& layout, Job& job) const {
  const auto parts = job.plan_.device_parts();
  auto* const rows = reinterpret_cast<DigestPart*>(job.pages_->begin() + layout.parts);
  std::copy(parts.begin(), parts.end(), rows);
  const std::uint64_t tiles_max = (memory_.bytes() - layout.sums) / kSumsOfTileBytes;
  for (std::size_t begin = 0; begin < parts.size();) {
    const std::size_t end = end_of_group(parts, begin, tiles_max);
    for (std::size_t i = begin; i < end; ++i) rows[i].first_tile -= parts[begin].first_tile;
    begin = end;
  }
  auto* const small = reinterpret_cast<CopyTensor*>(job.pages_->begin() + layout.small);
  auto* to = reinterpret_cast<std::uint8_t*>(memory_.address() + layout.small_bytes);
  std::size_t next = 0;
  for (const DigestPlan::HostPart& part : job.plan_.host_parts()) {
    if (part.length == 0) continue;  // It has no address.
    small[next++] = {.from = part.bytes, .to = to, .bytes = part.length, .first_tile = 0};
    to += part.length;
  }
  return {small, next};
}

Status Digester::launch_all(StreamHandle stream, const Layout& layout, const Job& job) {
  const auto parts = job.plan_.device_parts();
  const auto* const rows = reinterpret_cast<const DigestPart*>(memory_.address() + layout.parts);
  auto* const sums = reinterpret_cast<std::uint64_t*>(memory_.address() + layout.sums);
  auto* const digests = reinterpret_cast<std::uint64_t*>(memory_.address() + layout.results);
  const std::uint64_t tiles_max = (memory_.bytes() - layout.sums) / kSumsOfTileBytes;
  for (std::size_t begin = 0; begin < parts.size();) {
    const std::size_t end = end_of_group(parts, begin, tiles_max);
    const std::uint64_t tiles = parts[end - 1].first_tile + tiles_of_part(parts[end - 1]) - parts[begin].first_tile;
    const bool are_few = tiles < kSumsBlocksMax * (kDigestThreadsMax / 32);
    const std::uint32_t threads = are_few ? kSumsThreadsOfFew : kDigestThreadsMax;
    const std::uint64_t blocks = std::min((tiles * 32 + threads - 1) / threads, kSumsBlocksMax);
    FRESHET_TRY(device_->launch(
        stream, {.kernel = Kernel::kDigestSums, .blocks = static_cast<std::uint32_t>(blocks), .threads = threads},
        DigestSumsArguments{.parts = rows + begin, .part_count = end - begin, .tiles = tiles, .sums = sums}));
    FRESHET_TRY(device_->launch(
        stream,
        {.kernel = Kernel::kDigestChain,
         .blocks = static_cast<std::uint32_t>(
             std::min<std::uint64_t>((end - begin + kChainPartsOfBlock - 1) / kChainPartsOfBlock, kBlocksMax)),
         .threads = kChainThreads},
        DigestChainArguments{
            .parts = rows + begin, .part_count = end - begin, .sums = sums, .digests = digests + 2 * begin}));
    begin = end;
  }
  return {};
}

Status Digester::queue(StreamHandle stream, std::span<const Bytes> ranges, Job& job) {
  FRESHET_CHECK(job.pages_ == nullptr && !ranges.empty());
  for (const Bytes range : ranges) {
    job.plan_.add(reinterpret_cast<const std::uint8_t*>(range.data()), range.size());
  }
  const Layout layout = lay_out(job.plan_);
  FRESHET_TRY(make_room(layout, job));
  FRESHET_ASSIGN(job.pages_, pool_.take(*device_, layout.sums));
  job.results_offset_ = layout.results;
  const std::span<CopyTensor> small = write_tables(layout, job);
  const std::uint64_t small_tiles = number_tiles(small);
  FRESHET_TRY(device_->copy(stream, memory_.address(), job.pages_->begin(), layout.results));
  FRESHET_TRY(launch_all(stream, layout, job));
  if (small_tiles > 0) {
    FRESHET_TRY(
        device_->launch(stream,
                        {.kernel = Kernel::kCopy,
                         .blocks = static_cast<std::uint32_t>(std::min(small_tiles, kSmallBlocksMax)),
                         .threads = kSmallThreads},
                        CopyArguments{.tensors = reinterpret_cast<const CopyTensor*>(memory_.address() + layout.small),
                                      .tensor_count = small.size(),
                                      .tiles = small_tiles}));
  }
  FRESHET_TRY(device_->copy(stream, job.pages_->begin() + layout.results, memory_.address() + layout.results,
                            layout.sums - layout.results));
  job.is_whole_ = true;
  return {};
}

}  // namespace freshet::gpu
