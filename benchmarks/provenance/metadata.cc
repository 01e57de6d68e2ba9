// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/provenance/metadata.h"

#include <chrono>
#include <memory>
#include <vector>

#include "benchmarks/common/statistics.h"
#include "core/base/format.h"
#include "repo/repository.h"

namespace freshet::benchmarks {
namespace {

// A tensor's bytes are few: what they take is known, and not what is measured.
constexpr std::uint64_t kTensorBytes = 8;
constexpr std::uint64_t kNeededPerSegment = 36 + 8 + 16;
constexpr std::uint64_t kNeededPerVersion = 128;

Result<std::shared_ptr<const Architecture>> architecture_of(std::uint32_t tensors) {
  std::vector<TensorSpec> specs;
  for (std::uint32_t i = 0; i < tensors; ++i) {
    specs.push_back(
        {.name = format("block{}.layer{}.kernel", i / 8, i % 8), .dtype = DType::u8, .shape = {kTensorBytes}});
  }
  return Architecture::guess_chain(std::move(specs));
}

/// The newest version of a line, and its tensors' bytes.
class Line {
 public:
  explicit Line(std::shared_ptr<const Architecture> architecture) : tensors_(architecture->tensors().size()) {
    manifest_.name.model = "net";
    manifest_.architecture = std::move(architecture);
    manifest_.id = {.run = {.high = 1, .low = 2}, .incarnation = 1, .sequence = 0};
    manifest_.digests.resize(tensors_.size());
  }

  void advance(const std::vector<std::uint32_t>& changed) {
    const bool is_first = manifest_.id.sequence == 0;
    if (!is_first) {
      manifest_.ancestor = manifest_.id;
      manifest_.ancestor_name = manifest_.name;
    }
    ++manifest_.id.sequence;
    manifest_.name.number = 0;
    manifest_.step = manifest_.id.sequence;
    for (const std::uint32_t tensor : changed) {
      tensors_[tensor] = {manifest_.id.sequence << 20 | tensor};
      manifest_.digests[tensor] = digest_of(bytes(tensor));
    }
    manifest_.owners = is_first ? OwnerMap::all_written_by(manifest_.id, tensors_.size())
                                : manifest_.owners.with_written(manifest_.id, changed);
  }
  Status put_into(Repository& repository) {
    const auto bytes_of = [this](std::uint32_t tensor) -> Result<Bytes> { return bytes(tensor); };
    FRESHET_ASSIGN(manifest_.name, repository.put(manifest_, bytes_of, {.quality = 0.5}));
    return {};
  }

 private:
  Bytes bytes(std::uint32_t tensor) const { return std::as_bytes(std::span(&tensors_[tensor], 1)); }

  Manifest manifest_;
  std::vector<std::uint64_t> tensors_;
};

double microseconds_since(std::chrono::steady_clock::time_point started) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started).count();
}

Result<double> contributors_us(const Repository& repository, VersionNumber number, std::uint64_t& count) {
  Samples samples;
  for (int i = 0; i < 51; ++i) {
    const auto started = std::chrono::steady_clock::now();
    FRESHET_ASSIGN(const auto rows, repository.contributors({.model = "net", .number = number}));
    samples.add(microseconds_since(started));
    count = rows.size();
  }
  return samples.median();
}

}  // namespace

Result<MetadataSize> measure_metadata(const std::string& folder, const MetadataCase& wanted) {
  FRESHET_ASSIGN(auto owned, open_rocks_backend({.folder = folder}));
  Backend& backend = *owned;
  FRESHET_ASSIGN(const auto repository, Repository::open(std::move(owned), {}));
  FRESHET_ASSIGN(auto architecture, architecture_of(wanted.tensors));
  Line line(std::move(architecture));
  MetadataSize size;
  Samples puts;
  std::uint64_t segments = 0;
  for (std::uint64_t version = 0; version < wanted.versions; ++version) {
    std::vector<std::uint32_t> changed;
    const std::uint32_t count = version == 0 ? wanted.tensors : wanted.changed;
    for (std::uint32_t i = 0; i < count; ++i) {
      changed.push_back(static_cast<std::uint32_t>((version * wanted.changed + i) % wanted.tensors));
    }
    segments += changed.size();
    line.advance(changed);
    const auto started = std::chrono::steady_clock::now();
    FRESHET_TRY(line.put_into(*repository));
    puts.add(microseconds_since(started) / 1000);
  }
  size.put_ms = puts.median();
  size.needed_bytes = segments * kNeededPerSegment + wanted.versions * kNeededPerVersion;
  FRESHET_TRY(backend.scan("", [&size](std::string_view key, std::string_view value) {
    size.record_bytes += key.size() + value.size();
    return true;
  }));
  FRESHET_TRY(backend.reclaim());
  FRESHET_ASSIGN(const DiskUse disk, backend.disk_use());
  size.disk_bytes = disk.bytes - std::min(disk.bytes, segments * kTensorBytes);
  std::uint64_t ignored = 0;
  FRESHET_ASSIGN(size.contributors_first_us, contributors_us(*repository, 1, ignored));
  FRESHET_ASSIGN(size.contributors_newest_us, contributors_us(*repository, wanted.versions, size.contributors));
  return size;
}

}  // namespace freshet::benchmarks
