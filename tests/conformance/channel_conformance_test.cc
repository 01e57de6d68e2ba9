// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/channel_conformance.h"

#include "core/gpu/host_collective.h"
#include "tests/support/temporary_folder.h"
#include "transport/channel/nccl/nccl_channel.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/zmq/zmq_channel.h"

namespace freshet::channel {
namespace {

const ChannelCase kUcx{.name = "ucx",
                       .open_server = [](FetchSource& source) { return open_ucx_server(source); },
                       .open_client = [](const std::string& address) { return open_ucx_client(address); },
                       .peer_words =
                           [](const std::string& address) {
                             return std::vector<std::string>{"ucx", address};
                           },
                       .missing = [] { return ucx_version() ? "" : ucx_version().error().message(); }};

const ChannelCase kZmq{.name = "zmq",
                       .open_server = [](FetchSource& source) { return open_zmq_server(source); },
                       .open_client = [](const std::string& address) { return open_zmq_client(address); },
                       .peer_words =
                           [](const std::string& address) {
                             return std::vector<std::string>{"zmq", address};
                           }};

/// Keys of both sides, in files, as peers in other processes need them.
class KeyFolder {
 public:
  KeyFolder() {
    for (const char* name : {"server", "client"}) {
      EXPECT_TRUE(KeyPair::generate()->write(folder_ / name));
    }
  }
  std::optional<ServerCredentials> server() const {
    return *server_credentials({.key_file = folder_ / "server", .allow_file = folder_ / "client.pub"});
  }
  std::optional<ClientCredentials> client() const {
    return *client_credentials({.key_file = folder_ / "client", .server_key = folder_ / "server.pub"});
  }
  std::vector<std::string> peer_words(const std::string& address) const {
    return {"zmq", address, folder_ / "client", folder_ / "server.pub"};
  }

 private:
  TemporaryFolder folder_;
};

const KeyFolder& key_folder() {
  static const KeyFolder folder;
  return folder;
}

const ChannelCase kZmqWithKeys{
    .name = "zmq_with_keys",
    .open_server = [](FetchSource& source) { return open_zmq_server(source, {.credentials = key_folder().server()}); },
    .open_client =
        [](const std::string& address) { return open_zmq_client(address, {.credentials = key_folder().client()}); },
    .peer_words = [](const std::string& address) { return key_folder().peer_words(address); }};

/// A slow machine breaks no round: who stands still is put out for its silence.
constexpr nccl::RoundLimits kPatientRounds{.join = std::chrono::minutes(1), .transfer = std::chrono::minutes(1)};

const ChannelCase kNccl{.name = "nccl",
                        .open_server =
                            [](FetchSource& source) {
                              return open_nccl_server(source, {.trusted_fabric = true,
                                                               .rounds = kPatientRounds,
                                                               .collective = std::make_shared<gpu::HostCollective>()});
                            },
                        .open_client =
                            [](const std::string& address) {
                              return open_nccl_client(address, {.trusted_fabric = true,
                                                                .collective = std::make_shared<gpu::HostCollective>()});
                            },
                        .peer_words =
                            [](const std::string& address) {
                              return std::vector<std::string>{"nccl", address};
                            }};

INSTANTIATE_TEST_SUITE_P(Channels, ChannelConformance, testing::Values(kUcx, kZmq, kZmqWithKeys, kNccl),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace freshet::channel
