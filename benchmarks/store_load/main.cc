// SPDX-License-Identifier: Apache-2.0
/// store_load: how long until a version of a model is stored, and until it, or a part of it, is in the caller's memory
/// again; against memory and disk themselves, and against the files that a Python user would write.
///
/// usage: store_load [--quick] [--json] [--folder DIR] [--python PYTHON] [--case NAME]

#include <malloc.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "benchmarks/common/child.h"
#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/store_load/subjects.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::array<unsigned, 4> kShares = {15, 25, 35, 50};
constexpr std::uint64_t kMB = 1'000'000;

struct Options : CommonOptions {
  std::string folder = "/var/tmp";
  std::string python;
  std::string only;  ///< A case.
};

std::uint64_t status_kib(const std::string& wanted, const char* path) {
  std::ifstream file(path);
  std::string key;
  std::uint64_t kib = 0;
  std::string rest;
  while (file >> key) {
    if (key == wanted) {
      file >> kib;
      return kib;
    }
    std::getline(file, rest);
  }
  return 0;
}

/// The most memory that this process had more than at the beginning.
class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";  // The high-water mark starts anew.
    before_ = status_kib("VmRSS:", "/proc/self/status");
  }
  double mb() const {
    // What was given back since may be more.
    const std::uint64_t peak = std::max(status_kib("VmHWM:", "/proc/self/status"), before_);
    return static_cast<double>(peak - before_) * 1024 / static_cast<double>(kMB);
  }

 private:
  std::uint64_t before_ = 0;
};

struct Case {
  std::string name;
  Sizes sizes;
};

std::vector<Case> cases_of(bool quick) {
  if (quick)
    return {{"256MB_100_even", even_sizes(256 * kMB, 100)}, {"256MB_100_uneven", uneven_sizes(256 * kMB, 100)}};
  std::vector<Case> cases;
  for (const std::uint64_t mb : {256, 1000}) {
    for (const std::size_t layers : {10, 100, 1000}) {
      cases.push_back({format("{}MB_{}_even", mb, layers), even_sizes(mb * kMB, layers)});
      cases.push_back({format("{}MB_{}_uneven", mb, layers), uneven_sizes(mb * kMB, layers)});
    }
  }
  cases.push_back({"vgg19", vgg19_sizes()});
  cases.push_back({"bert_large", bert_large_sizes()});
  cases.push_back({"4000MB_100_even", even_sizes(4000 * kMB, 100)});
  return cases;
}

/// Worst of all cases, so that a ratio hides none.
class Worst {
 public:
  void add(double value) {
    if (std::isnan(value)) return;
    value_ = std::isnan(value_) ? value : std::min(value_, value);
  }
  double value() const { return value_; }

 private:
  double value_ = std::nan("");
};

class Benchmark {
 public:
  Benchmark(Options options, Report& report) : options_(std::move(options)), report_(report) {}

  Status run() {
    for (const Case& one : cases_of(options_.quick)) {
      if (!options_.only.empty() && options_.only != one.name) continue;
      FRESHET_TRY(run_case(one));
    }
    for (const auto& [name, worst] : worst_) report_.set_ratio(name, worst.value());
    return {};
  }

 private:
  struct Row {
    std::string name;
    std::unique_ptr<Subject> subject;
    /// What keeps a model in memory is made when it is measured and freed then, so that a case takes three times its
    /// bytes and not eight; empty for what is on the disk.
    std::function<Result<std::unique_ptr<Subject>>()> renew;
  };

  Status run_case(const Case& one) {
    std::uint64_t bytes = 0;
    for (const std::uint64_t size : one.sizes) bytes += size;
    if (const std::string reason = missing_room(bytes); !reason.empty()) {
      report_.skip(one.name, reason);
      return {};
    }
    Status status =
        in_new_folder(options_.folder, [&](const std::string& folder) { return measure(one, folder); });
    if (!status) return fail(std::move(status).error().with_context(one.name));
    return {};
  }

  std::string missing_room(std::uint64_t bytes) const {
    // The tensors, a second set to load into, and up to one and a half of them kept; on the disk, half of them five
    // times beside the first.
    const std::uint64_t memory = status_kib("MemAvailable:", "/proc/meminfo") * 1024;
    if (memory < 4 * bytes) return format("needs {} MB of memory, {} are there", 4 * bytes / kMB, memory / kMB);
    struct statvfs disk {};
    if (::statvfs(options_.folder.c_str(), &disk) != 0) return "the folder's disk says nothing";
    const std::uint64_t room = disk.f_bavail * disk.f_frsize;
    return room < 10 * bytes ? format("needs {} MB of disk, {} are there", 10 * bytes / kMB, room / kMB) : "";
  }

