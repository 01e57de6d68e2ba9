#include "transport/zmq/address.h"

#include <arpa/inet.h>

#include <charconv>

#include "core/format.h"

namespace freshet {
namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kTcp = "tcp://";
constexpr std::size_t kAddressBytesMax = 4096;

bool is_loopback(const std::string& host) {
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

bool is_port(std::string_view port, bool for_binding) {
  if (port == "*") return for_binding;
  unsigned value = 0;
  const auto [end, failure] = std::from_chars(port.data(), port.data() + port.size(), value);
  return failure == std::errc() && end == port.data() + port.size() && value >= 1 && value <= 65535;
}

}  // namespace

Result<SocketAddress> SocketAddress::parse(const std::string& text, bool for_binding) {
  if (text.size() > kAddressBytesMax) return fail(Code::invalid_argument, "an address is longer than 4096 bytes");
  if (text.starts_with(kIpc)) {
    FRESHET_ASSIGN(SocketPath path, SocketPath::of(text.substr(kIpc.size())));
    return SocketAddress(text, std::move(path));
  }
  if (!text.starts_with(kTcp)) {
    return fail(Code::invalid_argument,
                format("address \"{}\" is neither tcp://127.0.0.1:PORT nor ipc:// and an absolute path", text));
  }
  const std::size_t colon = text.rfind(':');
  if (colon < kTcp.size()) return fail(Code::invalid_argument, format("address \"{}\" has no port", text));
  std::string host = text.substr(kTcp.size(), colon - kTcp.size());
  const std::string port = text.substr(colon + 1);
  if (host == "localhost") host = "127.0.0.1";
  if (!is_loopback(host)) {
    return fail(
        Code::invalid_argument,
        format("address \"{}\" is not of this host (only 127.0.0.0/8 is open: nothing is encrypted yet)", text));
  }
  if (!is_port(port, for_binding)) {
    return fail(Code::invalid_argument, format("address \"{}\": \"{}\" is not a port", text, port));
  }
  return SocketAddress(format("tcp://{}:{}", host, port), std::nullopt);
}

}  // namespace freshet
