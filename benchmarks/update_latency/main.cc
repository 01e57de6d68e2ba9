// SPDX-License-Identifier: Apache-2.0
/// How long a model's update takes from one process of the host into another: Freshet against what a user would do
/// instead, in the same run, taking turns. The README beside it says what each row and ratio means.

#include <malloc.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "benchmarks/common/child.h"
#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/update_latency/freshet_subject.h"
#include "benchmarks/update_latency/subject.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

struct Options {
  bool quick = false;
  bool json = false;
  int repetitions = 0;
  std::vector<std::string> subjects;     ///< Empty: all.
  std::vector<std::uint64_t> megabytes;  ///< Of the models to run; empty: all.
  Setting setting;
};

struct ModelSize {
  std::uint64_t megabytes;
  std::size_t tensors;
};

constexpr int kWarmUps = 3;

std::string default_python() {
  const auto venv = std::filesystem::path(own_path()).parent_path() / "../../peers/bin/python";
  return std::filesystem::exists(venv) ? venv.string() : "python3";
}

/// Memory that the kernel could give, and what a model's subjects need: the model, three copies in the arena, and a
/// buffer or two for each peer.
bool has_memory_for(std::uint64_t model_bytes) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::string unit;
  for (std::uint64_t kib = 0; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemAvailable:") return kib * 1024 > 11 * model_bytes;
  }
  return false;
}

class Benchmark {
 public:
  Benchmark(Options options, Report& report) : options_(std::move(options)), report_(report) {}

  Status run() {
    const std::vector<ModelSize> sizes = options_.quick ? std::vector<ModelSize>{{64, 9}, {256, 24}}
                                                        : std::vector<ModelSize>{{64, 9}, {600, 24}, {1700, 40}};
    const ModelSize& of_ratios = sizes[1];
    for (const ModelSize& size : sizes) {
      const auto& wanted = options_.megabytes;
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), size.megabytes) == wanted.end()) continue;
      if (auto status = run_model(size, size.megabytes == of_ratios.megabytes); !status) {
        return fail(std::move(status).error().with_context(format("{} MB", size.megabytes)));
      }
    }
    set_ratios(format("{}MB_all", of_ratios.megabytes), format("{}MB_found25", of_ratios.megabytes));
    return {};
  }

 private:
  Status run_model(const ModelSize& size, bool of_ratios) {
    const std::uint64_t bytes = size.megabytes * 1'000'000;
    if (!has_memory_for(bytes)) {
      report_.skip(format("{}MB", size.megabytes), "too little memory for all subjects at a time");
      return {};
    }
    FRESHET_ASSIGN(const auto model, Model::create(bytes, size.tensors));
    auto subjects = make_subjects(*model);
    const std::string name = format("{}MB", size.megabytes);
    FRESHET_TRY(run_case(*model, subjects, name + "_all", Mode::all, model->all()));
    FRESHET_TRY(run_case(*model, subjects, name + "_told25", Mode::told, model->quarter()));
    FRESHET_TRY(run_case(*model, subjects, name + "_found25", Mode::found, model->quarter()));
    for (const auto& subject : subjects) {
      auto* const freshet = dynamic_cast<FreshetSubject*>(subject.get());
      if (freshet != nullptr && of_ratios) FRESHET_TRY(freshet->measure_reader_stall(*model, report_));
    }
    return {};
  }

  std::vector<std::unique_ptr<Subject>> make_subjects(const Model& model) {
    std::vector<std::unique_ptr<Subject>> subjects;
    const auto add = [&](const std::string& name, const auto& make) {
      const auto& wanted = options_.subjects;
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) return;
      auto subject = make();
      if (subject) {
        subjects.push_back(std::move(*subject));
      } else {
        report_.skip(name, subject.error().message());
        std::fprintf(stderr, "update_latency: skipped %s: %s\n", name.c_str(), subject.error().message().c_str());
      }
    };
    const Setting& setting = options_.setting;
    add("memcpy", [&] { return make_memcpy(model); });
    add("freshet", [&] { return FreshetSubject::make(model); });
    add("h5py_disk", [&] { return make_h5py(model, setting, true); });
    add("h5py_shm", [&] { return make_h5py(model, setting, false); });
    add("safetensors_shm", [&] { return make_safetensors(model, setting); });
    add("redis", [&] { return make_redis(model, setting); });
    add("ucx_am", [&] { return make_ucx(model); });
    return subjects;
  }

  /// The subjects take turns within each repetition, so that what disturbs the machine disturbs all alike.
  Status run_case(Model& model, const std::vector<std::unique_ptr<Subject>>& subjects, const std::string& name,
                  Mode mode, const std::vector<std::uint32_t>& changed) {
    std::fprintf(stderr, "update_latency: %s\n", name.c_str());
    const int repetitions = options_.repetitions > 0 ? options_.repetitions : options_.quick ? 5 : 9;
    std::vector<Samples> samples(subjects.size());
    for (int round = -kWarmUps; round < repetitions; ++round) {
      for (std::size_t i = 0; i < subjects.size(); ++i) {
        if (mode == Mode::found && !subjects[i]->can_find()) continue;
        model.step(changed, ++stamp_);
        const auto milliseconds = subjects[i]->update(model, mode, changed);
        if (!milliseconds) return fail(Error(milliseconds.error()).with_context(subjects[i]->name()));
        if (round >= 0) samples[i].add(*milliseconds);
        if (round == -1) subjects[i]->forget();
      }
    }
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      report_.add_row(name, subjects[i]->name(), "ms", samples[i]);
      subjects[i]->report_more(report_, name);
    }
    return {};
  }

  /// A peer's time divided by ours: larger is better for us, 1 is parity.
  void set_ratios(const std::string& all, const std::string& found) {
    for (const std::string peer : {"memcpy", "h5py_disk", "h5py_shm", "safetensors_shm", "redis", "ucx_am"}) {
      report_.set_ratio("vs_" + peer, report_.median(all, peer) / report_.median(all, "freshet"));
    }
    report_.set_ratio("blocked_vs_memcpy", report_.median(all, "memcpy") / report_.median(all, "freshet_blocked"));
    report_.set_ratio("found_blocked_vs_memcpy",
                      report_.median(found, "memcpy") / report_.median(found, "freshet_blocked"));
  }

  const Options options_;
  Report& report_;
  std::uint64_t stamp_ = 0;
};