  Status measure(const Case& one, const std::string& folder) {
    FRESHET_TRY(measure_peers(one, folder));
    Model model(one.sizes);
    const auto all = model.share(100);
    Row memory{"memory", nullptr, [&] { return make_freshet(model, Keep::memory_touched, folder); }};
    FRESHET_TRY(measure_shares(one.name, memory, model));
    memory.subject.reset();
    Row rocksdb{"rocksdb", nullptr, {}};
    FRESHET_TRY(open_anew(rocksdb, model, folder));
    FRESHET_TRY(measure_shares(one.name, rocksdb, model));
    FRESHET_TRY(open_anew(rocksdb, model, folder));  // Else the disk would have to hold all that was stored so far.
    std::vector<Row> rows;
    rows.push_back({"memcpy", nullptr, [&]() -> Result<std::unique_ptr<Subject>> { return make_copy(model); }});
    rows.push_back({"file", make_file(folder), {}});
    Samples ignored;
    model.next(all);
    for (Row* row : {&rows.back(), &rocksdb}) {
      FRESHET_TRY(store(*row, model, all, ignored));
      FRESHET_TRY(load(*row, model, all, ignored));
    }
    rows.push_back(std::move(memory));
    rows.push_back({"memory_untouched", nullptr, [&] { return make_freshet(model, Keep::memory_untouched, folder); }});
    rows.push_back(std::move(rocksdb));
    FRESHET_TRY(measure_whole(one.name, rows, model));
    add_ratios(one.name);
    return {};
  }

  static Status store(Row& row, const Model& model, std::span<const std::uint32_t> changed, Samples& samples) {
    Result<double> time = row.subject->store(model, changed);
    if (!time) return fail(std::move(time).error().with_context(row.name + " store"));
    samples.add(*time);
    return {};
  }

  static Status load(Row& row, Model& model, std::span<const std::uint32_t> tensors, Samples& samples) {
    Result<double> time = row.subject->load(model, tensors);
    if (!time) return fail(std::move(time).error().with_context(row.name + " load"));
    samples.add(*time);
    return {};
  }

