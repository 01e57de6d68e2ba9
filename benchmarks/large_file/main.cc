// SPDX-License-Identifier: Apache-2.0
/// large_file: `freshet repo put` and `get` of a large file beside `cp` and a sync, and the memory that `freshet
/// publish` holds of it.
///
/// usage: large_file [--quick] [--json] [--megabytes N] [--folder DIR]

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include <nlohmann/json.hpp>
#include "benchmarks/common/child.h"
#include "benchmarks/common/command_cost.h"
#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "core/base/format.h"
#include "core/safetensors/safetensors.h"

namespace freshet::benchmarks {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTensors = 100;
constexpr int kLoopVersions = 5;

struct Options : CommonOptions {
  std::uint64_t megabytes = 0;
  std::string folder = fs::temp_directory_path();
};

Status write_model(const std::string& path, std::uint64_t bytes, std::uint64_t seed) {
  const std::uint64_t each = std::max<std::uint64_t>(bytes / kTensors / 8 * 8, 8);
  std::vector<std::uint64_t> words(each / 8 + kTensors);
  std::mt19937_64 random(seed);
  for (std::uint64_t& word : words) word = random();
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < kTensors; ++i) {
    tensors.push_back({.spec = {.name = format("layer{}.kernel", i), .dtype = DType::u8, .shape = {each}},
                       .data = bytes_of(words.data() + i, each / 8)});
  }
  return write_safetensors(path, tensors, {}, false);
}

/// A number of a line "Pss:  123 kB" in a file of /proc, in bytes.
Result<double> bytes_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    double kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  return fail(Code::unavailable, format("{} has no {}", path, key));
}

struct Held {
  double now = 0;
  double peak = 0;
};
Result<Held> held_by(pid_t pid) {
  Held held;
  FRESHET_ASSIGN(held.now, bytes_in(format("/proc/{}/smaps_rollup", pid), "Pss:"));
  FRESHET_ASSIGN(held.peak, bytes_in(format("/proc/{}/status", pid), "VmHWM:"));
  return held;
}

class Benchmark {
 public:
  Benchmark(Options options, Report& report)
      : options_(std::move(options)),
        report_(report),
        bytes_((options_.megabytes != 0 ? options_.megabytes
                : options_.quick        ? 300
                                        : 3200)
               << 20),
        program_(fs::path(own_path()).parent_path().parent_path() / "freshet") {}

  Status run() {
    return in_new_folder(options_.folder, [this](const std::string& folder) {
      folder_ = folder;
      ::setenv("FRESHET_RUN_DIR", (folder_ + "/run").c_str(), 1);
      ::setenv("XDG_STATE_HOME", (folder_ + "/state").c_str(), 1);
      return measure();
    });
  }

 private:
  Status measure() {
    const std::string name = format("{}MB", bytes_ >> 20);
    FRESHET_TRY(write_model(folder_ + "/model.safetensors", bytes_, 1));
    FRESHET_TRY(measure_times(name));
    FRESHET_ASSIGN(const Held none, publish_once(4096));
    FRESHET_ASSIGN(const Held first, publish_once(bytes_));
    FRESHET_ASSIGN(const Held loop, publish_in_a_loop());
    const auto add = [&](const std::string& subject, double held) {
      report_.add_row(name, subject, "models", (held - none.now) / static_cast<double>(bytes_));
    };
    add("publish_first", first.now);
    add("publish_first_peak", first.peak);
    add("publish_loop", loop.now);
    add("publish_loop_peak", loop.peak);
    return {};
  }

  Status measure_times(const std::string& name) {
    const std::string model = folder_ + "/model.safetensors";
    const std::string copy = folder_ + "/copy.safetensors";
    const std::string store = folder_ + "/store";
    struct Subject {
      std::string name;
      std::vector<std::string> words;
      std::string made;
      Samples samples;
    };
    Subject subjects[] = {{"cp_sync", {"sh", "-c", "cp \"$0\" \"$1\" && sync \"$1\"", model, copy}, copy, {}},
                          {"repo_put", {program_, "repo", "put", "m", "--weights", model, "--repo", store}, store, {}},
                          {"repo_get", {program_, "repo", "get", "m", "--output", copy, "--repo", store}, copy, {}}};
    const int tries = options_.quick ? 3 : 5;
    for (int i = 0; i <= tries; ++i) {  // The first one warms up.
      for (Subject& subject : subjects) {
        CommandCost cost;
        for (int run = 0; run < 2; ++run) {  // The second one finds the free memory that its own kind left.
          std::error_code ignored;
          fs::remove_all(subject.made, ignored);
          FRESHET_ASSIGN(cost, cost_of(subject.words));
        }
        if (i > 0) subject.samples.add(cost.wall_ms);
        if (subject.made == copy) fs::remove(copy);
      }
    }
    std::error_code ignored;
    fs::remove_all(store, ignored);
    fs::remove(copy, ignored);
    for (const Subject& subject : subjects) report_.add_row(name, subject.name, "ms", subject.samples);
    report_.set_ratio("put_vs_cp_sync", report_.median(name, "cp_sync") / report_.median(name, "repo_put"));
    report_.set_ratio("get_vs_cp_sync", report_.median(name, "cp_sync") / report_.median(name, "repo_get"));
    return {};
  }

  Result<Held> publish_once(std::uint64_t bytes) {
    const std::string file = folder_ + "/once.safetensors";
    FRESHET_TRY(write_model(file, bytes, 2));
    FRESHET_ASSIGN(const auto child, Child::start({program_, "publish", format("once{}", bytes), file, "--json"}));
    FRESHET_TRY(child->read_line(std::chrono::minutes(5)));
    const Result<Held> held = held_by(child->pid());
    ::kill(child->pid(), SIGINT);
    fs::remove(file);
    return held;
  }

  Result<Held> publish_in_a_loop() {
    const std::string folder = folder_ + "/in";
    fs::create_directory(folder);
    FRESHET_ASSIGN(const auto child, Child::start({program_, "publish", "loop", "--watch", folder, "--json"}));
    for (int i = 0; i < kLoopVersions; ++i) {
      const std::string aside = folder_ + "/aside";
      FRESHET_TRY(write_model(aside, bytes_, static_cast<std::uint64_t>(10 + i)));
      fs::rename(aside, format("{}/{}.safetensors", folder, i));
      FRESHET_TRY(child->read_line(std::chrono::minutes(5)));
      fs::remove(format("{}/{}.safetensors", folder, i));
    }
    // What a last, small file is answered with comes when the file before was let go.
    FRESHET_TRY(write_model(folder_ + "/aside", 4096, 3));
    fs::rename(folder_ + "/aside", folder + "/small.safetensors");
    const Result<std::string> none = child->read_line(std::chrono::seconds(5));
    if (none) return fail(Code::unavailable, "a small file was taken for a version of the large model");
    const Result<Held> held = held_by(child->pid());
    ::kill(child->pid(), SIGINT);
    return held;
  }

  const Options options_;
  Report& report_;
  const std::uint64_t bytes_;
  const std::string program_;
  std::string folder_;
};

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  return run_benchmark(count, words,
                       {.name = "large_file",
                        .about = "What commands do with one large file",
                        .options = options,
                        .add_options =
                            [&](CLI::App& app) {
                              app.add_option("--megabytes", options.megabytes, "of the file (default 3200)");
                              app.add_option("--folder", options.folder, "where to store all of it meanwhile");
                            }},
                       [&](Report& report) { return Benchmark(options, report).run(); });
}
