// SPDX-License-Identifier: Apache-2.0
/// Files between processes, with the libraries that a Python user would take (python_peer.py).

#include <unistd.h>

#include <filesystem>

#include "benchmarks/common/child.h"
#include "benchmarks/update_latency/subject.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

class PythonPeer final : public Subject {
 public:
  PythonPeer(std::string name, std::unique_ptr<Child> child) : name_(std::move(name)), child_(std::move(child)) {}

  std::string name() const override { return name_; }

  Result<double> update(const Model& model, Mode, std::span<const std::uint32_t> changed) override {
    FRESHET_TRY(child_->write_line(join(changed)));
    FRESHET_ASSIGN(const std::string line, child_->read_line(std::chrono::minutes(5)));
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return fail(Code::corrupt, format("{} answered '{}'", name_, line));
    return milliseconds_of(line.substr(space + 1), std::stoll(line), model, changed);
  }

 private:
  const std::string name_;
  std::unique_ptr<Child> child_;
};

Result<std::unique_ptr<Subject>> make_python_peer(const Model& model, const Setting& setting, const std::string& name,
                                                  const std::string& kind, const std::string& folder) {
  const auto script = std::filesystem::path(own_path()).parent_path() / "update_latency_peer.py";
  const std::string file = format("{}/freshet-update-latency-{}-{}", folder, ::getpid(), name);
  FRESHET_ASSIGN(auto child, Child::start({setting.python, script.string(), "write", kind, file, model.sizes()},
                                          {{model.descriptor(), 3}}));
  const auto ready = child->read_line(std::chrono::minutes(2));
  if (!ready || !ready->starts_with("ready")) {
    return fail(Code::unavailable,
                format("{} does not run the peer (benchmarks/update_latency/peers/make_venv.sh makes one that does)",
                       setting.python));
  }
  return std::make_unique<PythonPeer>(name, std::move(child));
}

}  // namespace

Result<std::unique_ptr<Subject>> make_h5py(const Model& model, const Setting& setting, bool on_disk) {
  return make_python_peer(model, setting, on_disk ? "h5py_disk" : "h5py_shm", "h5py",
                          on_disk ? setting.disk : setting.memory);
}

Result<std::unique_ptr<Subject>> make_safetensors(const Model& model, const Setting& setting) {
  return make_python_peer(model, setting, "safetensors_shm", "safetensors", setting.memory);
}

}  // namespace freshet::benchmarks
