// SPDX-License-Identifier: Apache-2.0
/// provenance: how long questions about a lineage take at depth 10,000, beside what people keep one in instead, and how
/// large a repository's records grow when each version changes 5 % of its tensors.
///
/// usage: provenance [--quick] [--json] [--folder DIR]

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/provenance/metadata.h"
#include "benchmarks/provenance/peers.h"
#include "core/base/format.h"
#include "repo/repository.h"

namespace freshet::benchmarks {
namespace {

struct Options : CommonOptions {
  std::string folder = std::filesystem::temp_directory_path();
};

VersionName name_of(std::uint64_t version) { return {.model = model_name(), .number = version}; }

VersionId id_of(std::uint64_t version) { return {.run = {.high = 3, .low = 4}, .incarnation = 1, .sequence = version}; }

Result<std::unique_ptr<Repository>> repository_of(const Family& family) {
  FRESHET_ASSIGN(auto repository, Repository::open(make_memory_backend(), {}));
  FRESHET_ASSIGN(auto architecture,
                 Architecture::guess_chain({{.name = "layer.kernel", .dtype = DType::u8, .shape = {8}}}));
  for (std::uint64_t version = 1; version <= family.versions(); ++version) {
    const std::uint64_t ancestor = family.ancestor[version];
    Manifest manifest;
    manifest.name.model = model_name();
    manifest.id = id_of(version);
    manifest.architecture = architecture;
    manifest.owners = OwnerMap::all_written_by(manifest.id, 1);
    const std::uint64_t tensor[1] = {version};
    const Bytes bytes = std::as_bytes(std::span(tensor));
    manifest.digests = {digest_of(bytes)};
    if (ancestor != 0) {
      manifest.ancestor = id_of(ancestor);
      manifest.ancestor_name = name_of(ancestor);
    }
    const auto bytes_of = [&](std::uint32_t) -> Result<Bytes> { return bytes; };
    FRESHET_ASSIGN(const VersionName name, repository->put(manifest, bytes_of, {.quality = 0.5}));
    if (name.number != version) return fail(Code::corrupt, "a version has another number than it should");
  }
  return repository;
}

class Benchmark {
 public:
  Benchmark(Options options, Report& report) : options_(std::move(options)), report_(report) {}

  Status run() {
    return in_new_folder(options_.folder, [this](const std::string& folder) -> Status {
      FRESHET_TRY(lineages(folder));
      return metadata(folder);
    });
  }

 private:
  /// A row of calls, each of which must answer `expected`.
  Status measure(const std::string& case_name, const std::string& subject, int calls, std::uint64_t expected,
                 const std::function<Result<std::uint64_t>()>& ask) {
    Samples samples;
    for (int i = -1; i < calls; ++i) {  // The first one warms up.
      const auto started = std::chrono::steady_clock::now();
      FRESHET_ASSIGN(const std::uint64_t answer, ask());
      const double time = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
      if (answer != expected) {
        return fail(Code::corrupt, format("{} of {}: {} in the place of {}", case_name, subject, answer, expected));
      }
      if (i >= 0) samples.add(time * 1000);
    }
    report_.add_row(case_name, subject, "us", samples);
    return {};
  }

  Status lineages(const std::string& folder) {
    for (const std::uint64_t depth : {100, 10'000}) {
      const Family family = Family::of_depth(depth);
      const std::string mrca = format("mrca_{}", depth);
      const std::string lineage = format("lineage_{}", depth);
      FRESHET_ASSIGN(const auto repository, repository_of(family));
      FRESHET_TRY(measure(mrca, "freshet", 1001, family.parting, [&]() -> Result<std::uint64_t> {
        FRESHET_ASSIGN(const auto common, repository->mrca(name_of(family.end_a), name_of(family.end_b)));
        return common ? common->number : 0;
      }));
      FRESHET_TRY(measure(lineage, "freshet", 101, depth, [&]() -> Result<std::uint64_t> {
        FRESHET_ASSIGN(const auto rows, repository->lineage(name_of(family.end_b)));
        return rows.size();
      }));
      FRESHET_TRY(measure(format("descendants_{}", depth), "freshet", 51, family.versions() - 1,
                          [&]() -> Result<std::uint64_t> {
                            FRESHET_ASSIGN(const auto rows, repository->descendants(name_of(1)));
                            return rows.size();
                          }));
      const std::string place = format("{}/{}", folder, depth);
      std::filesystem::create_directory(place);
      FRESHET_TRY(peer("sqlite", open_sqlite_peer(place, family), family, depth));
      FRESHET_TRY(peer("json_files", open_json_peer(place + "/json", family), family, depth));
    }
    return {};
  }

  Status peer(const std::string& subject, Result<std::unique_ptr<LineagePeer>> opened, const Family& family,
              std::uint64_t depth) {
    if (!opened && opened.error().code() == Code::unsupported) {
      report_.skip(subject, opened.error().message());
      return {};
    }
    if (!opened) return fail(std::move(opened).error());
    LineagePeer& peer = **opened;
    const std::string mrca = format("mrca_{}", depth);
    const std::string lineage = format("lineage_{}", depth);
    const int calls = options_.quick ? 5 : 21;
    FRESHET_TRY(measure(mrca, subject, calls, family.parting, [&] { return peer.mrca(family.end_a, family.end_b); }));
    FRESHET_TRY(measure(lineage, subject, calls, depth, [&] { return peer.lineage(family.end_b); }));
    for (const std::string& name : {mrca, lineage}) {
      report_.set_ratio(format("{}_vs_{}", name, subject),
                        report_.median(name, subject) / report_.median(name, "freshet"));
    }
    return {};
  }

  Status metadata(const std::string& folder) {
    MetadataCase wanted;
    if (options_.quick) wanted.versions = 1000;
    FRESHET_ASSIGN(const MetadataSize size, measure_metadata(folder + "/repository", wanted));
    const std::string name = format("{}_versions_{}_of_{}", wanted.versions, wanted.changed, wanted.tensors);
    const auto row = [&](const char* subject, const char* unit, double value) {
      report_.add_row(name, subject, unit, value);
    };
    row("needed", "kB", static_cast<double>(size.needed_bytes) / 1000);
    row("records", "kB", static_cast<double>(size.record_bytes) / 1000);
    row("records_on_disk", "kB", static_cast<double>(size.disk_bytes) / 1000);
    row("put", "ms", size.put_ms);
    row("contributors_of_first", "us", size.contributors_first_us);
    row(format("contributors_of_newest_{}", size.contributors).c_str(), "us", size.contributors_newest_us);
    report_.set_ratio("needed_vs_records",
                      static_cast<double>(size.needed_bytes) / static_cast<double>(size.record_bytes));
    report_.set_ratio("needed_vs_records_on_disk",
                      static_cast<double>(size.needed_bytes) / static_cast<double>(size.disk_bytes));
    return {};
  }

  const Options options_;
  Report& report_;
};

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  return run_benchmark(
      count, words,
      {.name = "provenance",
       .about = "Questions about lineages, and how the records grow",
       .options = options,
       .add_options =
           [&](CLI::App& app) { app.add_option("--folder", options.folder, "Where repositories are made"); }},
      [&](Report& report) { return Benchmark(options, report).run(); });
}
