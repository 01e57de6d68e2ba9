// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/route.h"

#include <sys/stat.h>
#include <zmq.h>

#include <array>
#include <fstream>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr int kFirstPort = 7070;

Status write_file(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream file(path);
  ::chmod(path.c_str(), mode);
  file << text << std::flush;
  if (!file) return fail(Code::io_error, format("{}: cannot be written", path));
  return {};
}

/// NAME and NAME.pub, as `freshet keygen` makes them.
Result<std::string> make_key(const std::string& path, const std::string& label) {
  std::array<char, 41> open{};
  std::array<char, 41> secret{};
  if (zmq_curve_keypair(open.data(), secret.data()) != 0) return fail(Code::unsupported, "ZeroMQ has no CURVE");
  FRESHET_TRY(write_file(path, format("curve-secret {}\n", secret.data()), 0600));
  const std::string line = format("{} {}\n", open.data(), label);
  FRESHET_TRY(write_file(path + ".pub", line, 0644));
  return line;
}

}  // namespace

int next_port() {
  static int port = kFirstPort;
  return port++;
}

Result<KeyFolder> KeyFolder::create(const std::string& folder) {
  FRESHET_TRY(make_key(folder + "/trainer", "trainer"));
  FRESHET_ASSIGN(const std::string line, make_key(folder + "/server", "server"));
  FRESHET_TRY(write_file(folder + "/servers.allow", line, 0600));
  return KeyFolder(folder);
}

SecurityOptions KeyFolder::trainer() const {
  return {.key_file = folder_ + "/trainer",
          .allow_file = folder_ + "/servers.allow",
          .server_key = {},
          .trusted_fabric = false};
}

SecurityOptions KeyFolder::server(bool behind_relay) const {
  return {.key_file = folder_ + "/server",
          .allow_file = folder_ + "/servers.allow",
          .server_key = folder_ + (behind_relay ? "/server.pub" : "/trainer.pub"),
          .trusted_fabric = false};
}

Result<std::unique_ptr<Route>> Route::on_this_host(const std::string& channel) {
  std::unique_ptr<Route> route(new Route());
  FRESHET_ASSIGN(route->scratch_, ScratchFolder::create());
  route->name_ = channel;
  route->channel_ = channel;
  if (channel == "shm") return route;
  route->address_ = "127.0.0.1";
  FRESHET_ASSIGN(route->keys_, KeyFolder::create(route->scratch_->path()));
  return route;
}

Result<std::unique_ptr<Route>> Route::between(const lab::Host& publisher, const lab::Host& subscriber,
                                              const std::string& address, const std::string& channel) {
  std::unique_ptr<Route> route(new Route());
  FRESHET_ASSIGN(route->scratch_, ScratchFolder::create());
  route->name_ = channel;
  route->channel_ = channel;
  route->address_ = address;
  route->publisher_space_ = &publisher.space();
  route->subscriber_space_ = &subscriber.space();
  FRESHET_ASSIGN(route->keys_, KeyFolder::create(route->scratch_->path()));
  return route;
}

Result<std::unique_ptr<PublisherPeer>> Route::publish(PeerOptions options) const {
  FRESHET_ASSIGN(options.directory, scratch_->folder("trainer-host"));
  if (channel_ == "file") {
    FRESHET_ASSIGN(options.folder, scratch_->folder("versions"));
  } else if (!address_.empty()) {
    options.listen = format("tcp://{}:{}", address_, next_port());
    options.security = keys_.trainer();
    options.security.trusted_fabric = channel_ == "ucx";
  }
  return PublisherPeer::start(publisher_place(), options);
}

Result<std::unique_ptr<SubscriberPeer>> Route::subscribe(const PublisherPeer& publisher, PeerOptions options) const {
  options.channel = channel_;
  if (channel_ == "file") {
    options.channel.clear();  // The address says it.
    FRESHET_ASSIGN(options.directory, scratch_->folder("server-host"));
    options.at = "file://" + scratch_->path() + "/versions";
  } else if (address_.empty()) {
    FRESHET_ASSIGN(options.directory, scratch_->folder("trainer-host"));
  } else {
    FRESHET_ASSIGN(options.directory, scratch_->folder("server-host"));
    options.at = publisher.address();
    options.security = keys_.server(false);
    options.security.trusted_fabric = channel_ == "ucx";
  }
  return SubscriberPeer::start(subscriber_place(), options);
}

}  // namespace freshet::benchmarks
