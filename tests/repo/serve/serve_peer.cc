// SPDX-License-Identifier: Apache-2.0
/// serve_peer ADDRESS [CHANNELS]: a server of a repository in memory, in a process of its own, so that a test can stop
/// and kill it. Says "ready" and serves until it is ended.
///
/// serve_peer ADDRESS put: a client there, that says "half" in the middle of a put and stays so until it is ended.
///
/// serve_peer ADDRESS begin: a client that begins a put by parts, brings one tensor, says the token and stays.
/// serve_peer ADDRESS whole TOKEN TENSOR: brings a tensor, says "whole" and ends.
/// serve_peer ADDRESS half TOKEN TENSOR: brings half a tensor, says "half" and stays.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string_view>

#include "repo/part_puts.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "transport/option_text.h"

namespace {

void say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

freshet::TestVersion test_version() {
  std::mt19937_64 random(7);
  const auto architecture = freshet::test_architecture({6'000'000, 1000, 6'000'000});
  return freshet::make_version("net", freshet::test_id(1), architecture, nullptr, {}, random);
}

int begin_put(const char* address) {
  using namespace freshet;
  const auto remote = connect_repository(address);
  if (!remote) return 1;
  PartPuts& parts = (*remote)->part_puts();
  const TestVersion version = test_version();
  const auto token = parts.begin_put("net", version.manifest.id, version.manifest.architecture);
  if (!token) return 1;
  const TensorPart part = whole_part(*version.manifest.architecture, 0, version.bytes[0]);
  if (!parts.put_parts(*token, std::span(&part, 1))) return 1;
  say(to_string(*token).c_str());
  for (;;) ::pause();
}

int bring_part(char** argv) {
  using namespace freshet;
  const auto remote = connect_repository(argv[1]);
  const auto token = parse_put_token(argv[3]);
  if (!remote || !token) return 1;
  const TestVersion version = test_version();
  const auto tensor = static_cast<std::uint32_t>(std::atoi(argv[4]));
  TensorPart part = whole_part(*version.manifest.architecture, tensor, version.bytes.at(tensor));
  const bool is_half = std::string_view(argv[2]) == "half";
  if (is_half) {
    part.length /= 2;
    part.bytes = part.bytes.first(part.length);
  }
  if (!(*remote)->part_puts().put_parts(*token, std::span(&part, 1))) return 1;
  say(argv[2]);
  while (is_half) ::pause();
  return 0;
}

int put_half(const char* address) {
  using namespace freshet;
  const auto remote = connect_repository(address);
  if (!remote) return 1;
  const TestVersion version = test_version();
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    if (tensor == 2) {
      say("half");
      for (;;) ::pause();
    }
    return Bytes(version.bytes[tensor]);
  };
  return (*remote)->put(version.manifest, bytes_of, {}) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5) return bring_part(argv);
  if (argc != 2 && argc != 3) return 2;
  if (argc == 3 && std::string_view(argv[2]) == "begin") return begin_put(argv[1]);
  if (argc == 3 && std::string_view(argv[2]) == "put") return put_half(argv[1]);
  auto repository = freshet::ProviderRepository::open(freshet::make_memory_backend(), {});
  if (!repository) return 1;
  const auto channels = freshet::parse_channel_choice(argc == 3 ? argv[2] : "auto");
  if (!channels) return 2;
  const auto server =
      freshet::RepositoryServer::open(**repository, {.address = argv[1], .security = {}, .channels = *channels});
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().message().c_str());
    return 1;
  }
  say("ready");
  for (;;) ::pause();
}
