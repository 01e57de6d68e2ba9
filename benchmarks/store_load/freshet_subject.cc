// SPDX-License-Identifier: Apache-2.0
/// Our own repository, and what its backend is asked meanwhile.

#include <chrono>

#include "benchmarks/store_load/subjects.h"
#include "repo/backend/backend_wrapper.h"

namespace freshet::benchmarks {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum) {}
  ~Stopwatch() {
    sum_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started_).count();
  }

 private:
  double& sum_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

/// Passes everything on and times what a put asks for.
class TimedBackend final : public BackendWrapper {
 public:
  TimedBackend(std::unique_ptr<Backend> inner, Parts& parts) : BackendWrapper(std::move(inner)), parts_(parts) {}

  class Writer final : public BlobWriter {
   public:
    Writer(std::unique_ptr<BlobWriter> inner, Parts& parts) : inner_(std::move(inner)), parts_(parts) {}
    Status write(std::string_view key, Bytes bytes) override {
      const Stopwatch watch(parts_.write);
      return inner_->write(key, bytes);
    }
    Result<Digest> write_and_digest(std::string_view key, Bytes bytes) override {
      const Stopwatch watch(parts_.write);
      return inner_->write_and_digest(key, bytes);
    }
    Status commit() override {
      const Stopwatch watch(parts_.sync);
      return inner_->commit();
    }

   private:
    const std::unique_ptr<BlobWriter> inner_;
    Parts& parts_;
  };

  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    FRESHET_ASSIGN(std::unique_ptr<BlobWriter> writer, inner().write_blobs());
    return std::make_unique<Writer>(std::move(writer), parts_);
  }
  Status apply(const Batch& batch) override {
    const Stopwatch watch(parts_.records);
    return inner().apply(batch);
  }

 private:
  Parts& parts_;
};

class Freshet final : public Subject {
 public:
  Status open(std::unique_ptr<Backend> backend, std::string folder) {
    folder_ = std::move(folder);
    FRESHET_ASSIGN(repository_, Repository::open(std::make_unique<TimedBackend>(std::move(backend), parts_), {}));
    return {};
  }

  Result<double> store(const Model& model, std::span<const std::uint32_t>) override {
    const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> { return model.tensor(tensor); };
    parts_ = {};
    Status status;
    const double time = milliseconds_of(
        [&] { return repository_->put(model.manifest(), bytes_of, {}).map([](const auto&) {}); }, status);
    FRESHET_TRY(status);
    return time;
  }

  Result<double> load(Model& model, std::span<const std::uint32_t> tensors) override {
    const auto reads = model.reads(tensors);
    if (!folder_.empty()) forget_pages(folder_);
    Status status;
    const double time = milliseconds_of(
        [&]() -> Status {
          FRESHET_ASSIGN(const VersionRecord record, repository_->get({.model = "model"}));
          return repository_->read(record, reads);
        },
        status);
    FRESHET_TRY(status);
    return time;
  }

  Parts parts() const override { return parts_; }
  std::uint64_t kept_bytes() const override {
    const auto stat = repository_->stat();
    return stat ? stat->live_bytes : 0;
  }

 private:
  Parts parts_;
  std::string folder_;  ///< Empty in memory.
  std::unique_ptr<Repository> repository_;
};

}  // namespace

Result<std::unique_ptr<Subject>> make_freshet(const Model& model, Keep keep, const std::string& folder) {
  auto subject = std::make_unique<Freshet>();
  if (keep == Keep::rocksdb) {
    const std::string store = folder + "/rocksdb";
    FRESHET_ASSIGN(auto backend, open_rocks_backend({.folder = store}));
    FRESHET_TRY(subject->open(std::move(backend), store));
  } else {
    // Room for a version and its largest child.
    const std::uint64_t touched = keep == Keep::memory_touched ? model.bytes() / 100 * 155 : 0;
    FRESHET_ASSIGN(auto backend, make_memory_backend({.touched_bytes = touched}));
    FRESHET_TRY(subject->open(std::move(backend), {}));
  }
  return subject;
}

}  // namespace freshet::benchmarks
