// SPDX-License-Identifier: Apache-2.0
// `freshet triton`: models of a Triton server. The Python package does the work; this hands the line over to it.

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

/// With `-m`, Python would import modules of the working folder. A Python without the package says so in one line.
constexpr const char* kPythonProgram = R"(import sys
sys.path[:] = [folder for folder in sys.path if folder]
try:
    from freshet.triton.__main__ import main
except ImportError as error:
    sys.exit(f"freshet triton: {sys.executable} cannot import freshet.triton ({error}): install the package there with "
             f"`{sys.executable} -m pip install freshet`, or name another Python in FRESHET_PYTHON")
sys.exit(main(sys.argv[1:])))";

struct TritonOption {
  const char* name;
  const char* type;
  const char* description;
};

/// Python checks the values.
constexpr TritonOption kNewOptions[] = {
    {"--input", "NAME:TYPE:DIMS",
     "an input, as x:FP32:-1,64; may come several times. Without inputs and outputs: those of the "
     "published version, a linear layer"},
    {"--output", "NAME:TYPE:DIMS", "an output, alike; weight_version comes by itself"},
    {"--instances", "N", "processes that answer; all of them map the same weights"},
    {"--max-batch", "N",
     "the server makes batches of so many rows; 0, the default: inputs have all of their dimensions"},
    {"--model", "MODEL", "the published model; default: the folder's name"},
    {"--at", "ADDRESS", "the publisher's address; default: the directory is asked"},
    {"--keys", "FILE", "own keys, for another host; a path from the model's folder"},
    {"--server-key", "FILE", "the publisher's public key, alike"},
    {"--channel", "KIND", "how bytes come: auto, shm, ucx, zmq or file"},
    {"--directory", "D", "where publishers are found"},
    {"--label", "TEXT", "how `freshet top` shows it"},
    {"--journal", "FILE", "notes the answers for `freshet why`; a path from the model's folder"},
    {"--timeout", "S", "how long to wait for a published version to look at; default: 2"},
};
constexpr TritonOption kServeOptions[] = {
    {"--http-port", "PORT", "default: 8000; 0: any that is free"},
    {"--grpc-port", "PORT", "default: 8001; 0: any that is free"},
    {"--metrics-port", "PORT", "serves the server's own metrics there; default: not at all"},
    {"--address", "ADDRESS", "of this host, to listen at; default: 127.0.0.1"},
    {"--timeout", "S", "how long models may take to load; default: 120"},
};

/// The words of a command's line, as Python gets them.
struct TritonLine {
  std::string place;
  std::vector<std::pair<std::string, std::vector<std::string>>> options;
  std::vector<std::string> for_server;
};

/// The Python that has the package; else the one of PATH.
std::string package_python() {
  namespace files = std::filesystem;
  if (const char* named = std::getenv("FRESHET_PYTHON"); named != nullptr && *named != '\0') return named;
  std::error_code error;
  const files::path folder = files::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<files::path> places = {folder / "python3", folder / "../venv/bin/python3"};
  // A wheel has the program in a folder beside the package, in lib/python3.11/site-packages.
  if (files::exists(folder / "../freshet/__init__.py", error)) places.push_back(folder / "../../../../bin/python3");
  for (const files::path& place : places) {
    // Not made canonical: a venv's python3 is a link out of the venv.
    if (!error && ::access(place.c_str(), X_OK) == 0) return place.lexically_normal();
  }
  return "python3";
}

Result<ExitCode> hand_over_to_python(Program& program, const std::string& command, const TritonLine& line) {
  std::vector<std::string> words = {package_python(), "-c", kPythonProgram, command, line.place};
  for (const auto& [name, values] : line.options) {
    for (const std::string& value : values) words.push_back(format("{}={}", name, value));
  }
  if (program.out.json) words.emplace_back("--json");
  if (!line.for_server.empty()) words.emplace_back("--");
  words.insert(words.end(), line.for_server.begin(), line.for_server.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  (void)::signal(SIGPIPE, SIG_DFL);
  (void)::execvp(pointers[0], pointers.data());
  return fail_errno(
      errno, format("start {}, which has the Python package that does this (FRESHET_PYTHON names another)", words[0]));
}

template <std::size_t count>
CLI::App& add_handed_over(CLI::App& triton, Program& program, const std::string& name, const std::string& description,
                          const TritonOption (&options)[count], std::shared_ptr<TritonLine> line) {
  CLI::App& command = *triton.add_subcommand(name, description);
  add_json_flag(command, program);
  line->options.reserve(count);  // Options keep the addresses.
  for (const TritonOption& option : options) {
    auto& [spelling, values] = line->options.emplace_back(option.name, std::vector<std::string>{});
    command.add_option(spelling, values, option.description)->type_name(option.type)->allow_extra_args(false);
  }
  act_with(command, program, std::move(line),
           [name](Program& at, const TritonLine& given) { return hand_over_to_python(at, name, given); });
  return command;
}

}  // namespace

void add_triton(CLI::App& root, Program& program) {
  CLI::App& triton = *root.add_subcommand("triton", "models of a Triton server that follow a published model");
  triton.require_subcommand(1);
  add_json_flag(triton, program);
  auto made = std::make_shared<TritonLine>();
  CLI::App& make =
      add_handed_over(triton, program, "new", "write a model's folder: config.pbtxt and 1/model.py", kNewOptions, made);
  make.add_option("FOLDER/MODEL", made->place, "the folder to write, in the server's folder of models")->required();
  auto served = std::make_shared<TritonLine>();
  CLI::App& serve =
      add_handed_over(triton, program, "serve", "run the server of the wheel nvidia-pytriton until SIGTERM or SIGINT",
                      kServeOptions, served);
  serve.add_option("MODELS", served->place, "the folder of models")->required();
  serve.add_option("OPTIONS", served->for_server, "after --: more options of tritonserver");
  serve.footer("example: freshet triton serve models --http-port 0 -- --model-control-mode=poll");
}

}  // namespace freshet::cli
