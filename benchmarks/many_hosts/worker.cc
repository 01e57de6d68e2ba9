// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/many_hosts/worker.h"

#include <sys/resource.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>

#include "benchmarks/common/child.h"
#include "core/base/format.h"
#include "repo/bucket/bucket_backend.h"
#include "repo/files/import.h"
#include "repo/rados/rados_store.h"
#include "repo/s3/s3_store.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"

namespace freshet::benchmarks {
namespace {

constexpr const char* kModel = "net";

double processor_ms() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

Result<std::unique_ptr<ProviderRepository>> open_place(const std::string& place) {
  if (is_rados_address(place)) {
    FRESHET_ASSIGN(const RadosAddress pool, parse_rados_address(place));
    FRESHET_ASSIGN(std::shared_ptr<ObjectStore> store, open_rados_store(pool));
    FRESHET_ASSIGN(std::unique_ptr<Backend> backend, open_bucket_backend(std::move(store), {}));
    return ProviderRepository::open(std::move(backend), {});
  }
  if (!is_s3_address(place)) {
    FRESHET_ASSIGN(std::unique_ptr<Backend> folder, open_rocks_backend({.folder = place}));
    return ProviderRepository::open(std::move(folder), {});
  }
  FRESHET_ASSIGN(const S3Address address, parse_s3_address(place));
  FRESHET_ASSIGN(std::shared_ptr<ObjectStore> store, open_s3_store(address));
  FRESHET_ASSIGN(std::unique_ptr<Backend> backend, open_bucket_backend(std::move(store), {}));
  return ProviderRepository::open(std::move(backend), {});
}

int failed(const Error& error) {
  std::cerr << "many_hosts: " << error.message() << "\n";
  return 1;
}

class BucketWorker {
 public:
  BucketWorker(std::size_t tensors, std::size_t bytes) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < tensors; ++i) {
      memory_.emplace_back(bytes);
      read_.emplace_back(bytes, std::byte{1});
      for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
        const std::uint64_t word = random();
        std::memcpy(memory_[i].data() + at, &word, sizeof(word));
      }
      views_.push_back({.spec = {.name = format("layer{}", i), .dtype = DType::u8, .shape = {bytes}, .slice = {}},
                        .data = memory_[i]});
    }
  }

  Status open(const std::string& place) {
    if (is_s3_address(place) || is_rados_address(place)) {
      FRESHET_ASSIGN(repository_, open_place(place));
    } else {
      FRESHET_ASSIGN(repository_, connect_repository(place));
    }
    return {};
  }

  /// A version of which every tensor is new; durable on return.
  Status store() { return store(views_); }
  Status store(std::span<const TensorView> tensors) {
    FRESHET_ASSIGN(const StagedPut staged, stage_put(*repository_, {.model = kModel, .tensors = tensors}));
    FRESHET_ASSIGN([[maybe_unused]] const VersionName name,
                   repository_->put(staged.manifest, staged.bytes_of(), staged.options));
    return {};
  }
  Status load() {
    FRESHET_ASSIGN(const VersionRecord record, repository_->get({.model = kModel, .number = 0}));
    std::vector<Repository::TensorRead> reads;
    for (std::uint32_t i = 0; i < read_.size(); ++i) reads.push_back({.tensor = i, .out = read_[i]});
    return repository_->read(record, reads);
  }

  /// So many versions, one after another. They have other layers, in turn.
  Status put(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      change(++puts_);
      const std::size_t layers = 1 + (puts_ - 1) % views_.size();
      FRESHET_TRY(store(std::span<const TensorView>(views_).last(layers)));
    }
    return {};
  }
  /// So many times, the version of most equal layers.
  Status match(std::uint64_t count) {
    if (!query_.graph) {
      FRESHET_ASSIGN(const VersionRecord record, repository_->get({.model = kModel, .number = 0}));
      query_.graph = MatchGraph::of(*record.manifest.architecture);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      FRESHET_ASSIGN(const MatchAnswer answer, repository_->match(query_));
      if (answer.top.empty()) return fail(Code::corrupt, "no version matches one that is stored");
    }
    return {};
  }

  void change(std::uint64_t round) {
    for (auto& bytes : memory_) std::memcpy(bytes.data(), &round, sizeof(round));
  }
  bool is_same() const { return read_ == memory_; }
  void forget() {
    for (auto& bytes : read_) std::memset(bytes.data(), 0, sizeof(std::uint64_t));
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::vector<std::byte>> read_;
  std::vector<TensorView> views_;
  std::unique_ptr<Repository> repository_;
  std::uint64_t puts_ = 0;
  MatchQuery query_;
};

/// A line as worker.h has them.
Status carry_out(BucketWorker& worker, const std::string& line) {
  std::istringstream words(line);
  std::string what;
  std::uint64_t count = 0;
  words >> what >> count;
  if (what == "store") return worker.store();
  if (what == "load") return worker.load();
  return what == "put" ? worker.put(count) : worker.match(count);
}

}  // namespace

int run_bucket_worker(const std::vector<std::string>& arguments) {
  if (arguments.size() != 3) return 2;
  BucketWorker worker(std::stoull(arguments[1]), std::stoull(arguments[2]));
  if (Status opened = worker.open(arguments[0]); !opened) return failed(opened.error());
  std::cout << "ready" << std::endl;
  std::string line;
  for (std::uint64_t round = 1; std::getline(std::cin, line); ++round) {
    const bool is_store = line == "store";
    if (is_store) worker.change(round);
    const double processor = processor_ms();
    const std::int64_t begun = monotonic_ns();
    if (Status done = carry_out(worker, line); !done) return failed(done.error());
    const double ms = static_cast<double>(monotonic_ns() - begun) / 1e6;
    const double processor_taken = processor_ms() - processor;
    if (line == "load" && !worker.is_same()) return failed(Error(Code::corrupt, "other bytes came back"));
    worker.forget();
    std::cout << format("{} {}", ms, processor_taken) << std::endl;
  }
  return 0;
}

int run_bucket_owner(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) return 2;
  const auto repository = open_place(arguments[0]);
  if (!repository) return failed(repository.error());
  const auto server = RepositoryServer::open(**repository, {.address = arguments[1]});
  if (!server) return failed(server.error());
  std::cout << "ready" << std::endl;
  double before = processor_ms();
  for (std::string line; std::getline(std::cin, line);) {
    const double now = processor_ms();
    std::cout << format("0 {}", now - before) << std::endl;
    before = now;
  }
  return 0;
}

}  // namespace freshet::benchmarks
