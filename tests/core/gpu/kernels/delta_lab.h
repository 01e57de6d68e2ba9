// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tensors in two versions, packed and applied by kernels.

#include <deque>
#include <optional>
#include <random>

#include "core/delta/element_delta.h"
#include "core/gpu/kernels/delta_payload.h"
#include "core/gpu/kernels/tables.h"
#include "tests/core/gpu/kernels/kernel_lab.h"

namespace freshet::gpu::test {

inline DeltaSpec delta_spec(DType dtype, std::uint64_t tensor) {
  const auto segment = [tensor](std::uint64_t sequence) {
    return SegmentName{.writer = {.run = {7, 8}, .incarnation = 2, .sequence = sequence},
                       .tensor = static_cast<std::uint32_t>(tensor)};
  };
  return {.dtype = dtype, .base = segment(5), .target = segment(6)};
}

struct DeltaCase {
  /// Each element is changed with the probability; half of the changed ones by a little, half into anything.
  DeltaCase(DType dtype, std::uint64_t count, double density, std::mt19937_64& random, std::uint32_t misaligned = 0)
      : spec(delta_spec(dtype, random() % 100)),
        elements(count),
        width(word_bytes_of(dtype)),
        base(count * width, misaligned),
        target(count * width, misaligned),
        fresh(count * width, misaligned) {
    base.fill_from(random);
    std::memcpy(target.data(), base.data(), base.size());
    std::bernoulli_distribution is_changed(density);
    for (std::uint64_t i = 0; i < elements; ++i) {
      if (is_changed(random)) change(i, random);
    }
  }

  void change(std::uint64_t element, std::mt19937_64& random) {
    std::uint8_t* const at = target.data() + element * width;
    if (random() % 2 == 0) {
      ++*at;
    } else {
      for (std::uint64_t i = 0; i < width; ++i) at[i] = static_cast<std::uint8_t>(random());
    }
  }

  std::uint64_t changed() const { return count_changed_elements(spec.dtype, base.bytes(), target.bytes()); }

