// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/parity/group_image.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/base/check.h"

namespace freshet::levels {
namespace {

/// The pieces that a group's ranks store of one tensor; or of the tensors `own` that stand at one place in their lists.
struct Slot {
  std::vector<std::optional<std::size_t>> pieces;  ///< By position, which of its pieces.
  std::uint64_t longest = 0;
  std::uint64_t all = 0;
  bool is_replicated = false;

  /// Whether it may stand at one place of all images, which takes the longest piece's bytes of each.
  bool is_even() const { return all / pieces.size() >= longest / 4 * 3; }
};

/// In the order of the tensors, and behind them `own`.
std::vector<Slot> slots_of(std::span<const LaidTensor> tensors, std::span<const std::vector<StoredPiece>> pieces) {
  std::map<std::pair<bool, std::size_t>, Slot> slots;
  for (std::size_t position = 0; position < pieces.size(); ++position) {
    std::size_t own = 0;
    for (std::size_t i = 0; i < pieces[position].size(); ++i) {
      const Piece& piece = pieces[position][i].piece;
      const Cut cut = tensors[piece.tensor].layout.cut;
      Slot& slot = slots[cut == Cut::own ? std::pair(true, own++) : std::pair(false, std::size_t{piece.tensor})];
      slot.pieces.resize(pieces.size());
      slot.pieces[position] = i;
      slot.longest = std::max(slot.longest, aligned_to_piece(piece.bytes()));
      slot.all += aligned_to_piece(piece.bytes());
      slot.is_replicated = cut == Cut::replicated;
    }
  }
  std::vector<Slot> in_order;
  in_order.reserve(slots.size());
  for (auto& [key, slot] : slots) in_order.push_back(std::move(slot));
  return in_order;
}

}  // namespace

GroupImage::GroupImage(std::span<const LaidTensor> tensors, std::span<const std::vector<StoredPiece>> pieces,
                       std::uint32_t data) {
  for (const std::vector<StoredPiece>& of_position : pieces) offsets_.emplace_back(of_position.size());
  const auto put = [&](const Slot& slot, std::uint64_t at) {
    for (std::size_t position = 0; position < slot.pieces.size(); ++position) {
      if (slot.pieces[position]) offsets_[position][*slot.pieces[position]] = at;
    }
  };
  const std::vector<Slot> slots = slots_of(tensors, pieces);
  const auto is_region = [&](const Slot& slot) { return slot.is_even() && slot.longest >= kRegionPartBytesMin * data; };
  for (const Slot& slot : slots) {
    if (!is_region(slot)) continue;
    put(slot, image_bytes_);
    add_region(slot.longest, data);
  }
  // The small ones: what is even stands at one place of all images; behind it runs of replicated tensors, which the
  // ranks store in turn, so that they are near one place, too.
  std::uint64_t even_end = image_bytes_;
  for (const Slot& slot : slots) {
    if (is_region(slot) || !slot.is_even()) continue;
    put(slot, even_end);
    even_end += slot.longest;
  }
  std::vector<std::uint64_t> ends(pieces.size(), even_end);
  const auto append_odd = [&](bool replicated) {
    for (const Slot& slot : slots) {
      if (slot.is_even() || slot.is_replicated != replicated) continue;
      for (std::size_t position = 0; position < pieces.size(); ++position) {
        if (!slot.pieces[position]) continue;
        const std::size_t piece = *slot.pieces[position];
        offsets_[position][piece] = ends[position];
        ends[position] += aligned_to_piece(pieces[position][piece].piece.bytes());
      }
    }
  };
  const auto cut_up_to_end = [&](std::uint64_t part_bytes) {
    const std::uint64_t end = ends.empty() ? image_bytes_ : std::ranges::max(ends);
    while (image_bytes_ < end) add_region(std::min(end - image_bytes_, part_bytes * data), data);
  };
  append_odd(true);
  cut_up_to_end(kSmallPartBytes);
  // What one rank has, or few.
  std::ranges::fill(ends, image_bytes_);
  append_odd(false);
  cut_up_to_end(kOddPartBytes);
}

void GroupImage::add_region(std::uint64_t image_bytes, std::uint32_t data) {
  const std::uint64_t part = aligned_to_piece((image_bytes + data - 1) / data);
  regions_.push_back({.begin = image_bytes_, .part_bytes = part, .row_begin = row_bytes_, .first_block = row_blocks_});
  image_bytes_ += part * data;
  row_bytes_ += part;
  row_blocks_ += (part + kParityBlockBytes - 1) / kParityBlockBytes;
}

std::vector<std::uint64_t> GroupImage::parts() const {
  std::vector<std::uint64_t> parts;
  parts.reserve(regions_.size());
  for (const Region& region : regions_) parts.push_back(region.part_bytes);
  return parts;
}

GroupImage::Place GroupImage::place_of(std::uint64_t image_offset) const {
  FRESHET_CHECK(image_offset < image_bytes_);
  const Region& region = *(std::ranges::upper_bound(regions_, image_offset, {}, &Region::begin) - 1);
  const std::uint64_t within = image_offset - region.begin;
  return {.region = &region,
          .block = static_cast<std::uint32_t>(within / region.part_bytes),
          .offset = within % region.part_bytes};
}

}  // namespace freshet::levels
