// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/perftest.h"

#include <sstream>
#include <thread>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr int kWarmUps = 2;
constexpr int kPort = 13337;
constexpr int kConnectTries = 20;
constexpr double kMebibyte = 1048576.0;

/// The client's CSV: a head line, then "iterations,…,average bandwidth,overall bandwidth,…".
Result<double> overall_mebibytes_per_second(Child& client) {
  std::string last;
  for (;;) {
    auto line = client.read_line(std::chrono::seconds(60));
    if (!line && line.error().code() == Code::unavailable) break;
    if (!line) return fail(line.error());
    if (line->find(',') != std::string::npos && line->find("overall") == std::string::npos) last = *line;
  }
  std::istringstream stream(last);
  std::string column;
  for (int i = 0; i < 6; ++i) std::getline(stream, column, ',');
  const double value = std::strtod(column.c_str(), nullptr);
  if (!(value > 0)) return fail(Code::unavailable, format("ucx_perftest said '{}'", last));
  return value;
}

}  // namespace

Result<Samples> run_perftest(const PerftestOptions& options) {
  Samples samples;
  int tries = 0;
  for (int run = 0; run < options.runs;) {
    const std::string port = std::to_string(kPort + run + tries);
    FRESHET_ASSIGN(const auto server, start_in(options.server, {"ucx_perftest", "-e", "-p", port}));
    // It says nothing when it listens; a client that comes too early ends at once and is started again.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    FRESHET_ASSIGN(
        const auto client,
        start_in(options.client, {"ucx_perftest", options.server_host, "-e", "-p", port, "-t", "ucp_am_bw", "-s",
                                  std::to_string(options.message_bytes), "-n", std::to_string(options.messages), "-w",
                                  std::to_string(kWarmUps), "-v", "-f"}));
    const auto rate = overall_mebibytes_per_second(*client);
    if (!rate && ++tries < kConnectTries) continue;
    if (!rate) return fail(rate.error());
    samples.add(static_cast<double>(options.message_bytes) / kMebibyte / *rate * 1e3);
    ++run;
  }
  return samples;
}

}  // namespace freshet::benchmarks
