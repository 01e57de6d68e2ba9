// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/capture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"
#include "transport/publish/capture_sealer.h"
#include "transport/publish/copy_crew.h"

namespace freshet {
namespace {

constexpr double kArenaCopiesMax = 64.0;
constexpr double kDefaultLimitCopies = 4.0;
constexpr std::uint64_t kDefaultLimitExtraBytes = std::uint64_t{64} << 20;
constexpr std::size_t kHelpersMax = 3;
/// A helper that is preempted in the middle of a tensor holds the loop up, and on few processors it gains little: two
/// fill the memory's bandwidth. So helpers are for machines where a processor is likely to be idle.
constexpr std::size_t kProcessorsPerHelper = 4;

std::size_t helpers_of(const Capture::Options& options) {
  if (options.helpers != Capture::kHelpersByProcessors) return options.helpers;
  return std::min<std::size_t>(std::thread::hardware_concurrency() / kProcessorsPerHelper, kHelpersMax);
}

}  // namespace

class Capture::Impl {
 public:
  Impl(Options options, Hooks hooks)
      : options_(std::move(options)),
        make_room_(std::move(hooks.make_room)),
        arena_({.name = options_.name,
                .lock_memory = options_.lock_memory,
                .huge_pages = options_.huge_pages,
                .on_slab = std::move(hooks.on_slab)}),
        crew_(helpers_of(options_)),
        sealer_(arena_, std::move(hooks.on_sealed)) {
    arena_.raise_limit(options_.arena_limit_bytes);
  }

  Status prepare(const Architecture& architecture);
  void resume_from(std::vector<Digest> digests);
  Status begin();
  Result<Receipt> add(std::span<const TensorView> tensors, std::span<const std::uint32_t> indices);
  void abandon();
  bool is_open() const { return open_.has_value(); }
  Result<Receipt> capture(const Request& request);

  SlabArena& arena() { return arena_; }
  CaptureSealer& sealer() { return sealer_; }

 private:
  using Want = SlabArena::Want;

  /// What add() copied.
  struct Open {
    std::vector<CaptureSealer::Tensor> tensors;
    std::vector<std::optional<std::size_t>> place_of;  ///< In `tensors`, by tensor.
    std::uint64_t bytes = 0;
  };

  Status check(std::span<const TensorView> tensors) const;
  Status check_indices(std::span<const std::uint32_t> indices) const;
  std::vector<std::uint32_t> tensors_wanted(const Request& request) const;
  Status find_segments(std::span<Want> wants);
  std::vector<CaptureSealer::Tensor> copy(std::span<const TensorView> tensors, std::span<const Want> wants);
  void drop_unchanged(std::vector<CaptureSealer::Tensor>& captured, const Request& request);
  void carry(const Request& request);

  const Options options_;
  const std::function<void(std::uint64_t)> make_room_;
  SlabArena arena_;
  CopyCrew crew_;

  // The capturing thread's own.
  std::vector<std::uint64_t> tensor_bytes_;  ///< Of the prepared architecture.
  std::vector<Digest> digests_;              ///< Of the last capture; of the resumed version before the first.
  bool first_ = true;                        ///< Nothing was captured of this architecture yet.
  bool resumed_ = false;
  std::vector<bool> carried_;  ///< Tensors that a failed capture left undone.
  std::optional<Open> open_;

