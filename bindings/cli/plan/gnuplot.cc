// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "bindings/cli/frame/durable_file.h"
#include "bindings/cli/frame/graph_file.h"
#include "bindings/cli/frame/shell_command.h"
#include "bindings/cli/plan/plot.h"
#include "bindings/cli/plan/plot_data.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

/// More would only make the file large.
constexpr std::size_t kGnuplotColumns = 1000;
constexpr std::uint64_t kPictureBytesMax = std::uint64_t{64} << 20;

std::string gnuplot_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

std::string number(double value) { return std::isfinite(value) ? format("{:.9g}", value) : "NaN"; }

/// Step, loss seen, cost that came, forecast, band, the forecast where there is a publish, the formula.
std::string data_block(const Report& report, const PlotData& data) {
  std::string text = "$run << END\n";
  for (const PlotColumn& column : data.columns) {
    text += format("{} {} {} {} {} {} {} {}\n", report.table.step_of(column.middle_row), number(column.seen),
                   number(column.cost), number(column.forecast), number(column.band_lower), number(column.band_upper),
                   column.publishes > 0 ? number(column.forecast) : "NaN", number(column.curve));
  }
  return text + "END\n";
}

/// Draws into `picture`.
std::string script(const Report& report, const std::string& picture, bool is_png) {
  const PlotData data = plot_data(report, kGnuplotColumns);
  std::string text =
      format("set terminal {}\nset output {}\n",
             is_png ? "pngcairo size 1000,560" : "svg size 1000,560 background rgb 'white'", gnuplot_quoted(picture));
  text += format("set yrange [{}:{}]\nset xlabel 'step'\nset ylabel 'loss'\nset key top right\nset grid\n",
                 number(data.low), number(data.high));
  text += data_block(report, data);
  text += format("set arrow from {0},graph 0 to {0},graph 1 nohead dashtype 2\n",
                 report.table.step_of(report.clock.horizon().warmup));
  text += "plot $run using 1:5:6 with filledcurves fillcolor rgb '#cfe3f5' title '90 % band', ";
  if (report.replay) text += "'' using 1:3 with lines linecolor rgb '#9a9a9a' title 'what came', ";
  text += "'' using 1:2 with points pointtype 7 pointsize 0.25 linecolor rgb '#606060' title 'loss seen', ";
  text += format("'' using 1:8 with lines dashtype 2 linecolor rgb '#2a9d57' title '{} alone', ",
                 report.plan.forecast.chosen().name());
  text += "'' using 1:4 with lines linewidth 2 linecolor rgb '#1f6fb4' title 'forecast', ";
  text += format("'' using 1:7 with points pointtype 2 pointsize 0.6 linecolor rgb '#c0392b' title '{} publishes'\n",
                 report.plan.optimal.size());
  return text;
}

/// A file of our own that goes when this does.
class TemporaryFile {
 public:
  static Result<TemporaryFile> make(const std::string& text) {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "freshet-plan-XXXXXX").string();
    if (error) return fail(Code::io_error, format("a folder for temporary files: {}", error.message()));
    const int descriptor = ::mkstemp(name.data());
    if (descriptor < 0) return fail_errno(errno, format("make {}", name));
    (void)::close(descriptor);
    TemporaryFile file(std::move(name));
    std::ofstream out(file.name_);
    out << text;
    out.close();
    if (!out) return fail(Code::io_error, format("write {}", file.name_));
    return file;
  }

  TemporaryFile(TemporaryFile&& other) noexcept : name_(std::exchange(other.name_, {})) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (!name_.empty()) (void)::unlink(name_.c_str());
  }

  const std::string& name() const { return name_; }

 private:
  explicit TemporaryFile(std::string name) : name_(std::move(name)) {}

  std::string name_;
};

/// gnuplot ends with 0 whatever became of its output: a picture that is cut short lacks its end.
bool is_whole(std::string_view picture, bool is_png) {
  if (is_png) return picture.ends_with("IEND\xae\x42\x60\x82");
  while (!picture.empty() && picture.back() == '\n') picture.remove_suffix(1);
  return picture.ends_with("</svg>");
}

}  // namespace

Status write_plot(const Report& report, const std::string& path, const Interrupt& interrupt) {
  FRESHET_TRY(run_shell("command -v gnuplot >/dev/null", {.stdout_to_stderr = true}, interrupt)
                  .or_else([](const Error&) -> Status {
                    return fail(Code::unsupported, "--plot: gnuplot is not installed (apt install gnuplot-nox)");
                  }));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    return fail(Code::failed_precondition, format("--plot {}: there is no folder {}", path, folder.string()));
  }
  const bool is_png = path.ends_with(".png");
  // A signal ends the program once the temporary files are gone.
  const Interrupt::Deferral deferral;
  FRESHET_ASSIGN(const TemporaryFile drawn, TemporaryFile::make(""));
  FRESHET_ASSIGN(const TemporaryFile commands, TemporaryFile::make(script(report, drawn.name(), is_png)));
  FRESHET_TRY(run_shell(with_path("gnuplot {}", commands.name()), {.stdout_to_stderr = true}, interrupt));
  FRESHET_ASSIGN(const std::string picture, read_text_file(drawn.name(), kPictureBytesMax));
  if (!is_whole(picture, is_png)) {
    return fail(Code::io_error,
                format("--plot {}: gnuplot drew no whole picture into {}; is that disk full?", path, drawn.name()));
  }
  FRESHET_TRY(write_text_file(path, picture));
  if (interrupt.requested()) return fail(Code::cancelled, "interrupted");
  return {};
}

}  // namespace freshet::cli
