// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/link.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "transport/shm/socket_path.h"

namespace freshet::rpc {
namespace {

/// A server that refuses a key says so and hangs up, and what it said may be lost with the connection: the next
/// handshake tells.
constexpr int kHandshakesMax = 3;

bool is_last(std::uint16_t verb) {
  return verb != kVerb<Advance> && verb != kVerb<Invitation> && verb != kVerb<Credit>;
}

constexpr std::string_view kSocketBegin = "ipc://";
constexpr std::string_view kFolderEnd = "/serve/socket";  // bindings/runtime/folder_socket.h

/// Who listens, though it may never accept: the kernel says so of a connection that waits for it.
std::optional<pid_t> process_behind(const std::string& path) {
  const auto socket_path = SocketPath::of(path);
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_path || !socket) return std::nullopt;
  const sockaddr_un address = socket_path->address();
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return std::nullopt;
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid <= 0) return std::nullopt;
  return peer.pid;
}

/// Its line in /proc is "PID (NAME) STATE …", where the name may hold anything.
bool is_stopped(pid_t process) {
  std::ifstream file(format("/proc/{}/stat", process));
  std::string line;
  if (!std::getline(file, line)) return false;
  const std::size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && (line[name_end + 2] == 'T' || line[name_end + 2] == 't');
}

/// How a message calls the repository: a folder by its path, for its owner's socket; other addresses as they are.
/// Behind a socket of this host stands its process. Asks the kernel, so it is for a message.
std::string served_place(const std::string& address) {
  if (!address.starts_with(kSocketBegin)) return address;
  const std::string path = address.substr(kSocketBegin.size());
  std::string place = path.ends_with(kFolderEnd) ? path.substr(0, path.size() - kFolderEnd.size()) : address;
  const auto process = process_behind(path);
  if (!process) return place;
  place += format(" (process {} owns it", *process);
  if (is_stopped(*process)) place += format(", and is stopped: kill -CONT {} lets it go on", *process);
  return place + ")";
}

}  // namespace

Conversation::~Conversation() {
  if (link_ != nullptr) link_->give_up(request_);
}

Result<Response> Conversation::next(Time deadline) {
  for (;;) {
    const Time look = Interruption::next_look(deadline);
    FRESHET_ASSIGN(std::optional<Response> there, link_->wait_for(request_, look));
    if (there) return std::move(*there);
    if (Interruption::is_wanted()) {
      return fail(Code::cancelled, format("the wait for the repository at {} was interrupted", link_->address_));
    }
    if (look == deadline) {
      return fail(Code::timed_out,
                  format("the repository at {} did not answer in time", served_place(link_->address_)));
    }
  }
}

Result<std::optional<Response>> Link::wait_for(std::uint64_t request, Time until) {
  const MutexLock lock(mutex_);
  for (;;) {
    FRESHET_ASSIGN(std::optional<Response> there, take_from(request));
    if (there) return there;
    const auto inbox = inboxes_.at(request);
    if (!inbox->came.wait_until(mutex_, until) && inbox->responses.empty() && !inbox->failed) {
      return std::optional<Response>();
    }
  }
}

void Conversation::send_chunk(std::uint64_t offset, Bytes chunk) {
  link_->push({.request = 0,
               .head = rpc::request(0, Chunk{.upload = request_, .offset = offset}),
               .data = zmq::message_t(chunk.data(), chunk.size())});
}

void Conversation::abandon() {
  link_->push({.request = 0, .head = rpc::request(0, Abandon{.upload = request_}), .data = {}});
}

Result<std::shared_ptr<Link>> Link::open(const Options& options, Time deadline) {
  for (int tries = 1;; ++tries) {
    FRESHET_ASSIGN(std::shared_ptr<Link> link, connect(options));
    Status welcome = link->hello(deadline);
    if (welcome) return link;
    if (!link->broke_off_ || tries == kHandshakesMax || system_clock().now() >= deadline)
      return fail(std::move(welcome).error());
  }
}

