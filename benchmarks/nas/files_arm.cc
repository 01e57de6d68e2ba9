// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <map>
#include <utility>

#include "benchmarks/nas/arms.h"
#include "benchmarks/nas/hdf5_file.h"
#include "benchmarks/redis_queries/redis_queries.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

class FilesArm final : public Arm {
 public:
  FilesArm(std::string folder, bool retire, std::unique_ptr<RedisServer> server, std::unique_ptr<RedisQueries> queries)
      : folder_(std::move(folder)), retire_(retire), server_(std::move(server)), queries_(std::move(queries)) {}

  Result<double> begin(std::uint64_t, nas::Candidate& candidate) override {
    FRESHET_ASSIGN(const auto best, queries_->query(*MatchGraph::of(*candidate.architecture())));
    if (!best) return 0.0;
    FRESHET_ASSIGN(const std::size_t read, read_shared_layers(path_of(best->name), candidate));
    if (read == candidate.tensors()) candidate.thaw(static_cast<std::uint32_t>(read - 1));
    FRESHET_TRY(release(best->name));
    return epochs_.at(best->name);
  }

  Status finish(std::uint64_t id, const nas::Candidate& candidate,
                const nas::SimulatedTrainer::Outcome& outcome) override {
    const std::string name = name_of(id);
    FRESHET_TRY(write_model(path_of(name), candidate));
    epochs_[name] = outcome.epochs;
    return queries_->publish(
        {{.name = name, .graph = MatchGraph::of(*candidate.architecture()), .quality = outcome.quality}});
  }

  Status retire(std::uint64_t id) override { return retire_ ? release(name_of(id)) : Status(); }

  Result<std::uint64_t> bytes() override {
    std::uint64_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder_)) bytes += file.file_size();
    return bytes;
  }

 private:
  static std::string name_of(std::uint64_t id) { return format("candidate-{}", id); }
  std::string path_of(const std::string& name) const { return folder_ + "/" + name + ".h5"; }

  /// The file goes with the last reference to it.
  Status release(const std::string& name) {
    FRESHET_ASSIGN(const bool last, queries_->release(name));
    if (last) std::filesystem::remove(path_of(name));
    return {};
  }

  const std::string folder_;
  const bool retire_;
  const std::unique_ptr<RedisServer> server_;
  const std::unique_ptr<RedisQueries> queries_;
  std::map<std::string, double> epochs_;
};

}  // namespace

Result<std::unique_ptr<Arm>> make_files(const std::string& folder, bool retire) {
#ifndef FRESHET_HAVE_HDF5
  return fail(Code::unsupported, "built without HDF5 (Debian package libhdf5-dev)");
#endif
  FRESHET_ASSIGN(auto server, RedisServer::start());
  FRESHET_ASSIGN(auto queries, RedisQueries::connect(*server, RedisQueries::Form::json));
  std::filesystem::create_directories(folder);
  return std::make_unique<FilesArm>(folder, retire, std::move(server), std::move(queries));
}

}  // namespace freshet::benchmarks
