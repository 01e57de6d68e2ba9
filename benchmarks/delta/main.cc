// SPDX-License-Identifier: Apache-2.0
/// delta: what an element delta costs and saves. Length per changed element, time to encode, time to apply and prove,
/// working memory; beside other formats for the same changes, a memcpy of the model, and sending everything.
///
/// usage: delta [--quick] [--json]

#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <thread>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/delta/peers.h"
#include "benchmarks/delta/trace.h"
#include "core/base/check.h"
#include "core/base/format.h"
#include "core/delta/choose_encoding.h"
#include "core/delta/element_delta.h"
#include "core/vector/copy.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kSeed = 20261121;
constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
constexpr double kGigabit = 125e6;
constexpr std::size_t kScrubBytes = std::size_t{96} << 20;

DeltaSpec spec_of(DType dtype) {
  return {.dtype = dtype,
          .base = {.writer = {.run = {1, 2}, .incarnation = 1, .sequence = 1}, .tensor = 0},
          .target = {.writer = {.run = {1, 2}, .incarnation = 1, .sequence = 2}, .tensor = 0}};
}

/// A line of /proc/self/status, in bytes.
std::uint64_t status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

/// How much more memory than before was in use at the worst moment of `work`, done by a thread that has never coded.
std::uint64_t peak_growth(const std::function<void()>& work) {
  std::uint64_t growth = 0;
  std::thread([&] {
    std::ofstream("/proc/self/clear_refs") << 5;  // The peak starts from here.
    const std::uint64_t before = status_bytes("VmRSS");
    work();
    growth = status_bytes("VmHWM") - before;
  }).join();
  return growth;
}

double thread_milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

class Benchmark {
 public:
  Benchmark(CommonOptions options, Report& report)
      : options_(options), report_(report), elements_(std::size_t{options.quick ? 8u : 64u} << 20), scrub_(kScrubBytes, std::byte{1}) {
    peers_.push_back(make_index_and_value());
    peers_.push_back(make_gap_xor_zstd());
    peers_.push_back(make_xor_zstd());
  }

  Status run() {
    {
      const SyntheticTrace trace(elements_, kSeed);
      memory_.resize(2 * elements_);
      for (const auto& [name, density] :
           std::vector<std::pair<std::string, double>>{{"0.6", 0.006}, {"1.6", 0.016}, {"4", 0.04}, {"35", 0.35}}) {
        const TensorPair pair = trace.pair(density);
        FRESHET_TRY(measure_synthetic(name, pair));
        if (name == "1.6") FRESHET_TRY(measure_memory(pair));
      }
    }
    return measure_recorded();
  }

 private:
  /// Milliseconds of this thread's processor, so that others on a busy machine do not count; caches hold something else
  /// at the start.
  template <typename Work>
  double milliseconds_of(Work work) {
    for (std::size_t at = 0; at < scrub_.size(); at += 64) scrub_[at] ^= std::byte{1};
    const double started = thread_milliseconds();
    work();
    return thread_milliseconds() - started;
  }

  struct Times {
    Samples encode;
    Samples apply;
    std::size_t bytes = 0;
  };

  Status measure_synthetic(const std::string& name, const TensorPair& pair) {
    const DeltaSpec spec = spec_of(pair.dtype);
    const std::uint64_t changed = count_changed_elements(pair.dtype, pair.base, pair.target);
    Samples copy;
    Samples dense;
    Times ours;
    std::vector<Times> theirs(peers_.size());
    const int repetitions = options_.quick ? 9 : 11;
    for (int i = 0; i <= repetitions; ++i) {
      const bool counts = i > 0;  // The first one warms up.
      const auto add = [counts](Samples& samples, double value) {
        if (counts) samples.add(value);
      };
      add(dense, milliseconds_of([&] { copy_and_digest(memory_, pair.target); }));
      add(copy, milliseconds_of([&] { std::memcpy(memory_.data(), pair.base.data(), memory_.size()); }));
      std::optional<std::vector<std::byte>> payload;
      add(ours.encode, milliseconds_of([&] { payload = encode_delta(spec, pair.base, pair.target, kNoLimit); }));
      Status status;
      add(ours.apply, milliseconds_of([&] { status = apply_delta(spec, *payload, memory_).map([](const auto&) {}); }));
      FRESHET_TRY(status);
      if (memory_ != pair.target) return fail(Code::corrupt, "the delta did not lead to its target");
      ours.bytes = payload->size();
      if (i <= repetitions / 2) FRESHET_TRY(measure_peers(pair, counts, theirs));
    }
    report_case(name, pair, changed, copy, dense, ours, theirs);
    return {};
  }

