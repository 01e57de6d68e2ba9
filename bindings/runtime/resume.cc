// SPDX-License-Identifier: Apache-2.0
#include "bindings/runtime/resume.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

/// The newest one with weights; nothing where there is none.
Result<std::optional<VersionRecord>> newest_record(const Repository& repository, const std::string& model) {
  FRESHET_TRY(check_model_name(model));
  const Result<std::vector<LineageRow>> rows = repository.versions(model);
  if (!rows && rows.error().code() == Code::not_found) return std::optional<VersionRecord>();
  if (!rows) return fail(rows.error());
  for (const LineageRow& row : std::views::reverse(*rows)) {
    if (row.retired) continue;
    FRESHET_ASSIGN(VersionRecord record, repository.get(row.version));
    if (record.has_weights) return std::optional(std::move(record));
  }
  return std::optional<VersionRecord>();
}

Result<std::vector<Repository::TensorRead>> reads_of(const VersionRecord& record,
                                                     std::span<const TensorMemory> tensors) {
  const Architecture& architecture = *record.manifest.architecture;
  std::vector<Repository::TensorRead> reads;
  for (const TensorMemory& tensor : tensors) {
    const std::string name = shown(tensor.spec.name);
    const std::string of = format("resume {}: tensor {}", to_string(record.manifest.name), name);
    FRESHET_TRY(tensor.spec.check());
    if (tensor.data.size() != tensor.spec.bytes()) {
      return fail(Code::invalid_argument, format("{} has {} bytes of memory, and {} by its shape", of,
                                                 tensor.data.size(), tensor.spec.bytes()));
    }
    const auto index = architecture.tensor_named(tensor.spec.name);
    if (!index) return fail(Code::failed_precondition, format("{}: the version has no tensor of this name", of));
    const TensorSpec& stored = architecture.tensors()[*index];
    if (!same_form(stored, tensor.spec)) {
      return fail(Code::failed_precondition,
                  format("{} is {}, and {} in the version", of, describe(tensor.spec.dtype, tensor.spec.shape),
                         describe(stored.dtype, stored.shape)));
    }
    reads.push_back({.tensor = *index, .out = tensor.data});
  }
  return reads;
}

}  // namespace

std::vector<TensorView> views_of(std::span<const TensorMemory> tensors) {
  std::vector<TensorView> views;
  for (const TensorMemory& tensor : tensors) views.push_back({.spec = tensor.spec, .data = tensor.data});
  return views;
}

Result<Resumed> resume(const Repository& repository, const std::string& version,
                       std::span<const TensorMemory> tensors) {
  std::optional<VersionRecord> record;
  if (version.find('@') == version.npos) {
    FRESHET_ASSIGN(record, newest_record(repository, version));
    if (!record) return Resumed();
  } else {
    FRESHET_ASSIGN(const VersionName name, repository.resolve(version));
    FRESHET_ASSIGN(record, repository.get(name));
    if (!record->has_weights) {
      return fail(Code::failed_precondition, format("resume {}: the version is a graph without weights", version));
    }
  }
  FRESHET_ASSIGN(const std::vector<Repository::TensorRead> reads, reads_of(*record, tensors));
  FRESHET_TRY(repository.read(*record, reads));
  const std::uint64_t step = record->manifest.step;
  return Resumed{.manifest = std::make_shared<const Manifest>(std::move(record->manifest)), .step = step};
}

}  // namespace freshet
