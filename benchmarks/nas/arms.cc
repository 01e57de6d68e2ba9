// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/nas/arms.h"

#include <map>
#include <utility>

#include "core/base/format.h"
#include "examples/nas_evolution/worker.h"
#include "repo/repository.h"

namespace freshet::benchmarks {
namespace {

class NoTransfer final : public Arm {
 public:
  Result<double> begin(std::uint64_t, nas::Candidate&) override { return 0.0; }
  Status finish(std::uint64_t, const nas::Candidate&, const nas::SimulatedTrainer::Outcome&) override { return {}; }
  Status retire(std::uint64_t) override { return {}; }
  Result<std::uint64_t> bytes() override { return std::uint64_t{0}; }
};

class FreshetArm final : public Arm {
 public:
  FreshetArm(std::unique_ptr<Repository> repository, bool retire)
      : repository_(std::move(repository)), retire_(retire) {}

  Result<double> begin(std::uint64_t id, nas::Candidate& candidate) override {
    FRESHET_ASSIGN(nas::Begun begun, nas::begin(*repository_, candidate, name_of(id)));
    const double epochs = begun.inherited_epochs;
    begun_.emplace(id, std::move(begun));
    return epochs;
  }

  Status finish(std::uint64_t id, const nas::Candidate& candidate,
                const nas::SimulatedTrainer::Outcome& outcome) override {
    const auto begun = begun_.extract(id);
    FRESHET_ASSIGN(const nas::Finished finished,
                   nas::finish(*repository_, candidate, begun.mapped(), outcome, name_of(id)));
    versions_[id] = finished.version;
    return {};
  }

  /// Pinned ones are left for later: the worker that learns from one goes on.
  Status retire(std::uint64_t id) override {
    if (!retire_) return {};
    dropped_.push_back(versions_.at(id));
    return retire_dropped();
  }

  Result<std::uint64_t> bytes() override {
    FRESHET_TRY(retire_dropped());
    FRESHET_TRY(repository_->gc({}, {}));
    FRESHET_ASSIGN(const RepositoryStat stat, repository_->stat());
    return stat.disk_bytes;
  }

 private:
  static std::string name_of(std::uint64_t id) { return format("candidate-{}", id); }

  Status retire_dropped() {
    std::vector<VersionName> pinned;
    for (const VersionName& version : dropped_) {
      const auto report = repository_->retire(version, {});
      if (report) continue;
      if (report.error().code() != Code::failed_precondition) return fail(report.error());
      pinned.push_back(version);
    }
    dropped_.swap(pinned);
    return {};
  }

  const std::unique_ptr<Repository> repository_;
  const bool retire_;
  std::map<std::uint64_t, nas::Begun> begun_;
  std::map<std::uint64_t, VersionName> versions_;
  std::vector<VersionName> dropped_;
};

}  // namespace

std::unique_ptr<Arm> make_no_transfer() { return std::make_unique<NoTransfer>(); }

Result<std::unique_ptr<Arm>> make_freshet(const std::string& folder, bool retire) {
  FRESHET_ASSIGN(auto backend, open_rocks_backend({.folder = folder}));
  FRESHET_ASSIGN(auto repository, Repository::open(std::move(backend), {}));
  return std::make_unique<FreshetArm>(std::move(repository), retire);
}

}  // namespace freshet::benchmarks