  CaptureSealer sealer_;  ///< Last: its thread uses the rest.
};

Status Capture::Impl::prepare(const Architecture& architecture) {
  abandon();
  sealer_.wait_idle();
  std::vector<std::uint64_t> sizes;
  std::uint64_t model_bytes = 0;
  for (const TensorSpec& spec : architecture.tensors()) {
    sizes.push_back(spec.bytes());
    model_bytes += sizes.back();
  }
  if (options_.arena_limit_bytes == 0) {
    const double kept_copies = static_cast<double>(std::max<std::size_t>(options_.kept_versions, 1) - 1);
    arena_.raise_limit(
        static_cast<std::uint64_t>((kDefaultLimitCopies + kept_copies) * static_cast<double>(model_bytes)) +
        kDefaultLimitExtraBytes);
  }
  // Every tensor as often as the arena is to have it, copy after copy; the last copy may be a part of one.
  const double copies = std::clamp(options_.arena_copies, 1.0, kArenaCopiesMax);
  if (model_bytes == 0) {
    return fail(Code::invalid_argument,
                format("there is nothing to serve: the model's {} tensors are empty", sizes.size()));
  }
  const auto wanted_bytes = static_cast<std::uint64_t>(copies * static_cast<double>(model_bytes));
  std::vector<Want> wants;
  std::uint64_t bytes = 0;
  for (double copy = 0; copy < copies; ++copy) {
    for (std::uint32_t tensor = 0; tensor < sizes.size(); ++tensor) {
      if (copy > 0 && bytes + sizes[tensor] > wanted_bytes) break;
      wants.push_back({.tensor = tensor, .bytes = sizes[tensor]});
      bytes += sizes[tensor];
    }
  }
  Status status;
  if (arena_.acquire(wants) > 0) status = arena_.grow(wants);
  const bool one_copy = std::all_of(wants.begin(), wants.begin() + static_cast<std::ptrdiff_t>(sizes.size()),
                                    [](const Want& want) { return want.segment.has_value(); });
  arena_.abandon(wants);
  if (!one_copy) return fail(std::move(status.error()).with_context("prepare memory for the model"));
  tensor_bytes_ = std::move(sizes);
  digests_.assign(tensor_bytes_.size(), Digest{});
  carried_.assign(tensor_bytes_.size(), false);
  first_ = true;
  resumed_ = false;
  return {};
}

void Capture::Impl::resume_from(std::vector<Digest> digests) {
  FRESHET_CHECK(first_ && digests.size() == tensor_bytes_.size());
  digests_ = std::move(digests);
  resumed_ = true;
}

Status Capture::Impl::begin() {
  if (tensor_bytes_.empty()) return fail(Code::failed_precondition, "capture: no memory was prepared");
  if (open_) return fail(Code::failed_precondition, "capture: one is open already");
  sealer_.wait_for_turn();
  open_.emplace();
  open_->place_of.resize(tensor_bytes_.size());
  return {};
}

Result<Capture::Receipt> Capture::Impl::add(std::span<const TensorView> tensors,
                                            std::span<const std::uint32_t> indices) {
  if (!open_) return fail(Code::failed_precondition, "capture: none is open");
  FRESHET_TRY(check_indices(indices));
  std::vector<Want> wants;
  Receipt receipt;
  std::vector<CopyTask> again;
  std::vector<std::size_t> again_at;
  for (const std::uint32_t tensor : indices) {
    if (tensors.size() != tensor_bytes_.size() || tensors[tensor].data.size() != tensor_bytes_[tensor]) {
      FRESHET_TRY(check(tensors));  // Which says what is wrong.
    }
    std::optional<std::size_t>& place = open_->place_of[tensor];
    if (place && *place < open_->tensors.size()) {
      again.push_back(
          {.to = arena_.memory(arena_.place(open_->tensors[*place].segment)), .from = tensors[tensor].data});
      again_at.push_back(*place);
    } else if (!place) {
      place = open_->tensors.size() + wants.size();
      wants.push_back({.tensor = tensor, .bytes = tensor_bytes_[tensor]});
    }
  }
  if (auto status = find_segments(wants); !status) {
    arena_.abandon(wants);
    for (const Want& want : wants) carried_[want.tensor] = !first_;
    abandon();
    return fail(std::move(status.error()).with_context("capture"));
  }
  auto captured = copy(tensors, wants);
  crew_.run(again);
  for (std::size_t i = 0; i < again.size(); ++i) open_->tensors[again_at[i]].digest = again[i].digest;
  receipt.tensors = captured.size() + again.size();
  for (const Want& want : wants) receipt.bytes += want.bytes;
  for (const CopyTask& task : again) receipt.bytes += task.from.size();
  open_->bytes += receipt.bytes;
  open_->tensors.insert(open_->tensors.end(), captured.begin(), captured.end());
  return receipt;
}

void Capture::Impl::abandon() {
  if (!open_) return;
  std::vector<SegmentIndex> segments;
  for (const auto& tensor : open_->tensors) {
    segments.push_back(tensor.segment);
    if (!first_) carried_[tensor.index] = true;
  }
  arena_.release(segments);
  open_.reset();
}

Result<Capture::Receipt> Capture::Impl::capture(const Request& request) {
  FRESHET_TRY(check(request.tensors));
  if (request.kind == Kind::only) FRESHET_TRY(check_indices(request.indices));
  if (!open_) sealer_.wait_for_turn();
  std::vector<Want> wants;
  for (const std::uint32_t tensor : tensors_wanted(request)) {
    if (open_ && open_->place_of[tensor]) continue;
    wants.push_back({.tensor = tensor, .bytes = tensor_bytes_[tensor]});
  }
  if (auto status = find_segments(wants); !status) {
    arena_.abandon(wants);
    carry(request);
    abandon();
    return fail(std::move(status.error()).with_context("capture"));
  }
  auto captured = copy(request.tensors, wants);
  Receipt receipt{.tensors = captured.size()};
  for (const Want& want : wants) receipt.bytes += want.bytes;
  if (open_) {
    receipt.tensors += open_->tensors.size();
    receipt.bytes += open_->bytes;
    captured.insert(captured.end(), open_->tensors.begin(), open_->tensors.end());
    std::ranges::sort(captured, {}, &CaptureSealer::Tensor::index);
    open_.reset();
  }
  drop_unchanged(captured, request);
  for (const auto& tensor : captured) digests_[tensor.index] = tensor.digest;
  const bool fresh = std::exchange(first_, false);
  std::fill(carried_.begin(), carried_.end(), false);
  sealer_.push({.ticket = request.ticket,
                .tensors_total = tensor_bytes_.size(),
                .fresh = fresh,
                .tensors = std::move(captured)});
  return receipt;
}

Status Capture::Impl::check(std::span<const TensorView> tensors) const {
  if (tensors.size() != tensor_bytes_.size()) {
    return fail(Code::failed_precondition,
                format("capture: {} tensors given, the architecture has {}", tensors.size(), tensor_bytes_.size()));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].data.size() == tensor_bytes_[i]) continue;
    return fail(Code::invalid_argument, format("capture: tensor {} has {} bytes, but the architecture has {}",
                                               tensors[i].spec.name, tensors[i].data.size(), tensor_bytes_[i]));
  }
  return {};
}

