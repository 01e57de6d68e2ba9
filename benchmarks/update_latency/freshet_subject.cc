// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/update_latency/freshet_subject.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <sstream>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr int kStallUpdates = 40;
constexpr int kSmallWarmUps = 64;

std::uint64_t own_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_minflt + usage.ru_majflt);
}

Changed changed_of(Mode mode, std::span<const std::uint32_t> changed) {
  switch (mode) {
    case Mode::all: return Changed::all();
    case Mode::told: return Changed::only({changed.begin(), changed.end()});
    case Mode::found: return Changed::find();
  }
  return Changed::find();
}

/// What the reader says after each swap.
struct SwapLine {
  VersionNumber version = 0;
  std::int64_t swapped_ns = 0;
  std::int64_t notify_ns = 0;
  std::uint64_t faults = 0;
  std::vector<std::uint64_t> stamps;  ///< The first 8 bytes of each tensor.
};

Result<SwapLine> parse_swap(const std::string& line) {
  std::istringstream stream(line);
  std::string word;
  SwapLine swap;
  if (!(stream >> word >> swap.version >> swap.swapped_ns >> swap.notify_ns >> swap.faults) || word != "swap") {
    return fail(Code::corrupt, format("the reader said '{}'", line));
  }
  for (std::uint64_t stamp = 0; stream >> stamp;) swap.stamps.push_back(stamp);
  return swap;
}

}  // namespace

Result<std::unique_ptr<Subject>> FreshetSubject::make(const Model& model) {
  std::unique_ptr<FreshetSubject> subject(new FreshetSubject());
  subject->folder_ = (std::filesystem::temp_directory_path() / "freshet-bench-XXXXXX").string();
  if (::mkdtemp(subject->folder_.data()) == nullptr) return fail_errno(errno, "make a folder");
  FRESHET_ASSIGN(subject->publisher_,
                 Publisher::open({.model = "bench", .hub_options = {.directory = subject->folder_}}));
  FRESHET_ASSIGN(subject->reader_, Child::start({own_path(), "--role=freshet-reader", subject->folder_}));
  FRESHET_TRY(subject->update(model, Mode::all, model.all()));
  // The heaps of both processes settle during the first versions; small ones do for that.
  for (int i = 0; i < kSmallWarmUps; ++i)
    FRESHET_TRY(subject->update(model, Mode::told, std::array<std::uint32_t, 1>{0}));
  return subject;
}

FreshetSubject::~FreshetSubject() {
  reader_.reset();
  publisher_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Result<double> FreshetSubject::update(const Model& model, Mode mode, std::span<const std::uint32_t> changed) {
  PublishOptions options{.step = ++step_, .changed = changed_of(mode, changed)};
  const std::uint64_t faults_before = own_faults();
  const std::int64_t start_ns = monotonic_ns();
  FRESHET_ASSIGN(const PublishReceipt receipt, publisher_->publish(model.views(), std::move(options)));
  const std::int64_t returned_ns = monotonic_ns();
  FRESHET_ASSIGN(const CommitReport report, publisher_->wait_committed(receipt.version, std::chrono::seconds(60)));
  for (;;) {
    FRESHET_ASSIGN(const std::string line, reader_->read_line());
    FRESHET_ASSIGN(const SwapLine swap, parse_swap(line));
    if (swap.version < receipt.version) continue;
    FRESHET_TRY(check_stamp(model, changed, swap.stamps.at(changed.back())));
    measured_.blocked_ms.add(static_cast<double>(returned_ns - start_ns) / 1e6);
    measured_.commit_ms.add(static_cast<double>(report.capture_to_commit.count()) / 1e6);
    measured_.notify_us.add(static_cast<double>(swap.notify_ns) / 1e3);
    measured_.faults.add(static_cast<double>(own_faults() - faults_before + swap.faults - reader_faults_));
    reader_faults_ = swap.faults;
    return static_cast<double>(swap.swapped_ns - start_ns) / 1e6;
  }
}

void FreshetSubject::report_more(Report& report, const std::string& case_name) {
  report.add_row(case_name, "freshet_blocked", "ms", measured_.blocked_ms);
  report.add_row(case_name, "freshet_committed", "ms", measured_.commit_ms);
  report.add_row(case_name, "freshet_notify", "us", measured_.notify_us);
  report.add_row(case_name, "freshet_page_faults", "count", measured_.faults);
  all_notify_us_.add(measured_.notify_us);
  all_faults_.add(measured_.faults);
  measured_ = {};
}

Status FreshetSubject::measure_reader_stall(Model& model, Report& report) {
  // Page faults are those of the cases, where nothing but updates happened. A few updates meet a page of the heap that
  // grows by a record per version; a first touch of the model's memory would show as thousands in every one.
  report.set_ratio("page_faults_after_warmup", all_faults_.median());
  report.set_ratio("page_faults_mean", all_faults_.sum() / static_cast<double>(all_faults_.count()));
  const std::vector<std::uint32_t> changed = model.quarter();
  FRESHET_TRY(reader_->write_line("stall start"));
  FRESHET_ASSIGN(const std::string started, reader_->read_line());
  for (int i = 0; i < kStallUpdates; ++i) {
    model.step(changed, std::uint64_t{1} << 40 | static_cast<std::uint64_t>(i));
    FRESHET_TRY(update(model, Mode::told, changed));
  }
  FRESHET_TRY(reader_->write_line("stall stop"));
  FRESHET_ASSIGN(const std::string line, reader_->read_line());
  std::istringstream stream(line);
  std::string word;
  double count = 0;
  double p50 = 0;
  double p99 = 0;
  double p999 = 0;
  double max = 0;
  if (!(stream >> word >> count >> p50 >> p99 >> p999 >> max)) return fail(Code::corrupt, "the reader said: " + line);
  report.set_ratio("reader_snapshots", count);
  report.set_ratio("reader_stall_p50_us", p50);
  report.set_ratio("reader_stall_p99_us", p99);
  report.set_ratio("reader_stall_p999_us", p999);
  report.set_ratio("reader_stall_max_us", max);
  report.set_ratio("notify_p50_us", all_notify_us_.percentile(0.5));
  report.set_ratio("notify_p99_us", all_notify_us_.percentile(0.99));
  report.set_ratio("notify_busy_p99_us", measured_.notify_us.percentile(0.99));
  measured_ = {};
  return {};
}

}  // namespace freshet::benchmarks
