// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The data channel over UCX: active messages, answered straight from the owner's memory into the memory that the sink
/// names. Which transports carry them (TCP, InfiniBand, shared memory) is UCX's choice and the user's: every UCX_*
/// variable is obeyed, UCX_TLS and UCX_NET_DEVICES among them.
///
/// Who may be reached: UCX has no notion of a stranger. Its TCP transport obeys a *put* to any address that a peer
/// names, and its one-sided rendezvous hands out keys to what is registered. So this channel is for loopback and for
/// fabrics that the operator declares trusted; both sides refuse any other address unless `trusted_fabric` is set. On
/// loopback UCX is kept to the device `lo` (unless UCX_NET_DEVICES says otherwise), since it would listen on all of the
/// host's addresses. Leases, checked by the FetchSource, keep honest processes apart, not hostile ones: whoever can
/// connect to its port and sends some kilobytes of what is not UCX ends this process by an assertion (seen with UCX
/// 1.13). On a host that is shared with people who are not trusted, name the channel `zmq`.
///
/// UCX finds shared memory between two network namespaces of one host; UCX_TLS=tcp keeps bytes on the wire.
///
/// libucp is loaded when the first channel is opened and stays loaded. It takes over the process's crash signals and
/// SIGHUP when it is loaded; they are given back, and its log is kept silent, unless the user's environment configures
/// these (UCX_HANDLE_ERRORS, UCX_ERROR_SIGNALS, UCX_DEBUG_SIGNO; UCX_LOG_LEVEL). Where it is missing, opening answers
/// unavailable.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "transport/channel/channel.h"
#include "transport/security/socket_owner.h"

namespace freshet::channel {

/// Whether UCX can be had, and which ("1.13.1"); unavailable with the reason if not. Any thread.
Result<std::string> ucx_version();

/// How large answers are sent. By rendezvous, adapters that read and write memory by themselves copy nothing; over TCP
/// a peer that goes away in the middle of one can end this process by one of UCX's assertions (seen with 1.13).
/// Otherwise they are sent at once, in pieces that fit UCX's buffers, and copied out of those by the receiver.
enum class UcxRendezvous : std::uint8_t {
  automatic,  ///< Where the host has such an adapter, UCX_TLS allows it, and the address is not loopback.
  never,
  always,
};

struct UcxServerOptions {
  /// "ucx://ADDRESS:PORT", numeric; port 0 takes a free one. IPv6 addresses stand in brackets.
  std::string address = "ucx://127.0.0.1:0";
  bool trusted_fabric = false;
  UcxRendezvous rendezvous = UcxRendezvous::automatic;
  std::uint64_t chunk_bytes = 0;     ///< Of a large answer; 16 KiB to 64 MiB, 0 for what fits the way it is sent.
  std::size_t sends_in_flight = 16;  ///< Chunks on their way to one peer; 1 to 1024.
  std::size_t peers_max = 1024;
};

/// `source` outlives the server. invalid_argument, failed_precondition for an address that is not trusted, unavailable.
Result<std::unique_ptr<ChannelServer>> open_ucx_server(FetchSource& source, const UcxServerOptions& options = {});

struct UcxClientOptions {
  bool trusted_fabric = false;
  Neighbours believed = Neighbours::same_user;  ///< Who may listen at a loopback address.
};

/// Connects in the background: requests may be queued at once; that nobody is there is found out by progress().
Result<std::unique_ptr<ChannelClient>> open_ucx_client(const std::string& address,
                                                       const UcxClientOptions& options = {});

}  // namespace freshet::channel