  DeltaSpec spec;
  std::uint64_t elements;
  std::uint64_t width;
  Range base, target, fresh;
};

struct Packed {
  PackResult result{};
  std::vector<std::byte> blocks;
  std::vector<BlockPlace> places;
  std::vector<std::byte> payload;  ///< Empty: it did not fit.
};

struct PackShape {
  std::uint32_t blocks = 3;
  std::uint32_t threads = 64;
  bool with_copy = true;
  bool in_place = false;  ///< `fresh` has the base's bytes first, and is the base.
  bool packs = true;
  std::vector<Digest>* digests = nullptr;  ///< Gets those of the targets.
  /// Room for a tensor's blocks; nothing: enough for any.
  std::optional<std::uint64_t> room = std::nullopt;
};

/// The digests of a plan whose sums some kernel wrote.
inline std::vector<Digest> digests_of(const DigestPlan& plan, std::span<const std::uint64_t> sums, std::uint32_t blocks,
                                      std::uint32_t threads, std::uint64_t seed) {
  const std::span<const DigestPart> parts = plan.device_parts();
  std::vector<std::uint64_t> of_device(parts.size() * 2);
  run_kernel(Kernel::kDigestChain, blocks, threads,
             DigestChainArguments{
                 .parts = parts.data(), .part_count = parts.size(), .sums = sums.data(), .digests = of_device.data()},
             seed);
  std::vector<Digest> of_host;
  for (const DigestPlan::HostPart& part : plan.host_parts()) {
    of_host.push_back(digest_of(std::as_bytes(std::span(part.bytes, part.length))));
  }
  std::vector<Digest> all;
  for (std::uint64_t i = 0; i < plan.tensors(); ++i) all.push_back(plan.digest_of(i, of_device, of_host));
  return all;
}

/// One launch for all cases.
inline std::vector<Packed> pack_all(std::deque<DeltaCase>& cases, const PackShape& shape, std::uint64_t seed) {
  std::vector<PackTensor> table;
  std::deque<Range> rooms;
  DigestPlan plan;
  for (const DeltaCase& each : cases) plan.add(each.target.data(), each.target.size());
  std::vector<std::uint64_t> sums(plan.tiles() * kDigestSumsOfBlock);
  for (DeltaCase& each : cases) {
    const std::uint64_t first_sum = plan.first_tile(table.size()) * kDigestSumsOfBlock;
    const std::uint64_t chunks = each.elements / chunk_elements(each.width) + 1;
    const std::uint64_t any = chunks * 200 + each.elements * (2 + each.width);
    Range& room = rooms.emplace_back(shape.room.value_or(any), static_cast<std::uint32_t>(seed % 3));
    if (shape.in_place) std::memcpy(each.fresh.data(), each.base.data(), each.base.size());
    table.push_back({.base = shape.in_place ? each.fresh.data() : each.base.data(),
                     .target = each.target.data(),
                     .fresh = shape.with_copy ? each.fresh.data() : nullptr,
                     .elements = delta_elements(each.spec, each.elements),
                     .blocks = shape.packs ? room.data() : nullptr,
                     .blocks_bytes_max = room.size(),
                     .sums = shape.digests == nullptr ? nullptr : sums.data() + first_sum,
                     .first_tile = 0});
  }
  const std::uint64_t tiles = number_tiles(table);
  std::vector<PackResult> results(table.size());
  std::vector<BlockPlace> places(tiles);
  std::vector<std::uint64_t> states(tiles + 1);
  const PackArguments arguments{.tensors = table.data(),
                                .tensor_count = table.size(),
                                .tiles = tiles,
                                .results = results.data(),
                                .places = places.data(),
                                .states = states.data()};
  run_kernel(Kernel::kPack, shape.blocks, shape.threads, arguments, seed);
  if (shape.digests != nullptr) *shape.digests = digests_of(plan, sums, shape.blocks, shape.threads, seed);
  std::vector<Packed> packed(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(rooms[i].is_surrounded() && cases[i].fresh.is_surrounded());
    packed[i].result = results[i];
    const std::uint64_t end = i + 1 < table.size() ? table[i + 1].first_tile : tiles;
    packed[i].places.assign(places.begin() + static_cast<std::ptrdiff_t>(table[i].first_tile),
                            places.begin() + static_cast<std::ptrdiff_t>(end));
    if (!shape.packs || results[i].bytes > rooms[i].size()) continue;
    const Bytes blocks = rooms[i].bytes().first(results[i].bytes);
    packed[i].blocks.assign(blocks.begin(), blocks.end());
    packed[i].payload = sealed_payload(cases[i].spec, cases[i].elements, results[i], blocks);
  }
  return packed;
}

struct ApplyCase {
  ApplyTensor tensor{};
  std::vector<BlockPlace> places;
  ApplyResult result{};
};

/// One launch for all cases; fills their results.
inline void apply_all(std::vector<ApplyCase>& cases, std::uint32_t blocks, std::uint32_t threads, std::uint64_t seed) {
  std::vector<ApplyTensor> table;
  std::vector<std::uint64_t> blocks_of_tensors;
  std::vector<BlockPlace> places;
  for (const ApplyCase& each : cases) {
    table.push_back(each.tensor);
    blocks_of_tensors.push_back(each.places.size());
    places.insert(places.end(), each.places.begin(), each.places.end());
  }
  std::vector<ApplyResult> results(cases.size());
  const std::uint64_t tiles = number_tiles(table, blocks_of_tensors);
  const ApplyArguments arguments{.tensors = table.data(),
                                 .tensor_count = table.size(),
                                 .tiles = tiles,
                                 .places = places.data(),
                                 .results = results.data()};
  run_kernel(Kernel::kApply, blocks, threads, arguments, seed);
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].result = results[i];
}

inline const std::uint8_t* bytes_at(const std::byte* bytes) { return reinterpret_cast<const std::uint8_t*>(bytes); }

}  // namespace freshet::gpu::test
