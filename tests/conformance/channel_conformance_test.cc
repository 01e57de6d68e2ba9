#include "tests/conformance/channel_conformance.h"

#include "transport/channel/ucx/ucx_channel.h"

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

INSTANTIATE_TEST_SUITE_P(Channels, ChannelConformance, testing::Values(kUcx),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace freshet::channel
