// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/packer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/check.h"
#include "core/gpu/kernels/delta_payload.h"

namespace freshet::gpu {
namespace {

/// So many blocks of threads are at the same time on a large device. Fewer tiles are small blocks: a tile then takes
/// some microseconds more, and the training step keeps the processors' other threads.
constexpr std::uint64_t kPackBlocksMax = 1056;
constexpr std::uint32_t kPackThreadsOfFew = 64;
constexpr std::uint32_t kZeroThreads = 256;
constexpr std::uint64_t kZeroBlocksMax = 1024;
constexpr std::uint32_t kPackChainThreads = 32;
/// Of a tensor, for its changes: 8 % of bf16 elements and 5 % of f32 elements. With more, the bytes themselves cross
/// the bus about as quickly.
constexpr std::uint64_t kRoomShare = 8;

/// Each area begins at a multiple of this.
std::uint64_t whole_rows(std::uint64_t bytes) { return (bytes + 15) / 16 * 16; }

/// The segments of a delta that never leaves this process have no names.
DeltaSpec unnamed_delta(DType dtype) { return {.dtype = dtype, .base = {}, .target = {}}; }

}  // namespace

/// Memory of jobs that have ended. Any thread.
class Packer::Rooms {
 public:
  /// `retired`: gets the rest where all of it is too small.
  Result<Memory> take_memory(Device& device, std::uint64_t bytes, std::vector<Memory>& retired)
      FRESHET_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      const auto found = std::ranges::find_if(free_, [&](const Memory& memory) { return memory.bytes() >= bytes; });
      if (found != free_.end()) {
        Memory memory = std::move(*found);
        free_.erase(found);
        return memory;
      }
      retired = std::exchange(free_, {});
    }
    return device.allocate(bytes);
  }
  HostPagePool& pages() { return pages_; }
  void give_back(Memory memory) FRESHET_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    free_.push_back(std::move(memory));
  }

 private:
  HostPagePool pages_;
  Mutex mutex_;
  std::vector<Memory> free_ FRESHET_GUARDED_BY(mutex_);
};

Packer::Job::~Job() {
  if (rooms_ == nullptr) return;
  rooms_->pages().give_back(std::move(pages_));
  if (memory_.bytes() > 0) rooms_->give_back(std::move(memory_));
}

const PackResult& Packer::Job::result(std::size_t tensor) const {
  FRESHET_CHECK(is_whole_ && tensor < rows_.size());
  return reinterpret_cast<const PackResult*>(results())[tensor];
}

bool Packer::Job::has_delta(std::size_t tensor) const {
  const std::uint64_t bytes = result(tensor).bytes;
  return bytes > 0 && bytes <= rows_[tensor].blocks_bytes_max;
}

std::vector<Digest> Packer::Job::digests() const {
  FRESHET_CHECK(is_whole_);
  const auto* const words = reinterpret_cast<const std::uint64_t*>(results() + (layout_.digests - layout_.results));
  std::vector<Digest> digests;
  for (std::uint64_t i = 0; i < plan_.tensors(); ++i) {
    digests.push_back(plan_.digest_of(i, {words, 2 * plan_.device_parts().size()}, {}));
  }
  return digests;
}

void Packer::Job::lay_out() {
  layout_.parts = whole_rows(rows_.size() * sizeof(PackTensor));
  layout_.states = layout_.parts + whole_rows(plan_.device_parts().size_bytes());
  layout_.results = layout_.states + whole_rows((tiles_ + 1) * sizeof(std::uint64_t));
  layout_.digests = layout_.results + whole_rows(rows_.size() * sizeof(PackResult));
  layout_.places = layout_.digests + plan_.device_parts().size() * 2 * sizeof(std::uint64_t);
  layout_.sums = layout_.places + tiles_ * sizeof(BlockPlace);
  layout_.blocks = layout_.sums + plan_.tiles() * kDigestSumsOfBlock * sizeof(std::uint64_t);
}

Packer::Packer(std::shared_ptr<Device> device) : device_(std::move(device)), rooms_(std::make_shared<Rooms>()) {}

bool Packer::takes(std::uint64_t bytes, DType dtype) {
  const std::uint64_t last = bytes % kDigestPartBytes;
  return bytes > kDigestHostBytesMax && (last == 0 || last > kDigestHostBytesMax) && bytes % word_bytes_of(dtype) == 0;
}

std::uint64_t Packer::room_for(const Tensor& tensor) {
  const std::uint64_t sums = tensor.from.size() / kDigestBlockBytes * kDigestSumsOfBlock * sizeof(std::uint64_t);
  return sums + (tensor.is_packed ? tensor.from.size() / kRoomShare : 0);
}

/// Fills the job's rows, and numbers the tiles.
std::vector<PackTensor> Packer::table_of(std::span<const Tensor> tensors, const Job& job) const {
  std::vector<PackTensor> table;
  auto* const memory = reinterpret_cast<std::uint8_t*>(job.memory_.address());
  auto* const sums = reinterpret_cast<std::uint64_t*>(memory + job.layout_.sums);
  std::optional<DeltaElements> last;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Job::Row& row = job.rows_[i];
    // The key is a digest, and most tensors of a model have the type and the size of another one.
    const bool is_as_last = i > 0 && row.dtype == job.rows_[i - 1].dtype && row.elements == job.rows_[i - 1].elements;
    if (!is_as_last || !last) last = delta_elements(unnamed_delta(row.dtype), row.elements);
    auto* const to = reinterpret_cast<std::uint8_t*>(tensors[i].to);
    table.push_back({.base = to,
                     .target = reinterpret_cast<const std::uint8_t*>(tensors[i].from.data()),
                     .fresh = to,
                     .elements = *last,
                     .blocks = row.blocks_bytes_max == 0 ? nullptr : memory + row.blocks_offset,
                     .blocks_bytes_max = row.blocks_bytes_max,
                     .sums = sums + job.plan_.first_tile(i) * kDigestSumsOfBlock,
                     .first_tile = 0});
  }
  return table;
}

