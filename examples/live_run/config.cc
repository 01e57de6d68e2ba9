// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/format.h"
#include "examples/live_run/options.h"

namespace freshet::live {
namespace {

using nlohmann::json;

std::string path_of(const std::string& run_folder) { return run_folder + "/run.json"; }

Result<RunConfig> decode(const json& file) {
  try {
    RunConfig config;
    RunOptions& options = config.options;
    config.repository = file.at("repository").get<std::string>();
    options.seconds = file.at("seconds").get<double>();
    options.versions = file.at("versions").get<std::uint64_t>();
    options.rate = file.at("rate").get<double>();
    options.servers = file.at("servers").get<std::uint32_t>();
    options.schedule = file.at("schedule").get<std::string>();
    options.pace = file.at("pace").get<double>();
    options.model_bytes = file.at("model_bytes").get<std::uint64_t>();
    options.text = file.at("text").get<std::vector<std::string>>();
    options.freeze_after = file.at("freeze_after").get<std::uint64_t>();
    options.seed = file.at("seed").get<std::uint64_t>();
    options.deadline_ms = file.at("deadline_ms").get<std::uint64_t>();
    options.make_torn_read = file.at("make_torn_read").get<bool>();
    FRESHET_ASSIGN(options.hosts, parse_host_plans(file.at("hosts").dump()));
    if (!(options.seconds >= 0) || !(options.rate > 0) || options.servers < 1 || options.servers > 16 ||
        options.deadline_ms == 0) {
      return fail(Code::invalid_argument, "seconds, rate, servers or deadline out of range");
    }
    return config;
  } catch (const json::exception& error) {
    return fail(Code::invalid_argument, error.what());
  }
}

}  // namespace

Status write_config(const std::string& run_folder, const RunConfig& config) {
  const RunOptions& options = config.options;
  const json file = {{"repository", config.repository},
                     {"seconds", options.seconds},
                     {"versions", options.versions},
                     {"rate", options.rate},
                     {"servers", options.servers},
                     {"schedule", options.schedule},
                     {"pace", options.pace},
                     {"model_bytes", options.model_bytes},
                     {"text", options.text},
                     {"freeze_after", options.freeze_after},
                     {"seed", options.seed},
                     {"deadline_ms", options.deadline_ms},
                     {"make_torn_read", options.make_torn_read},
                     {"hosts", json::parse(to_json(options.hosts))}};
  std::string text;
  try {
    text = file.dump(2);
  } catch (const json::exception&) {
    return fail(Code::invalid_argument, "the paths of --text and --report must be UTF-8");
  }
  std::ofstream out(path_of(run_folder));
  out << text << '\n';
  out.close();
  if (!out) return fail(Code::io_error, format("{}: cannot be written", path_of(run_folder)));
  return {};
}

Result<RunConfig> read_config(const std::string& run_folder) {
  std::ifstream in(path_of(run_folder));
  if (!in)
    return fail(Code::not_found, format("{}: no such file; --run names the folder of a run", path_of(run_folder)));
  std::stringstream text;
  text << in.rdbuf();
  auto config = decode(json::parse(text.str(), nullptr, false));
  if (!config) return fail(std::move(config).error().with_context(path_of(run_folder)));
  return config;
}

}  // namespace freshet::live
