/// Our own repository, and what its backend is asked meanwhile.

#include <chrono>

#include "benchmarks/store_load/subjects.h"

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
class TimedBackend final : public Backend {
 public:
  TimedBackend(std::unique_ptr<Backend> inner, Parts& parts) : inner_(std::move(inner)), parts_(parts) {}

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

  std::string_view kind() const override { return inner_->kind(); }
  bool durable() const override { return inner_->durable(); }
  bool read_only() const override { return inner_->read_only(); }
  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    FRESHET_ASSIGN(std::unique_ptr<BlobWriter> writer, inner_->write_blobs());
    return std::make_unique<Writer>(std::move(writer), parts_);
  }
  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    return inner_->read_blob(key, offset, out);
  }
  Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const override {
    return inner_->read_and_digest(key, out);
  }
  Status erase_blob(std::string_view key) override { return inner_->erase_blob(key); }
  Status list_blobs(const std::function<bool(std::string_view, std::uint64_t)>& each) const override {
    return inner_->list_blobs(each);
  }
  Status reclaim() override { return inner_->reclaim(); }
  Status apply(const Batch& batch) override {
    const Stopwatch watch(parts_.records);
    return inner_->apply(batch);
  }
  Result<std::string> get(std::string_view key) const override { return inner_->get(key); }
  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& each) const override {
    return inner_->scan(prefix, each);
  }
  Status recover() override { return inner_->recover(); }
  Result<DiskUse> disk_use() const override { return inner_->disk_use(); }

 private:
  const std::unique_ptr<Backend> inner_;
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
    // Room for the versions that one series of measurements stores, whole ones.
    const std::uint64_t touched = keep == Keep::memory_touched ? 3 * model.bytes() : 0;
    FRESHET_ASSIGN(auto backend, make_memory_backend({.touched_bytes = touched}));
    FRESHET_TRY(subject->open(std::move(backend), {}));
  }
  return subject;
}

}  // namespace freshet::benchmarks