  Status measure_peers(const TensorPair& pair, bool counts, std::vector<Times>& times) {
    for (std::size_t k = 0; k < peers_.size(); ++k) {
      std::vector<std::byte> payload;
      const double encode = milliseconds_of([&] { payload = peers_[k]->encode(pair.base, pair.target); });
      std::memcpy(memory_.data(), pair.base.data(), memory_.size());
      Status status;
      const double apply = milliseconds_of([&] { status = peers_[k]->apply(payload, memory_); });
      FRESHET_TRY(status);
      if (memory_ != pair.target)
        return fail(Code::corrupt, format("the delta of {} did not lead to its target", peers_[k]->name()));
      times[k].bytes = payload.size();
      if (!counts) continue;
      times[k].encode.add(encode);
      times[k].apply.add(apply);
    }
    return {};
  }

  void add_times(const std::string& name, const std::string& subject, std::uint64_t changed, const Times& times) {
    report_.add_row(name, subject, "bytes per changed element",
                    static_cast<double>(times.bytes) / static_cast<double>(changed));
    report_.add_row(name, subject + "_encode", "ms", times.encode);
    report_.add_row(name, subject + "_apply", "ms", times.apply);
  }

  void report_case(const std::string& density, const TensorPair& pair, std::uint64_t changed, const Samples& copy,
                   const Samples& dense, const Times& ours, const std::vector<Times>& theirs) {
    const std::string name = "bf16_" + density;
    report_.add_row(name, "changed", "%", 100.0 * static_cast<double>(changed) / static_cast<double>(elements_));
    report_.add_row(name, "memcpy", "ms", copy);
    report_.add_row(name, "dense_copy_and_digest", "ms", dense);
    add_times(name, "freshet", changed, ours);
    for (std::size_t k = 0; k < peers_.size(); ++k) add_times(name, peers_[k]->name(), changed, theirs[k]);

    const double model = static_cast<double>(memory_.size());
    report_.set_ratio("bytes_per_element_" + density, report_.median(name, "freshet"));
    report_.set_ratio("encode_vs_memcpy_" + density, copy.median() / ours.encode.median());
    report_.set_ratio("apply_and_prove_vs_memcpy_" + density, copy.median() / ours.apply.median());
    report_.set_ratio("dense_bytes_vs_delta_" + density, model / static_cast<double>(ours.bytes));
    if (density == "1.6") report_.set_ratio("encode_vs_memcpy", copy.median() / ours.encode.median());
    for (const double gigabits : {1.0, 10.0, 100.0}) {
      const double link = gigabits * kGigabit;
      const Encoding chosen = choose_encoding(sampled_question(DType::bf16, pair.base, pair.target, link));
      const double dense_ms = dense.median() + model / link * 1e3;
      const double delta_ms = ours.encode.median() + ours.apply.median() + static_cast<double>(ours.bytes) / link * 1e3;
      report_.set_ratio(format("chosen_vs_dense_{}_at_{}gbps", density, gigabits),
                        dense_ms / (chosen == Encoding::delta ? delta_ms : dense_ms));
    }
  }

