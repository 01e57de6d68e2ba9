// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One way to bring a model's update from the process that made it into another process of the host. Every subject
/// brings the same tensors from the same memory and is timed the same way: from the call until the other process has
/// them all, by the host's monotonic clock, read there.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/common/report.h"
#include "benchmarks/common/statistics.h"
#include "benchmarks/update_latency/model.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// How the changed tensors are known.
enum class Mode {
  all,    ///< Everything changed.
  told,   ///< The writer names them.
  found,  ///< The writer doesn't know.
};

class Subject {
 public:
  virtual ~Subject() = default;
  virtual std::string name() const = 0;
  /// Whether it can send a part that it has to find itself; others would send everything, which is the case `all`.
  virtual bool can_find() const { return false; }
  /// Brings the tensors over. Returns the milliseconds. `changed` is ascending.
  virtual Result<double> update(const Model& model, Mode mode, std::span<const std::uint32_t> changed) = 0;
  /// The updates so far were to warm up.
  virtual void forget() {}
  /// Further rows about the updates since forget(), for the case of that name.
  virtual void report_more(Report&, const std::string& case_name) { (void)case_name; }
};

struct Setting {
  std::string python;  ///< An interpreter with h5py, numpy and safetensors.
  std::string disk;    ///< A folder on a disk.
  std::string memory;  ///< A folder in memory (/dev/shm).
  std::string redis = "redis-server";
};

// Each answers with an error that says why when this machine or build lacks what it needs.
Result<std::unique_ptr<Subject>> make_memcpy(const Model& model);
Result<std::unique_ptr<Subject>> make_h5py(const Model& model, const Setting& setting, bool on_disk);
Result<std::unique_ptr<Subject>> make_safetensors(const Model& model, const Setting& setting);
Result<std::unique_ptr<Subject>> make_redis(const Model& model, const Setting& setting);
Result<std::unique_ptr<Subject>> make_ucx(const Model& model);

// The other process of some subjects: what main() runs for `--role=NAME ARGUMENT…`. Each returns the exit status.
int run_redis_reader(const std::vector<std::string>& arguments);
int run_ucx_reader(const std::vector<std::string>& arguments);

/// What the reader saw in the last changed tensor, against what the writer has: invalid when the update did not come.
Status check_stamp(const Model& model, std::span<const std::uint32_t> changed, std::uint64_t seen);
/// "1 2 3".
std::string join(std::span<const std::uint32_t> numbers);
std::vector<std::uint32_t> parse_numbers(const std::string& text);
/// Takes the other process's answer, "NANOSECONDS STAMP", apart; returns the milliseconds since `start_ns`.
Result<double> milliseconds_of(const std::string& answer, std::int64_t start_ns, const Model& model,
                               std::span<const std::uint32_t> changed);

}  // namespace freshet::benchmarks