Result<std::shared_ptr<Link>> Link::connect(const Options& options) {
  const ClientCredentials* const proof = options.credentials ? &*options.credentials : nullptr;
  FRESHET_ASSIGN(SocketAddress address,
                 SocketAddress::parse(options.address, false, proof != nullptr ? Reach::any_host : Reach::this_host));
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  FRESHET_ASSIGN(ZmqSocket socket, connect_data(context, std::move(address), proof,
                                                {.message_bytes_max = kMessageBytesMax}, options.believed));
  FRESHET_ASSIGN(Wake wake, Wake::open());
  std::shared_ptr<Link> link;
  try {
    link = std::shared_ptr<Link>(
        new Link(options, parties_of(options.address, proof),
                 {.context = std::move(context), .socket = std::move(socket), .wake = std::move(wake)}));
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a connection's thread: {}", error.what()));
  }
  return link;
}

Link::Link(const Options& options, HandshakeParties parties, Parts parts)
    : address_(options.address),
      parties_(std::move(parties)),
      silence_(options.times.silence),
      wake_(std::move(parts.wake)),
      context_(std::move(parts.context)),
      socket_(std::move(parts.socket)),
      machine_(options.times, system_clock().now()) {
  thread_ = std::thread([this] { run(); });
}

Link::~Link() {
  stopping_ = true;
  wake_.wake();
  thread_.join();
}

Status Link::hello(Time deadline) {
  const std::uint64_t number = ++numbers_;
  FRESHET_ASSIGN(Conversation conversation, converse(number, rpc::hello(number)));
  FRESHET_ASSIGN(const Response response, conversation.next(deadline));
  std::optional<Welcome> welcome = step_in<Welcome>(response);
  if (!welcome || welcome->protocol != kProtocolVersion) {
    return fail(Code::unsupported,
                format("{} is not a repository's server, or is of another version of Freshet", address_));
  }
  session_ = welcome->session;
  host_ = std::move(welcome->host);
  standing_ = welcome->standing;
  owner_ = std::move(welcome->owner);
  return {};
}

bool Link::is_dead() const {
  const MutexLock lock(mutex_);
  return dead_.has_value();
}

Result<Conversation> Link::converse(std::uint64_t number, Encoded message) {
  {
    const MutexLock lock(mutex_);
    if (dead_) return fail(*dead_);
    inboxes_.emplace(number, std::make_shared<Inbox>());
    outgoing_.push_back({.request = number, .head = std::move(message), .data = {}});
  }
  wake_.wake();
  return Conversation(shared_from_this(), number);
}

void Link::push(Outgoing outgoing) {
  {
    const MutexLock lock(mutex_);
    if (dead_) return;
    outgoing_.push_back(std::move(outgoing));
  }
  wake_.wake();
}

Result<std::optional<Response>> Link::take_from(std::uint64_t request) {
  Inbox& inbox = *inboxes_.at(request);
  if (!inbox.responses.empty()) {
    Response response = std::move(inbox.responses.front());
    inbox.responses.pop_front();
    if (response->failed() != nullptr) return fail(error_of(*response->failed()));
    return std::optional<Response>(std::move(response));
  }
  if (inbox.failed) return fail(*inbox.failed);
  return std::optional<Response>();
}

void Link::give_up(std::uint64_t request) {
  {
    const MutexLock lock(mutex_);
    inboxes_.erase(request);
    given_up_.push_back(request);
  }
  // No wake: that nobody waits for it matters to nobody before the next round.
}

void Link::run() {
  std::vector<zmq::pollitem_t> items = {{socket_.socket.handle(), 0, ZMQ_POLLIN, 0},
                                        {socket_.monitor->handle(), 0, ZMQ_POLLIN, 0},
                                        {nullptr, wake_.descriptor(), ZMQ_POLLIN, 0}};
  while (!stopping_ && !broken_) {
    poll(items, time_to_sleep(system_clock().now()));
    wake_.acknowledge();
    send_posted();
    take_messages();
    take_events();
    tick();
  }
  if (broken_) {
    // What had come before the end is not lost with it.
    const Error why = *std::exchange(broken_, std::nullopt);
    take_messages();
    return die(why);
  }
  const Encoded bye = request(0, Bye{});
  send(socket_.socket, "", std::as_bytes(std::span(bye.data(), bye.size())));
}

std::chrono::milliseconds Link::time_to_sleep(Time at) const {
  const Duration left = std::max(machine_.next_tick() - at, Duration::zero());
  return std::chrono::ceil<std::chrono::milliseconds>(left);
}

