// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/capture.h"

#include <algorithm>
#include <cmath>
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

/// Marks the tensors that the request asks for.
void mark_wanted(std::vector<bool>& tensors, const Capture::Request& request) {
  if (request.kind != Capture::Kind::only) return tensors.assign(tensors.size(), true);
  for (const std::uint32_t index : request.indices) tensors[index] = true;
}

}  // namespace

class Capture::Impl {
 public:
  Impl(Options options, Hooks hooks, std::unique_ptr<TensorCopier> copier)
      : options_(std::move(options)),
        hooks_(std::move(hooks)),
        arena_({.name = options_.name,
                .lock_memory = options_.lock_memory,
                .huge_pages = options_.huge_pages,
                .on_slab = hooks_.on_slab}),
        copier_(copier != nullptr ? std::move(copier) : std::make_unique<CopyCrew>(helpers_of(options_))),
        sealer_(arena_, hooks_) {
    arena_.raise_limit(options_.arena_limit_bytes);
  }
  /// The worker waits for copies; a copier that ends completes them.
  ~Impl() { copier_.reset(); }

  Status prepare(const Architecture& architecture);
  Status begin();
  Result<Receipt> add(std::span<const TensorView> tensors, std::span<const std::uint32_t> indices);
  void abandon();
  bool is_open() const { return open_.has_value(); }
  MemoryKind memory_kind() const { return copier_->memory_kind(); }
  Result<Receipt> capture(const Request& request);

  SlabArena& arena() { return arena_; }
  CaptureSealer& sealer() { return sealer_; }

 private:
  using Want = SlabArena::Want;

  /// What add() issued.
  struct Open {
    CaptureSealer::Copies copies;
    std::vector<std::optional<SegmentIndex>> segment_of;  ///< By tensor.
    Receipt receipt;
  };

  Status check(std::span<const TensorView> tensors) const;
  Status check_indices(std::span<const std::uint32_t> indices) const;
  std::vector<std::uint32_t> tensors_wanted(const Request& request);
  Status find_segments(std::span<Want> wants);
  Receipt issue(std::span<const TensorView> tensors, std::span<const Want> wants, CaptureSealer::Copies& copies);

  const Options options_;
  Hooks hooks_;
  SlabArena arena_;
  std::unique_ptr<TensorCopier> copier_;  ///< It writes into the arena until it is gone.

  // The capturing thread's own.
  std::vector<std::uint64_t> tensor_bytes_;  ///< Of the prepared architecture.
  std::vector<bool> missed_;                 ///< Tensors that the next capture takes, whatever is named.
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
  missed_.assign(tensor_bytes_.size(), true);
  sealer_.begin_architecture(tensor_bytes_.size());
  return {};
}

Status Capture::Impl::begin() {
  if (tensor_bytes_.empty()) return fail(Code::failed_precondition, "capture: no memory was prepared");
  if (open_) return fail(Code::failed_precondition, "capture: one is open already");
  sealer_.wait_for_turn();
  open_.emplace();
  open_->segment_of.resize(tensor_bytes_.size());
  return {};
}

Result<Capture::Receipt> Capture::Impl::add(std::span<const TensorView> tensors,
                                            std::span<const std::uint32_t> indices) {
  if (!open_) return fail(Code::failed_precondition, "capture: none is open");
  FRESHET_TRY(check_indices(indices));
  std::vector<std::uint32_t> given(indices.begin(), indices.end());
  std::ranges::sort(given);
  given.erase(std::unique(given.begin(), given.end()), given.end());
  std::vector<Want> wants;
  bool is_again = false;
  for (const std::uint32_t tensor : given) {
    if (tensors.size() != tensor_bytes_.size() || tensors[tensor].data.size() != tensor_bytes_[tensor]) {
      FRESHET_TRY(check(tensors));  // Which says what is wrong.
    }
    is_again = is_again || open_->segment_of[tensor];
    wants.push_back({.tensor = tensor, .bytes = tensor_bytes_[tensor], .segment = open_->segment_of[tensor]});
  }
  if (auto status = find_segments(wants); !status) {
    std::erase_if(wants, [&](const Want& want) { return open_->segment_of[want.tensor].has_value(); });
    for (const Want& want : wants) missed_[want.tensor] = true;
    arena_.abandon(wants);
    abandon();
    return fail(std::move(status.error()).with_context("capture"));
  }
  if (is_again) {
    for (const auto& copies : open_->copies) copies->wait();
  }
  const Receipt receipt = issue(tensors, wants, open_->copies);
  for (const Want& want : wants) open_->segment_of[want.tensor] = want.segment;
  open_->receipt.tensors += receipt.tensors;
  open_->receipt.bytes += receipt.bytes;
  return receipt;
}

