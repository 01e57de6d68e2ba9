// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/peer_options.h"

#include <nlohmann/json.hpp>

namespace freshet::benchmarks {

using nlohmann::json;

std::string to_json(const PeerOptions& options) {
  const SecurityOptions& security = options.security;
  return json{{"model", options.model},
              {"directory", options.directory},
              {"key_file", security.key_file},
              {"allow_file", security.allow_file},
              {"server_key", security.server_key},
              {"trusted_fabric", security.trusted_fabric},
              {"bytes", options.bytes},
              {"tensors", options.tensors},
              {"listen", options.listen},
              {"sync", options.sync},
              {"arena_copies", options.arena_copies},
              {"folder", options.folder},
              {"keep", options.keep},
              {"at", options.at},
              {"channel", options.channel},
              {"serve", options.serve}}
      .dump();
}

Result<PeerOptions> parse_peer_options(const std::string& text) {
  try {
    const json parsed = json::parse(text);
    PeerOptions options;
    parsed.at("model").get_to(options.model);
    parsed.at("directory").get_to(options.directory);
    parsed.at("key_file").get_to(options.security.key_file);
    parsed.at("allow_file").get_to(options.security.allow_file);
    parsed.at("server_key").get_to(options.security.server_key);
    parsed.at("trusted_fabric").get_to(options.security.trusted_fabric);
    parsed.at("bytes").get_to(options.bytes);
    parsed.at("tensors").get_to(options.tensors);
    parsed.at("listen").get_to(options.listen);
    parsed.at("sync").get_to(options.sync);
    parsed.at("arena_copies").get_to(options.arena_copies);
    parsed.at("folder").get_to(options.folder);
    parsed.at("keep").get_to(options.keep);
    parsed.at("at").get_to(options.at);
    parsed.at("channel").get_to(options.channel);
    parsed.at("serve").get_to(options.serve);
    return options;
  } catch (const json::exception& error) {
    return fail(Code::invalid_argument, error.what());
  }
}

}  // namespace freshet::benchmarks
