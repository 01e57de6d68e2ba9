// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/raw_zmq.h"

#include <array>
#include <cstring>
#include <iostream>
#include <zmq.hpp>

#include "benchmarks/stream/element_model.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kKeyTextBytes = 41;
constexpr int kChunksInFlight = 16;
constexpr std::string_view kTopic = "bench ";

struct Keys {
  std::array<char, kKeyTextBytes> open{};
  std::array<char, kKeyTextBytes> secret{};
};

Keys make_keys() {
  Keys keys;
  zmq_curve_keypair(keys.open.data(), keys.secret.data());
  return keys;
}

void serve_with(zmq::socket_t& socket, const std::string& secret) {
  if (secret.empty()) return;
  socket.set(zmq::sockopt::curve_server, true);
  socket.set(zmq::sockopt::curve_secretkey, secret);
}

void connect_with(zmq::socket_t& socket, const std::string& server, const Keys& own) {
  if (server.empty()) return;
  socket.set(zmq::sockopt::curve_serverkey, server);
  socket.set(zmq::sockopt::curve_publickey, own.open.data());
  socket.set(zmq::sockopt::curve_secretkey, own.secret.data());
}

/// "tcp://1.2.3.4:7071" is the data's; the news' port is the next one, or the address with a suffix for ipc.
std::string news_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (!address.starts_with("tcp://")) return address + "-news";
  return address.substr(0, colon + 1) + std::to_string(std::stoi(address.substr(colon + 1)) + 1);
}

}  // namespace

Result<std::unique_ptr<RawZmq>> RawZmq::start(const RawZmqOptions& options) {
  const Keys server = options.curve ? make_keys() : Keys{};
  const std::string bytes = std::to_string(options.bytes);
  const std::string chunk = std::to_string(options.chunk_bytes);
  std::unique_ptr<RawZmq> raw(new RawZmq());
  FRESHET_ASSIGN(raw->sender_, start_in(options.sender, {own_path(), "--role=raw-zmq-sender", "--", options.address,
                                                         options.curve ? server.secret.data() : "", bytes, chunk}));
  FRESHET_TRY(raw->sender_->read_line());
  FRESHET_ASSIGN(raw->receiver_,
                 start_in(options.receiver, {own_path(), "--role=raw-zmq-receiver", "--", options.address,
                                             options.curve ? server.open.data() : "", bytes, chunk}));
  // News that comes before the receiver's subscription is lost: sent until the receiver has heard one. exchange()
  // passes over those that are heard later.
  for (int i = 0; i < 200; ++i) {
    FRESHET_TRY(raw->sender_->write_line("news"));
    FRESHET_TRY(raw->sender_->read_line());
    if (const auto heard = raw->receiver_->read_line(std::chrono::milliseconds(50))) break;
  }
  return raw;
}

Result<double> RawZmq::exchange(const std::string& command) {
  FRESHET_TRY(sender_->write_line(command));
  FRESHET_ASSIGN(const std::string sent, sender_->read_line());
  const std::size_t name_end = sent.rfind(' ');
  for (;;) {
    FRESHET_ASSIGN(const std::string came, receiver_->read_line());
    if (came.rfind(' ') != name_end || came.compare(0, name_end, sent, 0, name_end) != 0) continue;
    const auto ns = [&](const std::string& line) { return std::strtoll(line.c_str() + name_end + 1, nullptr, 10); };
    return static_cast<double>(ns(came) - ns(sent));
  }
}

Result<double> RawZmq::transfer() {
  FRESHET_ASSIGN(const double ns, exchange("data"));
  return ns / 1e6;
}

Result<double> RawZmq::notify() {
  FRESHET_ASSIGN(const double ns, exchange("news"));
  return ns / 1e3;
}

int run_raw_zmq_sender(const std::vector<std::string>& arguments) try {
  const std::uint64_t bytes = std::stoull(arguments.at(2));
  const std::size_t chunk_bytes = std::stoull(arguments.at(3));
  const auto model = ElementModel::create(bytes, 1);
  if (!model) return 1;
  zmq::context_t context(1);
  zmq::socket_t data(context, zmq::socket_type::push);
  zmq::socket_t news(context, zmq::socket_type::pub);
  for (zmq::socket_t* socket : {&data, &news}) {
    serve_with(*socket, arguments.at(1));
    socket->set(zmq::sockopt::sndhwm, kChunksInFlight);
  }
  data.bind(arguments.at(0));
  news.bind(news_address(arguments.at(0)));
  std::cout << "ready" << std::endl;
  const MutableBytes memory = (*model)->memory();
  std::uint64_t news_sent = 0;
  std::uint64_t data_sent = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::string name = format("{}{}", kTopic, ++news_sent);
    const std::int64_t start_ns = monotonic_ns();
    if (line == "news") {
      news.send(zmq::buffer(name), zmq::send_flags::none);
    } else {
      name = format("data {}", ++data_sent);
      for (std::size_t at = 0; at < bytes; at += chunk_bytes) {
        zmq::message_t chunk(memory.data() + at, std::min<std::size_t>(chunk_bytes, bytes - at), nullptr);
        data.send(std::move(chunk), zmq::send_flags::none);
      }
    }
    std::cout << name << " " << start_ns << std::endl;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "raw-zmq-sender: " << error.what() << "\n";
  return 1;
}

int run_raw_zmq_receiver(const std::vector<std::string>& arguments) try {
  const std::uint64_t bytes = std::stoull(arguments.at(2));
  const Keys own = make_keys();
  zmq::context_t context(1);
  zmq::socket_t data(context, zmq::socket_type::pull);
  zmq::socket_t news(context, zmq::socket_type::sub);
  for (zmq::socket_t* socket : {&data, &news}) {
    connect_with(*socket, arguments.at(1), own);
    socket->set(zmq::sockopt::rcvhwm, kChunksInFlight);
    socket->set(zmq::sockopt::linger, 0);
  }
  news.set(zmq::sockopt::subscribe, std::string(kTopic));
  data.connect(arguments.at(0));
  news.connect(news_address(arguments.at(0)));
  std::vector<std::byte> memory(bytes, std::byte{1});
  std::uint64_t received = 0;
  std::uint64_t transfers = 0;
  zmq::message_t message;
  for (;;) {
    // The end of its input is the end of the process: its owner is gone.
    std::array<zmq_pollitem_t, 3> items = {zmq_pollitem_t{data.handle(), 0, ZMQ_POLLIN, 0},
                                           zmq_pollitem_t{news.handle(), 0, ZMQ_POLLIN, 0},
                                           zmq_pollitem_t{nullptr, 0, ZMQ_POLLIN, 0}};
    if (zmq_poll(items.data(), static_cast<int>(items.size()), -1) < 0) continue;
    if (items[2].revents != 0) return 0;
    while (news.recv(message, zmq::recv_flags::dontwait)) {
      const std::int64_t now_ns = monotonic_ns();
      std::cout << message.to_string_view() << " " << now_ns << std::endl;
    }
    while (data.recv(message, zmq::recv_flags::dontwait)) {
      if (message.size() > bytes - received) return 1;
      std::memcpy(memory.data() + received, message.data(), message.size());
      received += message.size();
      if (received < bytes) continue;
      received = 0;
      std::cout << "data " << ++transfers << " " << monotonic_ns() << std::endl;
    }
  }
} catch (const std::exception& error) {
  std::cerr << "raw-zmq-receiver: " << error.what() << "\n";
  return 1;
}

}  // namespace freshet::benchmarks
