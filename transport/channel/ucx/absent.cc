// SPDX-License-Identifier: Apache-2.0
/// Compiled when this build found no UCX, in the place of everything else in this folder.

#include "transport/channel/ucx/ucx_channel.h"

namespace freshet::channel {
namespace {

tl::unexpected<Error> absent() {
  return fail(Code::unavailable, "the ucx channel: this build of Freshet was configured without UCX's headers");
}

}  // namespace

Result<std::string> ucx_version() { return absent(); }
Result<std::unique_ptr<ChannelServer>> open_ucx_server(FetchSource&, const UcxServerOptions&) { return absent(); }
Result<std::unique_ptr<ChannelClient>> open_ucx_client(const std::string&, const UcxClientOptions&) { return absent(); }

}  // namespace freshet::channel
