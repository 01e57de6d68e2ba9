// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/peers.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "benchmarks/checkpoint/disk.h"
#include "benchmarks/checkpoint/watch.h"
#include "benchmarks/common/child.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

using Words = std::vector<std::string>;

/// The peers' sources lie beside this program.
std::string source(const char* name) {
  return (std::filesystem::path(own_path()).parent_path() / "checkpoint_peers" / name).string();
}

Result<Words> lines_of(const Words& words) {
  FRESHET_ASSIGN(const auto child, Child::start(words));
  Words lines;
  for (;;) {
    Result<std::string> line = child->read_line(kPatience);
    if (line) {
      lines.push_back(*std::move(line));
    } else if (line.error().code() == Code::unavailable) {
      return lines;
    } else {
      return fail(std::move(line).error().with_context(words.front()));
    }
  }
}

Status run_peer(const Words& words, const std::string& name, Report& report) {
  FRESHET_ASSIGN(const Words lines, lines_of(words));
  std::map<std::string, Samples> rows;
  bool is_done = false;
  for (const std::string& line : lines) {
    std::istringstream text(line);
    std::string subject;
    double ms = 0;
    // A library's log stands between the results.
    if (text >> subject >> ms && (text >> std::ws).eof()) rows[subject].add(ms);
    is_done = is_done || line == "done";
  }
  if (!is_done) return fail(Code::unavailable, format("{} did not come to its end; see stderr", words.front()));
  for (const auto& [subject, ms] : rows) report.add_row(name, subject, "ms", ms);
  return {};
}

/// A C program against what is installed at `prefix`.
Status compile(const char* name, const std::string& prefix, const Words& libraries, const std::string& program) {
  // With old tags the path holds for the libraries of libraries, too.
  Words words = {"mpicc", "-O2", source(name), "-o", program, "-I" + prefix + "/include", "-Wl,--disable-new-dtags"};
  for (const char* folder : {"/lib", "/lib64"}) {
    words.push_back("-L" + prefix + folder);
    words.push_back("-Wl,-rpath," + prefix + folder);
  }
  for (const std::string& library : libraries) words.push_back("-l" + library);
  FRESHET_TRY(lines_of(words));
  if (std::filesystem::exists(program)) return {};
  return fail(Code::unavailable, format("{} does not compile against {}; see stderr", name, prefix));
}

Words under_mpirun(std::uint32_t ranks, const Words& command) {
  Words words = {"env",
                 "OMPI_ALLOW_RUN_AS_ROOT=1",
                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                 "OMPI_MCA_rmaps_base_oversubscribe=1",
                 "OMPI_MCA_plm=isolated",
                 "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                 "mpirun",
                 "-np",
                 std::to_string(ranks)};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

Status not_named(const char* option) { return fail(Code::unavailable, format("not measured: {} names none", option)); }

}  // namespace

Status run_veloc(const CheckpointOptions& options, const std::string& name, std::uint64_t bytes, std::size_t tensors,
                 Report& report) {
  if (options.veloc.empty()) return not_named("--veloc PREFIX");
  FRESHET_ASSIGN(const auto memory, MadeFolder::in(options.memory_folder()));
  FRESHET_ASSIGN(const auto disk, MadeFolder::in(options.folder));
  const std::string program = disk.path() + "/program";
  const std::string configuration = disk.path() + "/veloc.cfg";
  FRESHET_TRY(compile("veloc.c", options.veloc, {"veloc-client"}, program));
  // Its own thread writes in the background, so no daemon stays behind.
  std::ofstream(configuration) << format("scratch = {}\npersistent = {}/runs\nmode = async\nthreaded = true\n",
                                         memory.path(), disk.path());
  std::filesystem::create_directories(disk.path() + "/runs");
  return run_peer(under_mpirun(1, {program, configuration, format("{}", bytes), format("{}", tensors),
                                   format("{}", options.repetitions())}),
                  name, report);
}

Status run_torch(const CheckpointOptions& options, const std::string& name, std::uint64_t bytes, std::size_t tensors,
                 std::uint32_t ranks, Report& report) {
  if (options.python.empty()) return not_named("--python PROGRAM");
  FRESHET_ASSIGN(const auto memory, MadeFolder::in(options.memory_folder()));
  return run_peer({options.python, "-W", "ignore", source("torch_peer.py"), memory.path(), format("{}", bytes),
                   format("{}", tensors), format("{}", options.repetitions()), format("{}", ranks)},
                  name, report);
}

Status run_redset(const CheckpointOptions& options, const std::string& name, std::uint64_t bytes_of_rank,
                  std::uint32_t ranks, Report& report) {
  if (options.redset.empty()) return not_named("--redset PREFIX");
  FRESHET_ASSIGN(const auto memory, MadeFolder::in(options.memory_folder()));
  const std::string program = memory.path() + "/program";
  FRESHET_TRY(compile("redset.c", options.redset, {"redset", "kvtree", "rankstr"}, program));
  return run_peer(
      under_mpirun(ranks, {program, memory.path(), format("{}", bytes_of_rank), format("{}", options.repetitions())}),
      name, report);
}

}  // namespace freshet::benchmarks