Status Packer::queue(StreamHandle stream, std::span<const Tensor> tensors, Job& job) {
  FRESHET_CHECK(job.rooms_ == nullptr && !tensors.empty());
  job.rooms_ = rooms_;
  for (const Tensor& tensor : tensors) {
    FRESHET_CHECK(takes(tensor.from.size(), tensor.dtype));
    const std::uint64_t width = word_bytes_of(tensor.dtype);
    job.rows_.push_back({.dtype = tensor.dtype, .elements = tensor.from.size() / width});
    // The digests are formed when the tensor may have been written again, so they read the segment.
    job.plan_.add(reinterpret_cast<const std::uint8_t*>(tensor.to), tensor.from.size());
    job.tiles_ += (job.rows_.back().elements + chunk_elements(width) - 1) / chunk_elements(width);
  }
  job.lay_out();
  std::uint64_t end = job.layout_.blocks;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_packed) continue;
    job.rows_[i].blocks_offset = end;
    job.rows_[i].blocks_bytes_max = tensors[i].from.size() / kRoomShare;
    end += whole_rows(job.rows_[i].blocks_bytes_max);
  }
  const Job::Layout& layout = job.layout_;
  FRESHET_ASSIGN(job.memory_, rooms_->take_memory(*device_, end, job.retired_));
  FRESHET_ASSIGN(job.pages_, rooms_->pages().take(*device_, layout.states + layout.places - layout.results));

  std::vector<PackTensor> table = table_of(tensors, job);
  FRESHET_CHECK(number_tiles(std::span(table)) == job.tiles_);
  std::memcpy(job.pages_->begin(), table.data(), table.size() * sizeof(PackTensor));
  const auto parts = job.plan_.device_parts();
  std::memcpy(job.pages_->begin() + layout.parts, parts.data(), parts.size_bytes());

  std::byte* const memory = job.memory_.address();
  const std::uint64_t zeros = layout.digests - layout.states;
  FRESHET_TRY(device_->copy(stream, memory, job.pages_->begin(), layout.states));
  FRESHET_TRY(device_->launch(
      stream,
      {.kernel = Kernel::kFill,
       .blocks = static_cast<std::uint32_t>(std::min((zeros + kZeroThreads - 1) / kZeroThreads, kZeroBlocksMax)),
       .threads = kZeroThreads},
      FillArguments{.to = reinterpret_cast<std::uint8_t*>(memory + layout.states), .bytes = zeros, .value = 0}));
  return device_->launch(stream,
                         {.kernel = Kernel::kPack,
                          .blocks = static_cast<std::uint32_t>(std::min(job.tiles_, kPackBlocksMax)),
                          .threads = job.tiles_ < kPackBlocksMax ? kPackThreadsOfFew : kDeltaThreadsMax},
                         PackArguments{.tensors = reinterpret_cast<const PackTensor*>(memory),
                                       .tensor_count = tensors.size(),
                                       .tiles = job.tiles_,
                                       .results = reinterpret_cast<PackResult*>(memory + layout.results),
                                       .places = reinterpret_cast<BlockPlace*>(memory + layout.places),
                                       .states = reinterpret_cast<std::uint64_t*>(memory + layout.states)});
}

Status Packer::finish(StreamHandle stream, Job& job) {
  const Job::Layout& layout = job.layout_;
  std::byte* const memory = job.memory_.address();
  const std::uint64_t parts = job.plan_.device_parts().size();
  constexpr std::uint64_t kPartsOfBlock = kPackChainThreads / 8;
  FRESHET_TRY(device_->launch(
      stream,
      {.kernel = Kernel::kDigestChain,
       .blocks =
           static_cast<std::uint32_t>(std::min<std::uint64_t>((parts + kPartsOfBlock - 1) / kPartsOfBlock, kBlocksMax)),
       .threads = kPackChainThreads},
      DigestChainArguments{.parts = reinterpret_cast<const DigestPart*>(memory + layout.parts),
                           .part_count = parts,
                           .sums = reinterpret_cast<const std::uint64_t*>(memory + layout.sums),
                           .digests = reinterpret_cast<std::uint64_t*>(memory + layout.digests)}));
  FRESHET_TRY(device_->copy(stream, job.pages_->begin() + layout.states, memory + layout.results,
                            layout.places - layout.results));
  job.is_whole_ = true;
  return {};
}

Bytes PackedDelta::blocks() const {
  const Packer::Job::Row& row = job_->rows_[tensor_];
  return {job_->memory_.address() + row.blocks_offset, job_->result(tensor_).bytes};
}

Status PackedDelta::apply(Bytes blocks, MutableBytes memory) const {
  const Packer::Job::Row& row = job_->rows_[tensor_];
  const DeltaSpec spec = unnamed_delta(row.dtype);
  const std::vector<std::byte> payload = sealed_payload(spec, row.elements, job_->result(tensor_), blocks);
  FRESHET_TRY(apply_delta(spec, payload, memory));
  return {};
}

}  // namespace freshet::gpu