int run_role(const std::string& role, const std::vector<std::string>& arguments) {
  if (role == "redis-reader" && arguments.size() == 2) return run_redis_reader(arguments);
  if (role == "ucx-reader" && arguments.size() == 1) return run_ucx_reader(arguments);
  if (role == "freshet-reader" && arguments.size() == 1) return run_freshet_reader(arguments);
  std::fprintf(stderr, "update_latency: no role '%s'\n", role.c_str());
  return 2;
}

int run_main(int argc, char** argv) {
  CLI::App app("How long a model's update takes from one process into another");
  Options options;
  std::string role;
  std::vector<std::string> arguments;
  options.setting = {.python = default_python(), .disk = "/var/tmp", .memory = "/dev/shm"};
  app.add_flag("--quick", options.quick, "Smaller models, about a minute");
  app.add_flag("--json", options.json, "Nothing but the JSON line on standard output");
  app.add_option("--repetitions", options.repetitions, "Measured updates per case and subject");
  app.add_option("--subjects", options.subjects,
                 "Only these: memcpy, freshet, h5py_disk, h5py_shm, safetensors_shm, redis, ucx_am")
      ->delimiter(',');
  app.add_option("--models", options.megabytes, "Only the models of these megabytes: 64, 600, 1700")->delimiter(',');
  app.add_option("--python", options.setting.python, "A Python that has h5py, numpy and safetensors");
  app.add_option("--disk", options.setting.disk, "A folder on a disk");
  app.add_option("--redis-server", options.setting.redis, "The Redis server's program");
  app.add_option("--role", role)->group("");
  app.add_option("arguments", arguments)->group("");
  if (const auto code = ends_at_words(app, argc, argv)) return *code;
  if (!role.empty()) return run_role(role, arguments);
  // A peer's large buffers, freed, must not make the allocator return pages that Freshet's next update would touch
  // again.
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return print_report("update_latency", options.json,
                      [&](Report& report) { return Benchmark(options, report).run(); });
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) { return freshet::benchmarks::run_main(argc, argv); }
