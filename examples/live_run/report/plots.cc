// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/report/plots.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <thread>

#include "core/base/clock.h"
#include "core/base/format.h"

extern char** environ;

namespace freshet::live {
namespace {

constexpr Duration kGnuplotPatience = std::chrono::seconds(30);
constexpr double kSmoothSeconds = 1;

std::string block(const char* name, const std::vector<Tally::Point>& points) {
  std::string out = format("${} << EOD\n", name);
  for (const auto& point : points) out += format("{:.3f} {:.6g}\n", point.seconds, point.value);
  return out + "EOD\n";
}

std::string header(const char* file, const char* title, const char* y) {
  return format(
      "set terminal svg size 900,450 background rgb 'white'\nset output '{}.svg'\nset title '{}'\n"
      "set xlabel 'seconds'\nset ylabel '{}'\nset grid\nset key top right\n",
      file, title, y);
}

/// The mean of the second before each point, so that the eye need not do it.
std::vector<Tally::Point> smoothed(const std::vector<Tally::Served>& buckets) {
  std::vector<Tally::Point> points;
  double sum = 0;
  std::uint64_t count = 0;
  std::size_t oldest = 0;
  for (const auto& bucket : buckets) {
    sum += bucket.loss_sum;
    count += bucket.count;
    for (; buckets[oldest].seconds + kSmoothSeconds < bucket.seconds; ++oldest) {
      sum -= buckets[oldest].loss_sum;
      count -= buckets[oldest].count;
    }
    points.push_back({bucket.seconds, sum / static_cast<double>(count)});
  }
  return points;
}

std::string loss_script(const Tally& tally) {
  std::vector<Tally::Point> served;
  for (const auto& bucket : tally.served_loss) {
    served.push_back({bucket.seconds, bucket.loss_sum / static_cast<double>(bucket.count)});
  }
  return block("trained", tally.trained_loss) + block("served", served) +
         block("smoothed", smoothed(tally.served_loss)) +
         header("loss", "What is trained, and what users are served", "loss (nats per byte)") +
         "plot $served with points pt 7 ps 0.2 lc rgb '#f4a582' title 'served, held-out text', \\\n"
         "     $smoothed with lines lw 2 lc rgb '#ca0020' title 'served, mean of a second', \\\n"
         "     $trained with lines lw 1 lc rgb '#0571b0' title 'training batches'\n";
}

std::string latency_script(const Tally& tally) {
  return block("latency", tally.update_latency_ms) + header("latency", "From publish to swapped in", "milliseconds") +
         "set logscale y\nplot $latency with points pt 7 ps 0.4 lc rgb '#0571b0' title 'each server, each version'\n";
}

std::string bytes_script(const Tally& tally) {
  std::vector<Tally::Point> points;
  for (const auto& version : tally.published)
    points.push_back({version.seconds, static_cast<double>(version.bytes) / 1e6});
  return block("bytes", points) + header("bytes", "What a version sends, against the whole model", "megabytes") +
         format("model = {:.6f}\nset yrange [0:model * 1.15]\n", static_cast<double>(tally.model_bytes) / 1e6) +
         "plot $bytes with impulses lw 2 lc rgb '#0571b0' title 'changed tensors', \\\n"
         "     model with lines lw 2 lc rgb '#ca0020' title 'the whole model'\n";
}

/// Runs gnuplot on a script in the folder that it is in.
Status run_gnuplot(const std::string& folder, const std::string& script) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  char program[] = "gnuplot";
  std::string argument = script;
  char* arguments[] = {program, argument.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, program, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) return fail(Code::unsupported, "gnuplot is not installed (Debian: apt install gnuplot-nox)");
  if (error != 0) return fail_errno(error, "gnuplot");

  const Time until = system_clock().now() + kGnuplotPatience;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (system_clock().now() > until) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      return fail(Code::timed_out, format("gnuplot {}: took too long", script));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (status != 0) return fail(Code::io_error, format("gnuplot {}: failed", script));
  return {};
}

}  // namespace

Status draw_plots(const Tally& tally, const std::string& folder) {
  const std::pair<const char*, std::string> scripts[] = {
      {"loss.gp", loss_script(tally)}, {"latency.gp", latency_script(tally)}, {"bytes.gp", bytes_script(tally)}};
  for (const auto& [name, text] : scripts) {
    std::ofstream file(folder + "/" + name);
    file << text;
    file.close();
    if (!file) return fail(Code::io_error, format("{}/{}: cannot be written", folder, name));
  }
  if (tally.trained_loss.empty() || tally.served_loss.empty() || tally.update_latency_ms.empty()) {
    return fail(Code::failed_precondition, "the run was too short for plots");
  }
  for (const auto& [name, text] : scripts) FRESHET_TRY(run_gnuplot(folder, name));
  return {};
}

}  // namespace freshet::live
