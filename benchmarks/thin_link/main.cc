// SPDX-License-Identifier: Apache-2.0
/// How fresh a server at the other end of a thin link can be: 1 Gb/s and 20 ms there and back. An update of which few
/// elements changed, sent as what changed; one of which all did; and the same as a safetensors file that rsync fetches.

#include "benchmarks/stream/pair.h"
#include "benchmarks/stream/program.h"
#include "benchmarks/stream/route.h"
#include "benchmarks/thin_link/rsync.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr int kWarmUps = 2;
constexpr std::uint64_t kTensors = 24;
constexpr double kShares[] = {0.006, 0.016, 0.04};
const char* const kTrainerAddress = "10.78.0.1";

/// A long line whose queue holds a round trip of bytes and more, as routers' do.
lab::LineShape thin_line() {
  return {.delay = std::chrono::milliseconds(10),
          .bits_per_second = 1'000'000'000,
          .queue_bytes_max = std::uint64_t{8} << 20};
}

class ThinLink {
 public:
  ThinLink(const ProgramOptions& options, Report& report)
      : report_(report),
        model_bytes_(std::uint64_t{options.quick ? 64u : 256u} << 20),
        repetitions_(options.repetitions_or(3, 7)) {}

  Status run() {
    if (!lab::why_no_lab().empty()) return fail(Code::unavailable, lab::why_no_lab());
    FRESHET_ASSIGN(network_, lab::Network::create({"trainer", "server"}));
    FRESHET_ASSIGN(line_, network_->add_line("trainer", "server", {.there = thin_line(), .back = thin_line()}));
    const lab::Host& trainer = network_->host("trainer");
    const lab::Host& server = network_->host("server");
    FRESHET_ASSIGN(const auto route, Route::between(trainer, server, kTrainerAddress, "zmq"));
    FRESHET_ASSIGN(publisher_, route->publish({.bytes = model_bytes_, .tensors = kTensors}));
    FRESHET_ASSIGN(subscriber_, route->subscribe(*publisher_, {}));
    FRESHET_TRY(measure_case("dense", 1));
    for (const double share : kShares) FRESHET_TRY(measure_case(format("delta_{}", share * 100), share));
    auto rsync = Rsync::start(trainer, server, kTrainerAddress);
    if (!rsync) {
      report_.skip("rsync", rsync.error().message());
      return {};
    }
    FRESHET_TRY(measure_rsync(**rsync, "rsync_1.6", false));
    FRESHET_TRY(measure_rsync(**rsync, "rsync_whole_file_1.6", true));
    set_ratios();
    return {};
  }

 private:
  Status change(double share) { return share >= 1 ? publisher_->rewrite(++seed_) : publisher_->step(share, ++seed_); }

  Status measure_case(const std::string& name, double share) {
    Samples ms;
    Samples sent_bytes;
    for (int round = -kWarmUps; round < repetitions_; ++round) {
      FRESHET_TRY(change(share));
      const std::uint64_t before = line_->there().bytes;
      FRESHET_ASSIGN(const UpdateTimes times, update(*publisher_, *subscriber_));
      if (round == -1) FRESHET_TRY(check_same(*publisher_, *subscriber_));
      if (round < 0) continue;
      ms.add(times.swapped_ms);
      sent_bytes.add(static_cast<double>(line_->there().bytes - before) / 1e6);
    }
    report_.add_row(name, "freshet", "ms", ms);
    report_.add_row(name, "on_the_line", "MB", sent_bytes);
    return {};
  }

  Status measure_rsync(Rsync& rsync, const std::string& name, bool whole_file) {
    Samples ms;
    for (int round = -1; round < repetitions_; ++round) {
      FRESHET_TRY(change(0.016));
      FRESHET_ASSIGN(const double took_ms, rsync.update(*publisher_, whole_file));
      if (round >= 0) ms.add(took_ms);
    }
    report_.add_row(name, "rsync", "ms", ms);
    return {};
  }

  void set_ratios() {
    const double ours = report_.median("delta_1.6", "freshet");
    const double rsync =
        std::min(report_.median("rsync_1.6", "rsync"), report_.median("rsync_whole_file_1.6", "rsync"));
    report_.set_ratio("vs_rsync", rsync / ours);
    report_.set_ratio("delta_vs_dense_1.6", report_.median("dense", "freshet") / ours);
    const double line_ms = static_cast<double>(model_bytes_) * 8 / 1e9 * 1e3;
    report_.set_ratio("dense_vs_line_rate", line_ms / report_.median("dense", "freshet"));
  }

  Report& report_;
  const std::uint64_t model_bytes_;
  const int repetitions_;
  std::unique_ptr<lab::Network> network_;
  std::unique_ptr<lab::DelayLink> line_;
  std::unique_ptr<PublisherPeer> publisher_;
  std::unique_ptr<SubscriberPeer> subscriber_;
  std::uint64_t seed_ = 0;
};

Status measure(const ProgramOptions& options, Report& report) {
  report.skip_failed("thin_link", ThinLink(options, report).run());
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(argc, argv,
                     {.name = "thin_link",
                      .about = "Time to fresh at 1 Gb/s and 20 ms: deltas, dense updates, rsync",
                      .measure = measure});
}
