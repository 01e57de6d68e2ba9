// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/rows.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>

#include "benchmarks/gpu/delta_rows.h"
#include "benchmarks/gpu/model_on_device.h"
#include "core/arena/slab.h"
#include "core/base/format.h"
#include "core/gpu/digester.h"
#include "core/gpu/host_pages.h"
#include "transport/publish/device_copier.h"

namespace freshet::benchmarks {
namespace {

struct GpuRun {
  const std::shared_ptr<gpu::Platform>& platform;
  const GpuSizes& sizes;
  ModelOnDevice& model;
  Report& report;
};

Status digest_vs_copy(const GpuRun& run) {
  ModelOnDevice& model = run.model;
  std::vector<Bytes> ranges;
  for (std::uint64_t i = 0; i < model.tensors(); ++i) {
    ranges.push_back({model.new_version() + i * model.tensor_bytes(), model.tensor_bytes()});
  }
  gpu::Digester digester(model.shared_device());
  const auto ours = [&]() -> Result<double> {
    gpu::Digester::Job job;
    auto ms = model.ms([&] { return digester.queue(model.stream(), ranges, job); });
    FRESHET_TRY(model.finish());
    if (!ms) return ms;
    for (const Digest& digest : job.digests()) {
      if (digest != model.digest_of_new_tensor()) {
        return fail(Code::corrupt,
                    format("the digest is {}, and not {}", to_hex(digest), to_hex(model.digest_of_new_tensor())));
      }
    }
    digester.give_back(std::move(job));
    return ms;
  };
  return model.compare(
      "digest_vs_copy", "device copy", [&] { return model.copy_ms(model.new_version()); }, ours, run.report);
}

Status delta_vs_copy(const GpuRun& run, double share, const std::string& suffix) {
  ModelOnDevice& model = run.model;
  FRESHET_TRY(model.write(share));
  FRESHET_ASSIGN(const auto delta, DeltaOnDevice::make(model));
  const auto peer = [&] { return model.copy_ms(model.new_version()); };
  FRESHET_TRY(model.compare(
      "diff_pack_vs_copy_" + suffix, "device copy", peer, [&] { return delta->pack_ms(false); }, run.report));
  if (suffix == "1pct") {
    FRESHET_TRY(model.compare(
        "fused_vs_copy", "device copy", peer, [&] { return delta->pack_ms(true); }, run.report));
  }
  return model.compare(
      "apply_vs_copy_" + suffix, "device copy", peer, [&] { return delta->apply_ms(); }, run.report);
}

Status deltas_vs_copy(const GpuRun& run) {
  FRESHET_TRY(delta_vs_copy(run, 0.01, "1pct"));
  return delta_vs_copy(run, 0.08, "8pct");
}

Status ipc_vs_local(const GpuRun& run) {
  ModelOnDevice& model = run.model;
  FRESHET_ASSIGN(FileDescriptor descriptor, model.device().export_slab(model.new_memory()));
  FRESHET_ASSIGN(const gpu::Memory imported,
                 model.device().import_slab(std::move(descriptor), model.new_memory().bytes()));
  const auto ours = [&]() -> Result<double> {
    FRESHET_TRY(model.copy(model.fresh(), model.old_version(), model.bytes()));
    FRESHET_TRY(model.finish());
    FRESHET_ASSIGN(const double ms, model.copy_ms(imported.address()));
    FRESHET_TRY(model.check_new(model.fresh()));
    return ms;
  };
  return model.compare(
      "ipc_vs_local", "device copy", [&] { return model.copy_ms(model.new_version()); }, ours, run.report);
}

Status capture_vs_pinned(const GpuRun& run) {
  ModelOnDevice& model = run.model;
  const std::uint64_t bytes = std::min(run.sizes.captured_bytes, model.bytes());
  FRESHET_ASSIGN(const auto pages, gpu::HostPages::make(model.device(), bytes));
  FRESHET_ASSIGN(Slab slab, Slab::create("gpu", {.bytes = bytes, .lock = false}));
  const MutableBytes to = slab.memory().first(bytes);
  DeviceCopier copier(run.platform);
  copier.add_slab(slab.memory(), nullptr);
  TensorView view{.spec = {.name = "w", .dtype = DType::u8, .shape = {bytes}}, .data = {model.new_version(), bytes}};
  view.place = {
      .memory = MemoryKind::device, .device = 0, .stream = reinterpret_cast<std::uintptr_t>(model.stream().native)};
  const auto ours = [&]() -> Result<double> {
    const auto promise = std::make_shared<std::promise<TensorCopier::Copied>>();
    const auto begin = std::chrono::steady_clock::now();
    const Status issued = copier.issue({{.to = to, .from = view.data, .tensor = &view}},
                                       [promise](auto copied) { promise->set_value(std::move(copied)); });
    const TensorCopier::Copied copied = promise->get_future().get();
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
    FRESHET_TRY(Status(issued));
    if (!copied) return fail(Error(copied.error()));
    if (std::memcmp(to.data(), pages->begin(), bytes) != 0) {
      return fail(Code::corrupt, "the arena has other bytes than the pinned memory");
    }
    return ms.count();
  };
  const auto peer = [&] {
    std::fill(to.begin(), to.end(), std::byte{0});
    return model.ms([&] { return model.copy(pages->begin(), view.data.data(), bytes); });
  };
  return model.compare("capture_vs_pinned", "pinned copy", peer, ours, run.report);
}

struct GpuRow {
  std::vector<std::string_view> ratios;
  Status (*measure)(const GpuRun& run);
};

const std::vector<GpuRow>& gpu_row_list() {
  static const std::vector<GpuRow> rows = {
      {.ratios = {"ipc_vs_local"}, .measure = ipc_vs_local},
      {.ratios = {"digest_vs_copy"}, .measure = digest_vs_copy},
      {.ratios = {"capture_vs_pinned"}, .measure = capture_vs_pinned},
      {.ratios = {"diff_pack_vs_copy_1pct", "fused_vs_copy", "apply_vs_copy_1pct", "diff_pack_vs_copy_8pct",
                  "apply_vs_copy_8pct"},
       .measure = deltas_vs_copy},
  };
  return rows;
}

Result<std::unique_ptr<ModelOnDevice>> open_model(gpu::Platform& platform, const GpuSizes& sizes) {
  FRESHET_ASSIGN(const auto devices, platform.devices());
  FRESHET_ASSIGN(auto device, platform.open(devices.front().uuid));
  FRESHET_ASSIGN(auto model, ModelOnDevice::make(std::move(device), sizes));
  FRESHET_TRY(model->write(0.01));
  return model;
}

void skip_ratio(std::string_view ratio, std::string_view why, Report& report) {
  if (report.has_ratio(std::string(ratio))) return;
  report.skip(std::string(ratio), format("not measured: {}", why));
}

}  // namespace

std::vector<std::string_view> gpu_ratio_names() {
  std::vector<std::string_view> names;
  for (const GpuRow& row : gpu_row_list()) names.insert(names.end(), row.ratios.begin(), row.ratios.end());
  return names;
}

void skip_gpu(std::string_view why, Report& report) {
  for (const std::string_view ratio : gpu_ratio_names()) skip_ratio(ratio, why, report);
}

void measure_gpu(const std::shared_ptr<gpu::Platform>& platform, const GpuSizes& sizes, Report& report) {
  const auto model = open_model(*platform, sizes);
  if (!model) return skip_gpu(model.error().message(), report);
  const GpuRun run{.platform = platform, .sizes = sizes, .model = **model, .report = report};
  for (const GpuRow& row : gpu_row_list()) {
    const Status measured = row.measure(run);
    for (const std::string_view ratio : row.ratios) {
      if (!measured) skip_ratio(ratio, measured.error().message(), report);
    }
  }
}

}  // namespace freshet::benchmarks
