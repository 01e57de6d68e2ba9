// SPDX-License-Identifier: Apache-2.0
/// The limit: one memcpy of the changed bytes between two buffers that were touched before.

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "benchmarks/common/child.h"
#include "benchmarks/update_latency/subject.h"

namespace freshet::benchmarks {
namespace {

class Memcpy final : public Subject {
 public:
  Memcpy(std::byte* target, std::uint64_t bytes) : target_(target), bytes_(bytes) {}
  ~Memcpy() override { ::munmap(target_, bytes_); }

  std::string name() const override { return "memcpy"; }
  bool can_find() const override { return true; }

  /// When the changes have to be found, the limit is a copy of everything.
  Result<double> update(const Model& model, Mode mode, std::span<const std::uint32_t> changed) override {
    const std::vector<std::uint32_t> all = model.all();
    const std::span<const std::uint32_t> copied = mode == Mode::found ? std::span<const std::uint32_t>(all) : changed;
    const std::int64_t start_ns = monotonic_ns();
    std::byte* to = target_;
    for (const std::uint32_t tensor : copied) {
      const Bytes from = model.tensor(tensor);
      std::memcpy(to, from.data(), from.size());
      to += from.size();
    }
    return static_cast<double>(monotonic_ns() - start_ns) / 1e6;
  }

 private:
  std::byte* const target_;
  const std::uint64_t bytes_;
};

}  // namespace

Result<std::unique_ptr<Subject>> make_memcpy(const Model& model) {
  void* const target =
      ::mmap(nullptr, model.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (target == MAP_FAILED) return fail_errno(errno, "mmap the target");
  return std::make_unique<Memcpy>(static_cast<std::byte*>(target), model.bytes());
}

}  // namespace freshet::benchmarks