void Capture::Impl::abandon() {
  if (!open_) return;
  for (std::size_t tensor = 0; tensor < missed_.size(); ++tensor) {
    if (open_->segment_of[tensor]) missed_[tensor] = true;
  }
  sealer_.push({.copies = std::move(open_->copies), .is_given_up = true});
  open_.reset();
}

Result<Capture::Receipt> Capture::Impl::capture(const Request& request) {
  FRESHET_TRY(check(request.tensors));
  if (request.kind == Kind::only) FRESHET_TRY(check_indices(request.indices));
  if (!open_) sealer_.wait_for_turn();
  std::vector<Want> wants;
  for (const std::uint32_t tensor : tensors_wanted(request)) {
    if (open_ && open_->segment_of[tensor]) continue;
    wants.push_back({.tensor = tensor, .bytes = tensor_bytes_[tensor]});
  }
  if (auto status = find_segments(wants); !status) {
    arena_.abandon(wants);
    mark_wanted(missed_, request);  // What this capture had no room for is the next one's.
    abandon();
    return fail(std::move(status.error()).with_context("capture"));
  }
  Open taken;
  if (open_) taken = *std::exchange(open_, std::nullopt);
  const Receipt receipt = issue(request.tensors, wants, taken.copies);
  std::fill(missed_.begin(), missed_.end(), false);
  CaptureSealer::Job job{.ticket = request.ticket, .kind = request.kind, .copies = std::move(taken.copies)};
  if (request.kind == Kind::only) job.named.assign(request.indices.begin(), request.indices.end());
  sealer_.push(std::move(job));
  return Receipt{.tensors = receipt.tensors + taken.receipt.tensors, .bytes = receipt.bytes + taken.receipt.bytes};
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

std::vector<std::uint32_t> Capture::Impl::tensors_wanted(const Request& request) {
  for (const std::uint32_t tensor : sealer_.lost()) missed_[tensor] = true;
  std::vector<bool> is_wanted = missed_;
  mark_wanted(is_wanted, request);
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t tensor = 0; tensor < is_wanted.size(); ++tensor) {
    if (is_wanted[tensor]) wanted.push_back(tensor);
  }
  return wanted;
}

/// Room is found in three steps: what is free, new slabs up to the limit, and what others can give up. In this order,
/// since what is given up is a version that somebody waits for. Where make_room() only asks for it, as a publisher's
/// does, the room may be there for the next capture.
Status Capture::Impl::find_segments(std::span<Want> wants) {
  if (arena_.acquire(wants) == 0) return {};
  if (arena_.grow(wants)) return {};
  const std::uint64_t missing = arena_.acquire(wants);
  if (missing > 0 && hooks_.make_room) hooks_.make_room(missing);
  if (arena_.acquire(wants) == 0) return {};
  return arena_.grow(wants);
}

Capture::Receipt Capture::Impl::issue(std::span<const TensorView> tensors, std::span<const Want> wants,
                                      CaptureSealer::Copies& copies) {
  Receipt receipt{.tensors = wants.size()};
  if (wants.empty()) return receipt;
  std::vector<CapturedTensor> captured;
  std::vector<TensorCopy> list;
  for (const Want& want : wants) {
    captured.push_back({.index = want.tensor, .segment = *want.segment});
    list.push_back({.to = arena_.memory(arena_.place(*want.segment)), .from = tensors[want.tensor].data});
    receipt.bytes += want.bytes;
  }
  const auto issued = std::make_shared<IssuedCopies>(std::move(captured));
  copies.push_back(issued);
  copier_->issue(std::move(list), [issued](TensorCopier::Copied copied) { issued->complete(std::move(copied)); });
  return receipt;
}

Result<std::unique_ptr<Capture>> Capture::open(Options options, Hooks hooks,
                                               std::unique_ptr<TensorCopier> copier) {
  if (!hooks.on_sealed) return fail(Code::invalid_argument, "open a capture: on_sealed is missing");
  if (!std::isfinite(options.arena_copies) || options.arena_copies < 1.0) {
    return fail(Code::invalid_argument, format("open a capture: {} copies of the model", options.arena_copies));
  }
  try {
    return std::unique_ptr<Capture>(
        new Capture(std::make_unique<Impl>(std::move(options), std::move(hooks), std::move(copier))));
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a capture's thread: {}", error.what()));
  }
}

Capture::Capture(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Capture::~Capture() = default;

Status Capture::prepare(const Architecture& architecture) { return impl_->prepare(architecture); }
void Capture::resume_from(std::vector<Digest> digests) { impl_->sealer().resume_from(digests); }
Status Capture::begin() { return impl_->begin(); }
Result<Capture::Receipt> Capture::add(std::span<const TensorView> tensors, std::span<const std::uint32_t> indices) {
  return impl_->add(tensors, indices);
}
void Capture::abandon() { impl_->abandon(); }
bool Capture::is_open() const { return impl_->is_open(); }
MemoryKind Capture::memory_kind() const { return impl_->memory_kind(); }
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
