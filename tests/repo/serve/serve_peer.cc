// SPDX-License-Identifier: Apache-2.0
/// serve_peer ADDRESS [CHANNELS]: a server of a repository in memory, in a process of its own, so that a test can stop
/// and kill it. Says "ready" and serves until it is ended.
///
/// serve_peer ADDRESS put: a client there, that says "half" in the middle of a put and stays so until it is ended.

#include <unistd.h>

#include <cstdio>
#include <random>
#include <string_view>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "transport/option_text.h"

namespace {

void say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

int put_half(const char* address) {
  using namespace freshet;
  const auto remote = connect_repository(address);
  if (!remote) return 1;
  std::mt19937_64 random(7);
  const auto architecture = test_architecture({6'000'000, 1000, 6'000'000});
  const TestVersion version = make_version("net", test_id(1), architecture, nullptr, {}, random);
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
  if (argc != 2 && argc != 3) return 2;
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
