// SPDX-License-Identifier: Apache-2.0
/// repo_put: how long until a version is durable in a repository, and until it is read back, against the other ways to
/// bring the same bytes into RocksDB and against a plain file, the limit of the disk.
///
/// usage: repo_put [--quick] [--json] [--folder DIR]

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/repo_put/rocksdb_peers.h"
#include "core/base/format.h"
#include "repo/repository.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kTensors = 9;

struct Options : CommonOptions {
  std::string folder = std::filesystem::temp_directory_path();
};

double milliseconds_of(const std::function<Status()>& work, Status& status) {
  const auto started = std::chrono::steady_clock::now();
  status = work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
}

/// A version with tensors of equal size, all of them new in every put.
class Model {
 public:
  explicit Model(std::size_t megabytes) : bytes_((megabytes << 20) / kTensors) {
    std::vector<TensorSpec> specs;
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < kTensors; ++i) {
      specs.push_back({.name = format("layer{}.kernel", i), .dtype = DType::u8, .shape = {bytes_}});
      tensors_.emplace_back(bytes_);
      for (std::size_t at = 0; at + 8 <= bytes_; at += 8) {
        const std::uint64_t value = random();
        std::memcpy(tensors_.back().data() + at, &value, 8);
      }
    }
    manifest_.name = {.model = "model"};
    manifest_.architecture = Architecture::guess_chain(std::move(specs)).value();
  }

  const Manifest& next() {
    ++manifest_.id.sequence;
    manifest_.owners = OwnerMap::all_written_by(manifest_.id, kTensors);
    manifest_.digests.clear();
    for (auto& tensor : tensors_) {
      std::memcpy(tensor.data(), &manifest_.id.sequence, 8);
      manifest_.digests.push_back(digest_of(tensor));
    }
    return manifest_;
  }
  std::vector<Bytes> views() const { return {tensors_.begin(), tensors_.end()}; }
  std::vector<std::vector<std::byte>>& tensors() { return tensors_; }

 private:
  std::size_t bytes_;
  std::vector<std::vector<std::byte>> tensors_;
  Manifest manifest_;
};

Status write_file(const std::string& path, const std::vector<Bytes>& payloads) {
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return fail_errno(errno, path);
  Status status;
  for (Bytes rest : payloads) {
    while (!rest.empty() && status) {
      const ssize_t written = ::write(file, rest.data(), std::min<std::size_t>(rest.size(), 1 << 20));
      if (written < 0) status = fail_errno(errno, path);
      if (written > 0) rest = rest.subspan(static_cast<std::size_t>(written));
    }
  }
  if (status && ::fsync(file) != 0) status = fail_errno(errno, path);
  ::close(file);
  return status;
}

class Benchmark {
 public:
  Benchmark(Options options, Report& report) : options_(std::move(options)), report_(report) {}

  Status run() {
    for (const std::size_t megabytes :
         options_.quick ? std::vector<std::size_t>{64} : std::vector<std::size_t>{64, 600}) {
      FRESHET_TRY(run_case(megabytes));
    }
    return {};
  }

 private:
  struct Subject {
    std::string name;
    std::function<Status()> work;
    Samples samples;
  };

  Status run_case(std::size_t megabytes) {
    return in_new_folder(options_.folder, [&](const std::string& folder) { return measure(folder, megabytes); });
  }

  Status measure(const std::string& folder, std::size_t megabytes) {
    Model model(megabytes);
    FRESHET_ASSIGN(auto backend, open_rocks_backend({.folder = folder + "/freshet"}));
    FRESHET_ASSIGN(const auto repository, Repository::open(std::move(backend), {}));
    FRESHET_ASSIGN(const auto log, RocksPeer::open(folder + "/log", RocksPeer::Way::log));
    FRESHET_ASSIGN(const auto no_log, RocksPeer::open(folder + "/no_log", RocksPeer::Way::no_log));
    FRESHET_ASSIGN(const auto blob_files, RocksPeer::open(folder + "/blob_files", RocksPeer::Way::no_log_blob_files));
    Manifest manifest;
    std::string key;
    std::vector<Subject> subjects = {{"file", [&] { return write_file(folder + "/file " + key, model.views()); }, {}},
                                     {"freshet",
                                      [&] {
                                        const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
                                          return Bytes(model.tensors()[tensor]);
                                        };
                                        return repository->put(manifest, bytes_of, {}).map([](const auto&) {});
                                      },
                                      {}},
                                     {"freshet_read", [&] { return read_back(*repository); }, {}},
                                     {"rocksdb_log", [&] { return log->put(key, model.views()); }, {}},
                                     {"rocksdb_no_log", [&] { return no_log->put(key, model.views()); }, {}},
                                     {"rocksdb_blob_files", [&] { return blob_files->put(key, model.views()); }, {}}};
    const int repetitions = options_.quick ? 3 : 5;
    for (int i = 0; i <= repetitions; ++i) {  // The first one warms up.
      manifest = model.next();
      key = format("{:04}", i);
      for (Subject& subject : subjects) {
        Status status;
        const double time = milliseconds_of(subject.work, status);
        if (!status) return fail(std::move(status).error().with_context(subject.name));
        if (i > 0) subject.samples.add(time);
      }
    }
    const std::string name = format("{}MB", megabytes);
    for (const Subject& subject : subjects) report_.add_row(name, subject.name, "ms", subject.samples);
    for (const char* peer : {"file", "rocksdb_log", "rocksdb_no_log", "rocksdb_blob_files"}) {
      report_.set_ratio(format("vs_{}", peer), report_.median(name, peer) / report_.median(name, "freshet"));
    }
    return {};
  }

  Status read_back(const Repository& repository) {
    FRESHET_ASSIGN(const VersionRecord record, repository.get({.model = "model"}));
    const std::size_t bytes = record.manifest.architecture->tensors()[0].bytes();
    read_.resize(kTensors, std::vector<std::byte>(bytes));
    std::vector<Repository::TensorRead> reads;
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      read_[i].resize(bytes);
      reads.push_back({.tensor = i, .out = read_[i]});
    }
    return repository.read(record, reads);
  }

  const Options options_;
  std::vector<std::vector<std::byte>> read_;
  Report& report_;
};

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  return run_benchmark(
      count, words,
      {.name = "repo_put",
       .about = "How long until a version is durable",
       .options = options,
       .add_options =
           [&](CLI::App& app) { app.add_option("--folder", options.folder, "Where repositories are made"); }},
      [&](Report& report) { return Benchmark(options, report).run(); });
}