  /// Each direction by a thread of its own, so that its working memory is counted. The payload is a result, not working
  /// memory.
  Status measure_memory(const TensorPair& pair) {
    const DeltaSpec spec = spec_of(pair.dtype);
    std::optional<std::vector<std::byte>> payload;
    const std::uint64_t encoding = peak_growth([&] { payload = encode_delta(spec, pair.base, pair.target, kNoLimit); });
    std::memcpy(memory_.data(), pair.base.data(), memory_.size());
    Status status;
    const std::uint64_t applying =
        peak_growth([&] { status = apply_delta(spec, *payload, memory_).map([](const auto&) {}); });
    FRESHET_TRY(status);
    const std::uint64_t kept = std::min<std::uint64_t>(encoding, payload->size());
    Samples encode;
    Samples apply;
    encode.add(static_cast<double>(encoding - kept) / (1 << 20));
    apply.add(static_cast<double>(applying) / (1 << 20));
    report_.add_row("memory_1.6", "freshet_encode", "MiB beside the payload", encode);
    report_.add_row("memory_1.6", "freshet_apply", "MiB", apply);
    report_.set_ratio("temporary_mib", std::max(encode.median(), apply.median()));
    return {};
  }

  /// Tensor by tensor, as a publisher would.
  Status measure_recorded() {
    auto trace = record_trace();
    if (!trace) {
      report_.skip("recorded", trace.error().message());
      return {};
    }
    FRESHET_TRY(measure_tensors("recorded_f32", trace->f32));
    return measure_tensors("recorded_bf16", trace->bf16);
  }

  Status measure_tensors(const std::string& name, const std::vector<TensorPair>& pairs) {
    std::uint64_t changed = 0;
    std::uint64_t elements = 0;
    std::uint64_t dense = 0;
    std::uint64_t sent = 0;
    for (const TensorPair& pair : pairs) {
      const DeltaSpec spec = spec_of(pair.dtype);
      changed += count_changed_elements(pair.dtype, pair.base, pair.target);
      elements += pair.base.size() / word_bytes_of(pair.dtype);
      dense += pair.base.size();
      const auto payload = encode_delta(spec, pair.base, pair.target, pair.base.size());
      sent += payload ? payload->size() : pair.base.size();
      if (!payload) continue;
      std::vector<std::byte> memory = pair.base;
      FRESHET_TRY(apply_delta(spec, *payload, memory).map([](const auto&) {}));
      if (memory != pair.target) return fail(Code::corrupt, "the delta did not lead to its target");
    }
    if (changed == 0) return fail(Code::failed_precondition, format("{}: nothing changed", name));
    const auto add = [&](const char* subject, const char* unit, double value) {
      report_.add_row(name, subject, unit, value);
    };
    add("changed", "% of the touched tensors", 100.0 * static_cast<double>(changed) / static_cast<double>(elements));
    add("freshet", "bytes per changed element", static_cast<double>(sent) / static_cast<double>(changed));
    add("dense", "bytes per changed element", static_cast<double>(dense) / static_cast<double>(changed));
    if (pairs.front().dtype == DType::bf16) add_peers_of_recorded(name, pairs, changed);
    report_.set_ratio("dense_bytes_vs_delta_" + name, static_cast<double>(dense) / static_cast<double>(sent));
    return {};
  }

  void add_peers_of_recorded(const std::string& name, const std::vector<TensorPair>& pairs, std::uint64_t changed) {
    for (const auto& peer : peers_) {
      std::uint64_t sent = 0;
      for (const TensorPair& pair : pairs) sent += peer->encode(pair.base, pair.target).size();
      report_.add_row(name, peer->name(), "bytes per changed element",
                      static_cast<double>(sent) / static_cast<double>(changed));
    }
  }

  const CommonOptions options_;
  Report& report_;
  const std::size_t elements_;
  std::vector<std::byte> scrub_;
  std::vector<std::byte> memory_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  CommonOptions options;
  return run_benchmark(
      count, words,
      {.name = "delta", .about = "Element deltas: their size and speed beside other formats", .options = options},
      [&](Report& report) { return Benchmark(options, report).run(); });
}