Status Capture::Impl::check_indices(std::span<const std::uint32_t> indices) const {
  for (const std::uint32_t index : indices) {
    if (index < tensor_bytes_.size()) continue;
    return fail(Code::invalid_argument,
                format("capture: tensor {} named as changed, there are {}", index, tensor_bytes_.size()));
  }
  return {};
}

std::vector<std::uint32_t> Capture::Impl::tensors_wanted(const Request& request) const {
  std::vector<std::uint32_t> wanted;
  if (first_ || request.kind != Kind::only) {
    wanted.resize(tensor_bytes_.size());
    std::iota(wanted.begin(), wanted.end(), 0u);
    return wanted;
  }
  wanted.assign(request.indices.begin(), request.indices.end());
  for (std::uint32_t tensor = 0; tensor < carried_.size(); ++tensor) {
    if (carried_[tensor]) wanted.push_back(tensor);
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

/// Room is found in three steps: what is free, new slabs up to the limit, and what others can give up. In this order,
/// since what is given up is a version that somebody waits for. Where make_room() only asks for it, as a publisher's
/// does, the room may be there for the next capture.
Status Capture::Impl::find_segments(std::span<Want> wants) {
  if (arena_.acquire(wants) == 0) return {};
  if (arena_.grow(wants)) return {};
  const std::uint64_t missing = arena_.acquire(wants);
  if (missing > 0 && make_room_) make_room_(missing);
  if (arena_.acquire(wants) == 0) return {};
  return arena_.grow(wants);
}

std::vector<CaptureSealer::Tensor> Capture::Impl::copy(std::span<const TensorView> tensors,
                                                       std::span<const Want> wants) {
  std::vector<CopyTask> tasks;
  for (const Want& want : wants) {
    tasks.push_back({.to = arena_.memory(arena_.place(*want.segment)), .from = tensors[want.tensor].data});
  }
  crew_.run(tasks);
  std::vector<CaptureSealer::Tensor> captured;
  for (std::size_t i = 0; i < wants.size(); ++i) {
    captured.push_back({.index = wants[i].tensor, .segment = *wants[i].segment, .digest = tasks[i].digest});
  }
  return captured;
}

/// Gives back the copies of tensors that are as they were, except those that the caller said changed. The first capture
/// keeps every copy, since nobody else has the bytes here, and only notes which equal the resumed version's.
void Capture::Impl::drop_unchanged(std::vector<CaptureSealer::Tensor>& captured, const Request& request) {
  if (first_) {
    for (auto& tensor : captured) tensor.changed = !resumed_ || tensor.digest != digests_[tensor.index];
    return;
  }
  if (request.kind == Kind::all) return;
  std::vector<bool> told(tensor_bytes_.size(), false);
  if (request.kind == Kind::only) {
    for (const std::uint32_t index : request.indices) told[index] = true;
  }
  std::vector<SegmentIndex> unchanged;
  std::erase_if(captured, [&](const CaptureSealer::Tensor& tensor) {
    if (told[tensor.index] || tensor.digest != digests_[tensor.index]) return false;
    unchanged.push_back(tensor.segment);
    return true;
  });
  arena_.release(unchanged);
}

void Capture::Impl::carry(const Request& request) {
  if (first_) return;  // The next one takes everything anyway.
  if (request.kind == Kind::only) {
    for (const std::uint32_t index : request.indices) carried_[index] = true;
  } else {
    std::fill(carried_.begin(), carried_.end(), true);
  }
}

Result<std::unique_ptr<Capture>> Capture::open(Options options, Hooks hooks) {
  if (!hooks.on_sealed) return fail(Code::invalid_argument, "open a capture: on_sealed is missing");
  if (!std::isfinite(options.arena_copies) || options.arena_copies < 1.0) {
    return fail(Code::invalid_argument, format("open a capture: {} copies of the model", options.arena_copies));
  }
  try {
    return std::unique_ptr<Capture>(new Capture(std::make_unique<Impl>(std::move(options), std::move(hooks))));
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a capture's thread: {}", error.what()));
  }
}

Capture::Capture(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Capture::~Capture() = default;

Status Capture::prepare(const Architecture& architecture) { return impl_->prepare(architecture); }
void Capture::resume_from(std::vector<Digest> digests) { impl_->resume_from(std::move(digests)); }
Status Capture::begin() { return impl_->begin(); }
Result<Capture::Receipt> Capture::add(std::span<const TensorView> tensors, std::span<const std::uint32_t> indices) {
  return impl_->add(tensors, indices);
}
void Capture::abandon() { impl_->abandon(); }
bool Capture::is_open() const { return impl_->is_open(); }
Result<Capture::Receipt> Capture::capture(const Request& request) { return impl_->capture(request); }
void Capture::free(std::span<const SegmentIndex> segments) { impl_->arena().release(segments); }
Status Capture::wait_idle(Duration at_most) { return impl_->sealer().wait_idle(at_most); }
std::vector<std::uint64_t> Capture::drop_unbegun() { return impl_->sealer().drop_unbegun(); }
std::vector<Capture::SlabReference> Capture::slabs() const { return impl_->arena().slabs(); }
std::vector<Bytes> Capture::slab_memory() const { return impl_->arena().slab_memory(); }
Bytes Capture::bytes(const SegmentPlace& place) const { return std::as_const(impl_->arena()).bytes(place); }
std::vector<Bytes> Capture::bytes_of(std::span<const SegmentIndex> segments) const {
  return std::as_const(impl_->arena()).bytes_of(segments);
}

Capture::Stat Capture::stat() const {
  SlabArena& arena = impl_->arena();
  return {.arena_bytes = arena.slab_bytes(),
          .arena_free_bytes = arena.free_bytes(),
          .locked_bytes = arena.locked_bytes(),
          .arena_limit_bytes = arena.limit_bytes()};
}

}  // namespace freshet
