// SPDX-License-Identifier: Apache-2.0
/// Files of a version each, with the libraries that a Python user would take (store_load_peer.py).

#include <unistd.h>

#include <filesystem>

#include "benchmarks/common/child.h"
#include "benchmarks/store_load/subjects.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

template <typename Number>
std::string joined(std::span<const Number> numbers, char separator) {
  std::string text;
  for (const Number number : numbers) text += std::to_string(number) + separator;
  if (!text.empty()) text.pop_back();
  return text;
}

class Python final : public Subject {
 public:
  Python(std::unique_ptr<Child> child, bool synced) : child_(std::move(child)), synced_(synced) {}

  Result<double> store(const Model&, std::span<const std::uint32_t> changed) override {
    return ask(synced_ ? "sync" : "store", changed);
  }
  Result<double> load(Model&, std::span<const std::uint32_t> tensors) override { return ask("load", tensors); }

 private:
  Result<double> ask(const std::string& what, std::span<const std::uint32_t> tensors) {
    FRESHET_TRY(child_->write_line(what + " " + joined(tensors, ' ')));
    FRESHET_ASSIGN(const std::string line, child_->read_line(std::chrono::minutes(5)));
    return std::strtod(line.c_str(), nullptr);
  }

  const std::unique_ptr<Child> child_;
  const bool synced_;
};

}  // namespace

Result<std::unique_ptr<Subject>> make_python(const Sizes& sizes, PeerKind kind, const std::string& python,
                                             const std::string& folder) {
  const auto script = std::filesystem::path(own_path()).parent_path() / "store_load_peer.py";
  const std::string library = kind == PeerKind::safetensors ? "safetensors" : "h5py";
  const std::string file = format("{}/{}-{}", folder, library, static_cast<int>(kind));
  const std::string list = joined(std::span<const std::uint64_t>(sizes), ',');
  FRESHET_ASSIGN(auto child, Child::start({python, script.string(), library, file, list}));
  const auto ready = child->read_line(std::chrono::minutes(5));
  if (!ready || *ready != "ready") {
    return fail(Code::unavailable,
                format("{} does not run {} (benchmarks/update_latency/peers/make_venv.sh makes one that does)", python,
                       library));
  }
  return std::make_unique<Python>(std::move(child), kind == PeerKind::h5py_disk);
}

}  // namespace freshet::benchmarks
