// SPDX-License-Identifier: Apache-2.0
/// A fetching client in a process of its own, so that a test can stop and kill it in the middle. It fetches one tensor
/// of a MemorySource, says "begun" when the first bytes are there, waits for a line, goes on, and says "done", or
/// "failed" with the reason.
///   channel_peer TENSOR BYTES KIND ADDRESS …
/// A channel that joins the conformance suite adds its KIND to open_client().

#include <sys/prctl.h>

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "core/gpu/host_collective.h"
#include "tests/conformance/channel_conformance.h"
#include "transport/channel/nccl/nccl_channel.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/zmq/zmq_channel.h"

namespace freshet::channel {
namespace {

Result<std::unique_ptr<ChannelClient>> open_client(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "ucx") return open_ucx_client(words[1]);
  if (words.size() == 2 && words[0] == "zmq") return open_zmq_client(words[1]);
  if (words.size() == 2 && words[0] == "nccl") {
    return open_nccl_client(words[1], {.trusted_fabric = true, .collective = std::make_shared<gpu::HostCollective>()});
  }
  if (words.size() == 4 && words[0] == "zmq") {
    FRESHET_ASSIGN(std::optional<ClientCredentials> credentials,
                   client_credentials({.key_file = words[2], .server_key = words[3]}));
    return open_zmq_client(words[1], {.credentials = std::move(credentials)});
  }
  return fail(Code::invalid_argument, "usage: channel_peer TENSOR BYTES KIND ADDRESS …");
}

Status fetch(std::uint32_t tensor, std::uint64_t bytes, const std::vector<std::string>& words) {
  FRESHET_ASSIGN(const auto client, open_client(words));
  CollectingSink sink;
  FRESHET_TRY(client->fetch({.request = 1,
                             .session = MemorySource::kSession,
                             .lease = MemorySource::kLease,
                             .version = MemorySource::kVersion,
                             .pieces = {{.tensor = tensor, .offset = 0, .bytes = bytes}}},
                            sink));
  drive({client.get()}, [&] { return sink.begun(1) || sink.ended(1) != nullptr; });
  std::cout << (sink.ended(1) == nullptr ? "begun" : "ended early") << std::endl;
  std::string line;
  std::getline(std::cin, line);
  drive({client.get()}, [&] { return sink.ended(1) != nullptr; });
  if (sink.ended(1) == nullptr) return fail(Code::timed_out, "it never ended");
  FRESHET_TRY(*sink.ended(1));
  if (!sink.faults().empty()) return fail(Code::corrupt, sink.faults());
  if (!test::same_bytes(sink.find(1, 0)->content(), seeded_bytes(bytes, 1 + tensor)))
    return fail(Code::corrupt, "other bytes");
  return {};
}

}  // namespace
}  // namespace freshet::channel

int main(int count, char** words) {
  // A test that dies takes its peers along.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<std::string> arguments(words + 1, words + count);
  if (arguments.size() < 2) return 2;
  const freshet::Status status =
      freshet::channel::fetch(static_cast<std::uint32_t>(std::stoul(arguments[0])), std::stoull(arguments[1]),
                              {arguments.begin() + 2, arguments.end()});
  std::cout << (status ? "done" : "failed: " + status.error().message()) << std::endl;
  return status ? 0 : 1;
}
