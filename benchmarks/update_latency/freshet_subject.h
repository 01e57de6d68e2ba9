// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Freshet itself: a Publisher here, a Subscriber in another process, the shm channel between them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/common/child.h"
#include "benchmarks/update_latency/subject.h"
#include "transport/publisher.h"

namespace freshet::benchmarks {

class FreshetSubject final : public Subject {
 public:
  static Result<std::unique_ptr<Subject>> make(const Model& model);
  ~FreshetSubject() override;

  std::string name() const override { return "freshet"; }
  bool can_find() const override { return true; }
  Result<double> update(const Model& model, Mode mode, std::span<const std::uint32_t> changed) override;
  void forget() override { measured_ = {}; }
  void report_more(Report& report, const std::string& case_name) override;

  /// Updates while a thread of the other process does nothing but take snapshots. Sets the ratios that belong to it.
  Status measure_reader_stall(Model& model, Report& report);

 private:
  struct Measured {
    Samples blocked_ms;
    Samples commit_ms;
    Samples notify_us;
    Samples faults;  ///< Of both processes.
  };
  FreshetSubject() = default;

  std::string folder_;
  std::unique_ptr<Child> reader_;
  std::unique_ptr<Publisher> publisher_;
  std::uint64_t reader_faults_ = 0;
  std::uint64_t step_ = 0;
  Measured measured_;
  Samples all_notify_us_;
  Samples all_faults_;
};

/// The other process: `--role=freshet-reader FOLDER`.
int run_freshet_reader(const std::vector<std::string>& arguments);

}  // namespace freshet::benchmarks
