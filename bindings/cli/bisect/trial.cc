// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/bisect/trial.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <unordered_set>
#include <utility>

#include "bindings/cli/frame/shell_command.h"
#include "core/base/format.h"
#include "core/safetensors/safetensors.h"

namespace freshet::cli {
namespace {

constexpr int kSkip = 125;
// What a shell says of a command that it cannot run, or does not find; more is a signal's, or somebody's who gives up.
constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;

/// Some tensors of a version, in memory of our own.
struct ReadTensors {
  std::unique_ptr<std::byte[]> memory;
  std::vector<TensorView> views;
};

Result<ReadTensors> read_tensors(const Repository& repository, const VersionRecord& record,
                                 const std::vector<std::uint32_t>& tensors) {
  const auto specs = record.manifest.architecture->tensors();
  std::uint64_t bytes = 0;
  for (const std::uint32_t tensor : tensors) bytes += specs[tensor].bytes();
  ReadTensors read{.memory = std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes])};
  if (read.memory == nullptr) {
    return fail(Code::out_of_space, format("{}: no {} bytes of memory for it", to_string(record.manifest.name), bytes));
  }
  std::vector<Repository::TensorRead> reads;
  std::uint64_t offset = 0;
  for (const std::uint32_t tensor : tensors) {
    const MutableBytes out(read.memory.get() + offset, specs[tensor].bytes());
    offset += out.size();
    reads.push_back({.tensor = tensor, .out = out});
    read.views.push_back({.spec = specs[tensor], .data = out});
  }
  FRESHET_TRY(repository.read(record, reads));
  return read;
}

std::vector<std::uint32_t> all_tensors(const VersionRecord& record) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < record.manifest.architecture->tensors().size(); ++i) all.push_back(i);
  return all;
}

bool same_kind(const TensorSpec& a, const TensorSpec& b) { return a.dtype == b.dtype && a.shape == b.shape; }

}  // namespace

Result<Mixture> Mixture::read(const Repository& repository, const VersionName& good_name, const VersionName& bad_name) {
  FRESHET_ASSIGN(const VersionRecord good, repository.get(good_name));
  FRESHET_ASSIGN(const VersionRecord bad, repository.get(bad_name));
  const Architecture& graph_good = *good.manifest.architecture;
  const Architecture& graph_bad = *bad.manifest.architecture;
  // What differs and can be exchanged is what diff() says; a layer that was renamed keeps its counterpart.
  FRESHET_ASSIGN(const VersionDiff diff, repository.diff(good_name, bad_name));
  Mixture mixture;
  std::vector<std::uint32_t> from_good;
  for (const VersionDiff::Tensor& tensor : diff.tensors_changed) {
    const auto there = graph_good.tensor_named(tensor.name_a);
    const auto here = graph_bad.tensor_named(tensor.name);
    if (!there || !here || !same_kind(graph_good.tensors()[*there], graph_bad.tensors()[*here])) {
      return fail(Code::corrupt, format("the difference of {} and {} names a tensor that they do not have",
                                        to_string(good_name), to_string(bad_name)));
    }
    from_good.push_back(*there);
    mixture.exchangeable_.push_back(*here);
    mixture.names_.push_back(tensor.name);
  }
  mixture.is_whole_ = diff.layers_added.empty() && diff.layers_removed.empty();
  const std::unordered_set<std::string_view> added(diff.layers_added.begin(), diff.layers_added.end());
  for (const Layer& layer : graph_bad.layers()) {
    if (!added.contains(layer.name)) continue;
    for (const LayerTensor& tensor : layer.tensors) {
      const TensorSpec& spec = graph_bad.tensors()[tensor.tensor];
      const auto there = graph_good.tensor_named(spec.name);
      if (!there || !same_kind(graph_good.tensors()[*there], spec)) ++mixture.new_tensors_;
    }
  }
  FRESHET_ASSIGN(ReadTensors of_bad, read_tensors(repository, bad, all_tensors(bad)));
  FRESHET_ASSIGN(ReadTensors of_good, read_tensors(repository, good, from_good));
  mixture.bad_memory_ = std::move(of_bad.memory);
  mixture.bad_ = std::move(of_bad.views);
  mixture.good_memory_ = std::move(of_good.memory);
  for (const TensorView& view : of_good.views) mixture.good_.push_back(view.data);
  mixture.tags_ = bad.manifest.tags;
  return mixture;
}

std::uint64_t Mixture::bytes_of(std::span<const std::size_t> exchangeable) const {
  std::uint64_t bytes = 0;
  for (const std::size_t at : exchangeable) bytes += good_[at].size();
  return bytes;
}

std::vector<TensorView> Mixture::views(std::span<const std::size_t> from_bad) const {
  std::vector<TensorView> mixed = bad_;
  for (std::size_t at = 0; at < exchangeable_.size(); ++at) mixed[exchangeable_[at]].data = good_[at];
  for (const std::size_t at : from_bad) mixed[exchangeable_[at]].data = bad_[exchangeable_[at]].data;
  return mixed;
}

Trials::~Trials() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

Result<Judgement> Trials::of_version(const Repository& repository, const VersionName& name) {
  FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
  if (!record.has_weights) return Judgement{};
  FRESHET_ASSIGN(const ReadTensors read, read_tensors(repository, record, all_tensors(record)));
  return run(to_string(name), read.views, record.manifest.tags);
}

Result<Judgement> Trials::of_mixture(const Mixture& mixture, std::span<const std::size_t> from_bad) {
  return run(format("mixture{}", runs_), mixture.views(from_bad), mixture.tags());
}

Result<Judgement> Trials::run(const std::string& name, std::span<const TensorView> tensors, const Tags& tags) {
  if (program_.interrupt.requested()) return fail(Code::cancelled, "interrupted");
  if (folder_.empty()) {
    std::error_code error;
    std::string folder = std::filesystem::temp_directory_path(error).string() + "/freshet-bisect-XXXXXX";
    if (error) return fail(Code::failed_precondition, "no folder for temporary files: " + error.message());
    if (::mkdtemp(folder.data()) == nullptr) return fail_errno(errno, folder);
    folder_ = folder;
  }
  const std::string path = folder_ + "/" + name + ".safetensors";
  FRESHET_TRY(write_safetensors(path, tensors, tags, false));
  ++runs_;
  const Result<int> code =
      exit_code_of_shell(with_path(command_, path), {.stdout_to_stderr = program_.out.json}, program_.interrupt);
  (void)::unlink(path.c_str());
  if (!code) return fail(code.error());
  if (*code >= kCannotRun) {
    const char* const what = *code == kNotFound    ? "the command, or one that it calls, was not found"
                             : *code == kCannotRun ? "the command, or one that it calls, cannot be run"
                                                   : "that ends the search";
    return fail(Code::failed_precondition, format("{}: exit code {}: {}", command_, *code, what));
  }
  const Verdict verdict = *code == 0 ? Verdict::good : *code == kSkip ? Verdict::skipped : Verdict::bad;
  return Judgement{.verdict = verdict, .exit_code = *code};
}

}  // namespace freshet::cli