void Link::send_posted() {
  std::vector<Outgoing> outgoing;
  {
    const MutexLock lock(mutex_);
    outgoing.swap(outgoing_);
    for (const std::uint64_t request : std::exchange(given_up_, {})) machine_.on_given_up(request);
  }
  for (Outgoing& one : outgoing) {
    if (one.request != 0) machine_.on_sent(one.request);
    try {
      zmq::message_t head(one.head.data(), one.head.size());
      const auto flags = zmq::send_flags::dontwait;
      bool sent = socket_.socket.send(head, one.data ? flags | zmq::send_flags::sndmore : flags).has_value();
      if (sent && one.data) sent = socket_.socket.send(*one.data, flags).has_value();
      if (sent) continue;
      take_events();  // Where the other side ended it, they say why.
      if (!broken_) broken_ = Error(Code::unavailable, format("the repository at {} takes no messages", address_));
    } catch (const zmq::error_t& error) {
      broken_ = Error(Code::unavailable, format("send to the repository at {}: {}", address_, error.what()));
    }
  }
}

void Link::take_events() {
  while (const auto event = socket_.monitor->take()) {
    if (broken_) continue;
    if (event->kind == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) broke_off_ = true;
    broken_ = handshake_error(*event, parties_);
    if (broken_ || (event->kind != ZMQ_EVENT_DISCONNECTED && event->kind != ZMQ_EVENT_CLOSED)) continue;
    broken_ = Error(Code::unavailable, event->kind == ZMQ_EVENT_CLOSED
                                           ? format("no repository's server takes connections at {}", address_)
                                           : format("the connection to the repository at {} ended", address_));
  }
}

void Link::take_messages() {
  while (!broken_) {
    zmq::message_t message;
    try {
      if (!socket_.socket.recv(message, zmq::recv_flags::dontwait)) return socket_.monitor->on_drained();
    } catch (const zmq::error_t& error) {
      broken_ = Error(Code::unavailable, format("receive from the repository at {}: {}", address_, error.what()));
      return;
    }
    if (!socket_.monitor->admits(message)) return;  // take_events() tells why.
    take(message);
  }
}

void Link::take(const zmq::message_t& message) {
  auto response = Response::open(freshet::bytes_of(message));
  if (!response || message.more()) {
    broken_ = Error(Code::unsupported,
                    format("{} is not a repository's server, or is of another version of Freshet", address_));
    return;
  }
  const wire::Reply& reply = **response;
  if (reply.request() == 0 && reply.failed() != nullptr) {
    broken_ = error_of(*reply.failed()).with_context(format("the repository at {}", address_));
  } else if (const auto pong = step_in<Pong>(*response)) {
    for (const std::uint64_t lost : machine_.on_pong(pong->running, system_clock().now())) {
      fail_one(lost, Error(Code::unavailable, format("the answer of the repository at {} was lost", address_)));
    }
  } else if (machine_.on_reply(reply.request(), is_last(response->verb()), system_clock().now())) {
    deliver(std::move(*response));
  }
}

void Link::deliver(Response response) {
  const MutexLock lock(mutex_);
  const auto at = inboxes_.find(response->request());
  if (at == inboxes_.end()) return;
  at->second->responses.push_back(std::move(response));
  at->second->came.notify_all();
}

void Link::fail_one(std::uint64_t request, const Error& error) {
  const MutexLock lock(mutex_);
  const auto at = inboxes_.find(request);
  if (at == inboxes_.end()) return;
  at->second->failed = error;
  at->second->came.notify_all();
}

void Link::tick() {
  if (broken_) return;
  const ClientMachine::Tick due = machine_.on_tick(system_clock().now());
  if (due.dead) {
    broken_ = Error(
        Code::unavailable,
        format("the repository at {} has not answered for {} ms: its process is stopped, or its host cannot be reached",
               served_place(address_), std::chrono::duration_cast<std::chrono::milliseconds>(silence_).count()));
  } else if (due.ping) {
    const Encoded ping = request(0, Ping{});
    send(socket_.socket, "", std::as_bytes(std::span(ping.data(), ping.size())));
  }
}

void Link::die(Error why) {
  const MutexLock lock(mutex_);
  for (const auto& [request, inbox] : inboxes_) {
    if (!inbox->failed) inbox->failed = why;
    inbox->came.notify_all();
  }
  outgoing_.clear();
  dead_ = std::move(why);
}

}  // namespace freshet::rpc
