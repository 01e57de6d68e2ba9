// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/capture.h"

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "transport/publish/copy_crew.h"

namespace freshet {
namespace {

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

bool is_on_device(const TensorView& tensor) { return !is_readable_by_host(tensor.place.memory); }

}  // namespace

Capture::Capture(Options options, Hooks hooks, std::unique_ptr<TensorCopier> copier,
                 std::unique_ptr<TensorCopier> device_copier)
    : options_(std::move(options)),
      make_room_(std::move(hooks.make_room)),
      tell_of_slab_(std::move(hooks.on_slab)),
      arena_({.name = options_.name,
              .lock_memory = options_.lock_memory,
              .huge_pages = options_.huge_pages,
              .on_slab = [this](const std::shared_ptr<Slab>& slab) { on_slab(slab); }}),
      device_arena_(options_.name, options_.device_memory),
      copier_(copier != nullptr ? std::move(copier) : std::make_unique<CopyCrew>(helpers_of(options_))),
      device_copier_(std::move(device_copier)),
      sealer_(arena_, device_arena_.slabs(), pairs_, device_copier_.get(), std::move(hooks.on_sealed),
              std::move(hooks.on_failed)) {}

/// The worker waits for copies; a copier that ends completes them. What lies in a GPU's memory the worker brings first.
Capture::~Capture() {
  copier_.reset();
  if (device_copier_ != nullptr) device_copier_->end();
  sealer_.finish();
  device_copier_.reset();
}

std::vector<std::uint64_t> Capture::drop_unbegun() {
  std::vector<std::uint64_t> dropped = sealer_.drop_unbegun();
  if (device_copier_ != nullptr) device_copier_->end();
  return dropped;
}

void Capture::on_slab(const std::shared_ptr<Slab>& slab) {
  copier_->add_slab(slab->memory(), slab);
  if (device_copier_ != nullptr) device_copier_->add_slab(slab->memory(), slab);
  if (tell_of_slab_) tell_of_slab_(slab->memory());
}

/// A GPU's copies complete when the training step has come as far: the loop would wait for its own device.
Status Capture::take_turn(std::span<const TensorView> tensors) {
  const bool may_wait = std::ranges::none_of(tensors, is_on_device);
  if (sealer_.wait_for_turn(may_wait ? options_.wait_at_most : Duration::zero())) return {};
  return fail(Code::out_of_space,
              format("capture: two versions before this one are not sealed {}; the next publish "
                     "takes the changes along",
                     may_wait ? "in time, as when a GPU hangs" : "yet, and the loop does not wait for its GPU"));
}

/// Of one copier, later copies come later; the copies before may be another's.
Status Capture::wait_for_copies() const {
  const Time deadline = deadline_in(options_.wait_at_most);
  for (const auto& copies : open_->copies) {
    if (copies->wait_until(deadline)) continue;
    return fail(Code::out_of_space,
                "an earlier copy of a tensor did not end in time, as when a GPU hangs; the next publish takes the "
                "changes along");
  }
  return {};
}

Status Capture::prepare(const Architecture& architecture) {
  abandon();
  FRESHET_TRY(sealer_.wait_idle(options_.wait_at_most));
  std::vector<std::uint64_t> sizes;
  for (const TensorSpec& spec : architecture.tensors()) sizes.push_back(spec.bytes());
  if (std::ranges::all_of(sizes, [](std::uint64_t bytes) { return bytes == 0; })) {
    return fail(Code::invalid_argument,
                format("there is nothing to serve: the model's {} tensors are empty", sizes.size()));
  }
  FRESHET_TRY(
      arena_.prepare(sizes, {.limit_bytes = options_.arena_limit_bytes, .kept_versions = options_.kept_versions}));
  device_arena_.prepare(sizes);
  tensor_bytes_ = std::move(sizes);
  missed_.assign(tensor_bytes_.size(), true);
  is_first_ = true;
  ahead_bytes_ = 0;
  sealer_.begin_architecture(tensor_bytes_.size());
  return {};
}

Status Capture::begin(std::span<const TensorView> tensors) {
  if (tensor_bytes_.empty()) return fail(Code::failed_precondition, "capture: no memory was prepared");
  if (open_) return fail(Code::failed_precondition, "capture: another capture is open");
  if (auto status = take_turn(tensors); !status) {
    missed_.assign(missed_.size(), true);  // Nobody said yet which have changed.
    return status;
  }
  open_.emplace();
  open_->segment_of.resize(tensor_bytes_.size());
  return {};
}

Result<Capture::Receipt> Capture::add(std::span<const TensorView> tensors, std::span<const std::uint32_t> indices) {
  if (!open_) return fail(Code::failed_precondition, "capture: no capture is open");
  FRESHET_TRY(check_indices(indices));
  std::vector<std::uint32_t> given(indices.begin(), indices.end());
  std::ranges::sort(given);
  given.erase(std::unique(given.begin(), given.end()), given.end());
  std::vector<Want> wants;
  bool is_host_again = false;
  for (const std::uint32_t tensor : given) {
    if (tensors.size() != tensor_bytes_.size() || tensors[tensor].data.size() != tensor_bytes_[tensor]) {
      FRESHET_TRY(check(tensors));  // Which says what is wrong.
    }
    is_host_again = is_host_again || (open_->segment_of[tensor] && !is_on_device(tensors[tensor]));
    wants.push_back({.tensor = tensor, .bytes = tensor_bytes_[tensor], .segment = open_->segment_of[tensor]});
  }
  Status status = is_host_again ? wait_for_copies() : Status();
  if (status) status = find_segments(wants);
  if (!status) {
    std::erase_if(wants, [&](const Want& want) { return open_->segment_of[want.tensor].has_value(); });
    for (const Want& want : wants) missed_[want.tensor] = true;
    arena_.abandon(wants);
    abandon();
    return fail(std::move(status.error()).with_context("capture"));
  }
  auto issued = issue(tensors, wants, DeviceArena::Segments(wants.size()), open_->copies);
  for (const Want& want : wants) open_->segment_of[want.tensor] = want.segment;
  if (!issued) {
    abandon();
    return fail(std::move(issued.error()).with_context("capture"));
  }
  const Receipt receipt = *issued;
  open_->receipt.tensors += receipt.tensors;
  open_->receipt.bytes += receipt.bytes;
  return receipt;
}

void Capture::abandon() {
  if (!open_) return;
  for (std::size_t tensor = 0; tensor < missed_.size(); ++tensor) {
    if (open_->segment_of[tensor]) missed_[tensor] = true;
  }
  sealer_.push({.copies = std::move(open_->copies), .is_given_up = true});
  open_.reset();
}

Result<Capture::Receipt> Capture::capture(const Request& request) {
  FRESHET_TRY(check(request.tensors));
  if (request.kind == Kind::only) FRESHET_TRY(check_indices(request.indices));
  if (!open_) {
    if (auto status = take_turn(request.tensors); !status) {
      mark_wanted(missed_, request);
      return fail(std::move(status.error()));
    }
  }
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
  const auto on_device = device_arena_.acquire(request.tensors, wants, device_copier_.get());
  const auto issued = issue(request.tensors, wants, on_device, taken.copies);
  if (!issued) {
    for (const Want& want : wants) missed_[want.tensor] = true;
    for (std::size_t tensor = 0; tensor < taken.segment_of.size(); ++tensor) {
      if (taken.segment_of[tensor]) missed_[tensor] = true;
    }
    // What was begun may still be written to: its segments go back when that has ended.
    sealer_.push({.copies = std::move(taken.copies), .is_given_up = true});
    return fail(Error(issued.error()).with_context("capture"));
  }
  const Receipt receipt = *issued;
  std::vector<std::uint32_t> captured;
  for (const Want& want : wants) captured.push_back(want.tensor);
  for (std::uint32_t tensor = 0; tensor < taken.segment_of.size(); ++tensor) {
    if (taken.segment_of[tensor]) captured.push_back(tensor);
  }
  std::fill(missed_.begin(), missed_.end(), false);
  CaptureSealer::Job job{.ticket = request.ticket, .kind = request.kind, .copies = std::move(taken.copies)};
  if (request.kind == Kind::only) job.named.assign(request.indices.begin(), request.indices.end());
  sealer_.push(std::move(job));
  touch_ahead(request, std::move(captured));
  return Receipt{.tensors = receipt.tensors + taken.receipt.tensors, .bytes = receipt.bytes + taken.receipt.bytes};
}

Status Capture::check(std::span<const TensorView> tensors) const {
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

Status Capture::check_indices(std::span<const std::uint32_t> indices) const {
  for (const std::uint32_t index : indices) {
    if (index < tensor_bytes_.size()) continue;
    return fail(Code::invalid_argument, format("capture: tensor {} is named as changed, and there are {} tensors",
                                               index, tensor_bytes_.size()));
  }
  return {};
}

std::vector<std::uint32_t> Capture::tensors_wanted(const Request& request) {
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
Status Capture::find_segments(std::span<Want> wants) {
  if (arena_.acquire(wants) == 0) return {};
  if (arena_.grow(wants)) return {};
  const std::uint64_t missing = arena_.acquire(wants);
  if (missing > 0 && make_room_) make_room_(missing);
  if (arena_.acquire(wants) == 0) return {};
  return arena_.grow(wants);
}

/// The versions that live beside the newest have what they changed, so the arena gets room for as many changes as
/// captures have shown. The first capture of an architecture shows what its caller names; without names, the next one
/// copies the model to compare it, and that one shows how much a version takes.
void Capture::touch_ahead(const Request& request, std::vector<std::uint32_t> captured) {
  double copies = options_.arena_copies - 1;
  if (std::exchange(is_first_, false)) {
    if (request.kind == Kind::only) {
      captured.assign(request.indices.begin(), request.indices.end());
      std::ranges::sort(captured);
      captured.erase(std::unique(captured.begin(), captured.end()), captured.end());
    } else {
      copies = std::min(copies, 1.0);
    }
  }
  std::vector<std::uint64_t> sizes;
  for (const std::uint32_t tensor : captured) sizes.push_back(tensor_bytes_[tensor]);
  const auto ahead_bytes = static_cast<std::uint64_t>(copies * static_cast<double>(span_of_copy(sizes)));
  if (ahead_bytes <= ahead_bytes_) return;
  ahead_bytes_ = ahead_bytes;
  arena_.touch_ahead(sizes, span_of_copy(tensor_bytes_) + ahead_bytes);
}

std::vector<SlabReference> Capture::slabs() const {
  std::vector<SlabReference> all = arena_.slabs();
  const std::vector<SlabReference> on_device = device_arena_.slabs().slabs();
  all.insert(all.end(), on_device.begin(), on_device.end());
  return all;
}

Result<Capture::Receipt> Capture::issue(std::span<const TensorView> tensors, std::span<const Want> wants,
                                        const DeviceArena::Segments& on_device, CaptureSealer::Copies& copies) {
  struct Part {
    std::vector<CapturedTensor> captured;
    std::vector<TensorCopy> list;
  };
  Receipt receipt{.tensors = wants.size()};
  Part of_host;
  Part of_device;
  SlabArena& device_slabs = device_arena_.slabs();
  for (std::size_t i = 0; i < wants.size(); ++i) {
    const Want& want = wants[i];
    const TensorView& tensor = tensors[want.tensor];
    Part& part = is_on_device(tensor) ? of_device : of_host;
    const bool is_paired = pairs_.take(*want.segment, on_device[i]);
    part.captured.push_back(
        {.index = want.tensor, .segment = *want.segment, .on_device = on_device[i], .is_paired = is_paired});
    part.list.push_back({.to = arena_.memory(arena_.place(*want.segment)),
                         .from = tensor.data,
                         .tensor = &tensor,
                         .is_paired = is_paired});
    if (on_device[i]) part.list.back().via = device_slabs.memory(device_slabs.place(*on_device[i]));
    receipt.bytes += want.bytes;
  }
  Status status;
  // The device's first: what it refuses costs no copy, and it copies while the processor does.
  for (Part* const part : {&of_device, &of_host}) {
    if (part->list.empty()) continue;
    const bool lack_bytes =
        part == &of_device && std::ranges::any_of(part->list, [](const TensorCopy& copy) { return !copy.via.empty(); });
    const auto issued = std::make_shared<IssuedCopies>(std::move(part->captured), lack_bytes);
    copies.push_back(issued);
    TensorCopier* const copier = part == &of_host ? copier_.get() : device_copier_.get();
    auto done = [issued](TensorCopier::Copied copied) { issued->complete(std::move(copied)); };
    if (!status) {
      done(fail(Error(status.error())));  // The version comes to nothing already.
    } else if (copier == nullptr) {
      status =
          fail(Code::unsupported, "a tensor lies in a GPU's memory, and this publisher copies from host memory alone");
      done(fail(Error(status.error())));
    } else {
      status = copier->issue(std::move(part->list), std::move(done));
    }
  }
  if (!status) return fail(std::move(status.error()));
  return receipt;
}

Result<std::unique_ptr<Capture>> Capture::open(Options options, Hooks hooks, std::unique_ptr<TensorCopier> copier,
                                               std::unique_ptr<TensorCopier> device_copier) {
  if (!hooks.on_sealed) return fail(Code::invalid_argument, "open a capture: on_sealed is missing");
  if (!std::isfinite(options.arena_copies) || options.arena_copies < 1.0) {
    return fail(Code::invalid_argument, format("open a capture: {} copies of the model", options.arena_copies));
  }
  try {
    return std::unique_ptr<Capture>(
        new Capture(std::move(options), std::move(hooks), std::move(copier), std::move(device_copier)));
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a capture's thread: {}", error.what()));
  }
}

}  // namespace freshet
