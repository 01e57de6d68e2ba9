/// serve_peer ADDRESS [CHANNELS]: a server of a repository in memory, in a process of its own, so that a test can stop
/// and kill it. Says "ready" and serves until it is ended.

#include <unistd.h>

#include <cstdio>

#include "repo/serve/server.h"

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  auto repository = freshet::Repository::open(freshet::make_memory_backend(), {});
  if (!repository) return 1;
  const auto server = freshet::RepositoryServer::open(
      **repository, {.address = argv[1], .security = {}, .channels = argc == 3 ? argv[2] : "auto"});
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().message().c_str());
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (;;) ::pause();
}