  static Status open_anew(Row& rocksdb, const Model& model, const std::string& folder) {
    rocksdb.subject.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder + "/rocksdb", ignored);
    FRESHET_ASSIGN(rocksdb.subject, make_freshet(model, Keep::rocksdb, folder));
    return {};
  }

  // What the parts change; it warms up, too.
  static Status store_whole(Row& row, Model& model) {
    const auto all = model.share(100);
    Samples ignored;
    FRESHET_TRY(renew(row));
    model.next(all);
    FRESHET_TRY(store(row, model, all, ignored));
    return load(row, model, all, ignored);
  }

  Status measure_shares(const std::string& name, Row& row, Model& model) {
    if (!row.renew) FRESHET_TRY(store_whole(row, model));
    for (const unsigned share : kShares) FRESHET_TRY(measure_share(name, row, model, share));
    return {};
  }

  // What is in memory begins anew for each version.
  Status measure_share(const std::string& name, Row& row, Model& model, unsigned share) {
    const auto part = model.share(share);
    const std::string case_name = format("{}_{}%", name, share);
    Samples stores;
    Samples loads;
    Samples wholes;
    double moved = 0;
    for (int i = 0; i < repetitions(); ++i) {
      if (row.renew) FRESHET_TRY(store_whole(row, model));
      model.next(part);
      const std::uint64_t before = row.subject->kept_bytes();
      FRESHET_TRY(store(row, model, part, stores));
      moved = std::max(moved, static_cast<double>(row.subject->kept_bytes() - before));
      // A disk's rate is another one a minute later: what is compared is read by turns.
      FRESHET_TRY(load(row, model, part, loads));
      FRESHET_TRY(load(row, model, model.share(100), wholes));
      FRESHET_TRY(load(row, model, part, loads));
      FRESHET_TRY(model.check_loaded(part));
    }
    worst_[format("partial_read_{}", row.name)].add((share + 3) / 100.0 * wholes.min() / loads.min());
    report_.add_row(case_name, row.name + "_store", "ms", stores);
    report_.add_row(case_name, row.name + "_load", "ms", loads);
    report_.add_row(case_name, row.name + "_load_whole", "ms", wholes);
    if (share == 25) worst_["child_moves_26_percent"].add(0.26 * static_cast<double>(model.bytes()) / moved);
    return {};
  }

  // A few whole versions more, by turns; what was kept before is not erased, as in a series of them.
  Status measure_whole(const std::string& name, std::vector<Row>& rows, Model& model) {
    const auto all = model.share(100);
    std::map<std::string, Samples> stores;
    std::map<std::string, Samples> loads;
    std::map<std::string, Samples> extra;
    std::map<std::string, Samples> parts;
    for (int i = 0; i < repetitions(); ++i) {
      model.next(all);
      for (Row& row : rows) {
        FRESHET_TRY(renew(row));
        const PeakMemory peak;
        FRESHET_TRY(store(row, model, all, stores[row.name]));
        extra[row.name].add(peak.mb());
        const Parts spent = row.subject->parts();
        parts[row.name + "_write"].add(spent.write);
        parts[row.name + "_sync"].add(spent.sync);
        parts[row.name + "_records"].add(spent.records);
        FRESHET_TRY(load(row, model, all, loads[row.name]));
        FRESHET_TRY(model.check_loaded(all));
        if (row.renew) row.subject.reset();
      }
      Status status;
      parts["digest_alone"].add(milliseconds_of(
          [&]() -> Status {
            for (const std::uint32_t tensor : all) used_ ^= digest_of(model.tensor(tensor)).low;
            return {};
          },
          status));
    }
    for (Row& row : rows) {
      report_.add_row(name, row.name + "_store", "ms", stores[row.name]);
      report_.add_row(name, row.name + "_load", "ms", loads[row.name]);
    }
    for (const char* row : {"memory", "rocksdb"}) {
      report_.add_row(name, format("{}_put_extra_memory", row), "MB", extra[row]);
      for (const char* part : {"write", "sync", "records"}) {
        report_.add_row(name, format("{}_store_{}", row, part), "ms", parts[format("{}_{}", row, part)]);
      }
    }
    report_.add_row(name, "digest_alone", "ms", parts["digest_alone"]);
    // Beside the caller's tensors themselves, which RocksDB's put borrows.
    const double mb = static_cast<double>(model.bytes()) / static_cast<double>(kMB);
    worst_["put_peak_memory"].add(1.1 * mb / (mb + extra["rocksdb"].max()));
    return {};
  }

  static Status renew(Row& row) {
    if (!row.renew) return {};
    row.subject.reset();
    ::malloc_trim(0);  // Else the heap gives out memory that was touched before.
    FRESHET_ASSIGN(row.subject, row.renew());
    return {};
  }

  Status measure_peers(const Case& one, const std::string& folder) {
    Model numbered(Sizes(one.sizes.size(), 1));  // A peer has the tensors in its own process and is told their numbers.
    const auto all = numbered.share(100);
    for (const auto& [peer, kind] : {std::pair("h5py", PeerKind::h5py),
                                     {"h5py_disk", PeerKind::h5py_disk},
                                     {"safetensors", PeerKind::safetensors}}) {
      auto made = make_python(one.sizes, kind, options_.python, folder);
      if (!made) {
        report_.skip(peer, made.error().message());
        continue;
      }
      Row row{peer, std::move(*made), {}};
      Samples stores;
      Samples loads;
      Samples ignored;
      for (int i = 0; i <= repetitions(); ++i) {
        FRESHET_TRY(store(row, numbered, all, i == 0 ? ignored : stores));
        if (kind == PeerKind::h5py_disk) forget_pages(folder);
        FRESHET_TRY(load(row, numbered, all, i == 0 ? ignored : loads));
      }
      report_.add_row(one.name, format("{}_store", peer), "ms", stores);
      report_.add_row(one.name, format("{}_load", peer), "ms", loads);
    }
    return {};
  }

  double both(const std::string& name, const std::string& row) const {
    return report_.median(name, row + "_store") + report_.median(name, row + "_load");
  }

  void add_ratios(const std::string& name) {
    worst_["memory_vs_memcpy"].add(both(name, "memcpy") / both(name, "memory"));
    worst_["memory_vs_h5py_disk"].add(both(name, "h5py_disk") / both(name, "memory"));
    worst_["memcpy_vs_h5py_disk"].add(both(name, "h5py_disk") / both(name, "memcpy"));
    worst_["memory_vs_h5py_cached"].add(both(name, "h5py") / both(name, "memory"));
    worst_["memory_vs_safetensors"].add(both(name, "safetensors") / both(name, "memory"));
    worst_["memory_vs_untouched"].add(both(name, "memory_untouched") / both(name, "memory"));
    worst_["rocksdb_write_vs_disk"].add(report_.median(name, "file_store") / report_.median(name, "rocksdb_store"));
    worst_["rocksdb_read_vs_disk"].add(report_.median(name, "file_load") / report_.median(name, "rocksdb_load"));
  }

  static constexpr int repetitions() { return 5; }

  const Options options_;
  std::uint64_t used_ = 0;
  std::map<std::string, Worst> worst_;
  Report& report_;
};

std::string default_python() {
  const auto venv = std::filesystem::path(own_path()).parent_path() / "../../peers/bin/python";
  return std::filesystem::exists(venv) ? venv.string() : "python3";
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  options.python = default_python();
  return run_benchmark(count, words,
                       {.name = "store_load",
                        .about = "Storing a version, and reading it or a part of it back",
                        .options = options,
                        .add_options =
                            [&](CLI::App& app) {
                              app.add_option("--folder", options.folder, "Where versions are kept");
                              app.add_option("--python", options.python, "With h5py and safetensors");
                              app.add_option("--case", options.only, "One case");
                            }},
                       [&](Report& report) { return Benchmark(options, report).run(); });
}
