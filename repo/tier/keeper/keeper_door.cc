// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/keeper/keeper_door.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/format.h"

namespace freshet::tier {
namespace {

constexpr std::size_t kClientsMax = 256;
constexpr std::size_t kRecordBytesMax = kPathRoom + 64;
constexpr Duration kProbeEach = std::chrono::seconds(2);
constexpr Duration kSaveEach = std::chrono::seconds(10);
constexpr int kLookEachMs = 500;
/// Before the text of an answer: something was not taken for want of room.
constexpr std::string_view kNoRoom = "no room: ";
/// How long a keeper that was told an order waits for who reads in that order.
constexpr Duration kReadersWithin = std::chrono::minutes(10);
/// How long a keeper without a client waits for its first.
constexpr Duration kFirstClientWithin = std::chrono::seconds(10);

sockaddr_un control_address(const Config& config) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = board_path(config) + ".ctl";
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

Result<FileDescriptor> bind_control(const Config& config) {
  const sockaddr_un address = control_address(config);
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  (void)::unlink(address.sun_path);
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail_errno(errno, format("listen at {}", address.sun_path));
  }
  return fd;
}

/// What programs ask for. Opened for both directions: without a reader the kernel would forget what is in it.
Result<FileDescriptor> make_ask_pipe(const Config& config) {
  constexpr int kRoom = 1 << 20;  // What the kernel gives to users without privileges.
  const std::string path = board_path(config) + ".ask";
  (void)::unlink(path.c_str());
  FileDescriptor fd;
  if (::mkfifo(path.c_str(), 0600) == 0)
    fd = FileDescriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd) return fail_errno(errno, format("listen at {}", path));
  (void)::fcntl(fd.get(), F_SETPIPE_SZ, kRoom);
  return fd;
}

std::string text_of(const Error& error) {
  return (error.code() == Code::out_of_space ? std::string(kNoRoom) : "") + error.message();
}

void send_answer(int fd, const std::string& text) {
  (void)::send(fd, text.c_str(), text.size() + 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

Result<std::unique_ptr<KeeperDoor>> KeeperDoor::open(const Config& config, BoardFile board) {
  std::unique_ptr<KeeperDoor> door(new KeeperDoor(config, std::move(board)));
  door->lock_ = open_lock_file(board_path(config));
  if (!door->lock_) return fail_errno(errno, "lock the board");
  if (::flock(door->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(Code::failed_precondition,
                format("a keeper runs already, as process {}", load(door->board_.board().keeper_pid)));
  }
  // By this lock programs see that a keeper is there: it can be asked for without being taken.
  if (!lock_byte(door->lock_.get(), kKeeperByte)) return fail_errno(errno, "lock the board");
  door->spare_ = FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  FRESHET_ASSIGN(door->idle_, Wake::open());
  FRESHET_ASSIGN(door->ask_, make_ask_pipe(config));
  FRESHET_ASSIGN(door->control_, bind_control(config));
  const Wake& idle = *door->idle_;
  FRESHET_ASSIGN(door->keeper_, Keeper::open(config, door->board_.board(), [&idle] { idle.wake(); }));
  if (::listen(door->control_.get(), 64) != 0) return fail_errno(errno, "listen for the command line");
  door->saved_opens_ = load(door->board_.board().counters.opens);
  store(door->board_.board().keeper_pid, static_cast<std::uint32_t>(::getpid()));
  return door;
}

KeeperDoor::~KeeperDoor() {
  if (!keeper_) return;
  keeper_.reset();
  Board& board = board_.board();
  store(board.queued_files, std::uint64_t{0});
  (void)save_totals(board);
  store(board.keeper_pid, std::uint32_t{0});
  (void)::unlink((board_path(config_) + ".ask").c_str());
  (void)::unlink((board_path(config_) + ".ctl").c_str());
}

Status KeeperDoor::run(const DoorOptions& options) {
  const Time first_client_by = system_clock().now() + kFirstClientWithin;
  while (!told_to_stop_) {
    std::vector<pollfd> polled = {{.fd = ask_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = control_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = idle_->descriptor(), .events = POLLIN, .revents = 0},
                                  {.fd = options.stop_descriptor, .events = POLLIN, .revents = 0}};
    const std::size_t fixed = polled.size();
    for (const auto& client : clients_) polled.push_back({.fd = client->fd.get(), .events = POLLIN, .revents = 0});
    if (::poll(polled.data(), polled.size(), kLookEachMs) < 0 && errno != EINTR)
      return fail_errno(errno, "wait for requests");
    if (polled[3].revents != 0) return {};
    if (polled[2].revents != 0) idle_->acknowledge();
    // Before anybody is told that nothing is left: what programs asked for by then counts.
    take_requests();
    for (std::size_t i = fixed; i < polled.size(); ++i) {
      if (polled[i].revents != 0) hear(*clients_[i - fixed]);
    }
    if (polled[1].revents != 0) take_client();
    keeper_->look_at_board();
    answer_settled();
    for (const auto& client : clients_) {
      if (client->gone && client->order != 0) keeper_->end_order(client->order, /*stays=*/false);
    }
    std::erase_if(clients_, [](const auto& client) { return client->gone; });
    // Before a tier that is off is tried again.
    if (options.on_look) options.on_look();
    do_by_the_clock();
    const Time now = system_clock().now();
    if (!clients_.empty()) last_needed_ = now;
    if (options.ends_when_idle && clients_.empty() && (had_client_ || now > first_client_by) && keeper_->is_idle() &&
        (!keeper_->has_orders() || now > last_needed_ + kReadersWithin)) {
      return {};
    }
  }
  return {};
}

void KeeperDoor::take_requests() {
  constexpr int kReadsAtOnce = 32;
  constexpr std::size_t kAtOnce = std::size_t{1} << 16;
  const auto bytes = std::make_unique_for_overwrite<char[]>(kAtOnce);
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t got = ::read(ask_.get(), bytes.get(), kAtOnce);
    if (got <= 0) return;
    last_needed_ = system_clock().now();
    asked_.append(bytes.get(), static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end = asked_.find('\0'); end != std::string::npos; end = asked_.find('\0', begin)) {
      take_request(asked_.substr(begin, end - begin));
      begin = end + 1;
    }
    asked_.erase(0, begin);
    // Nobody of ours writes so much without an end.
    if (asked_.size() > kRequestBytesMax) asked_.clear();
  }
}

void KeeperDoor::take_request(std::string text) {
  if (text.size() > 1 && text[0] == kMissMark && text[1] == '/') {
    keeper_->note_miss(text.substr(1));
  } else if (text.starts_with('/')) {
    keeper_->ask(std::move(text));
  }
}

void KeeperDoor::take_client() {
  FileDescriptor fd(::accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd && (errno == EMFILE || errno == ENFILE)) {
    // Who cannot be heard is not left waiting, and a keeper that nobody can reach ends when it is idle.
    had_client_ = true;
    spare_ = FileDescriptor();
    fd = FileDescriptor(::accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    fd = FileDescriptor();
    spare_ = FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return;
  }
  if (!fd) return;
  had_client_ = true;
  if (clients_.size() >= kClientsMax) return send_answer(fd.get(), "too many connections");
  auto client = std::make_unique<Client>();
  client->fd = std::move(fd);
  clients_.push_back(std::move(client));
}

void KeeperDoor::hear(Client& client) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 18;
  const auto bytes = std::make_unique<char[]>(kAtOnce);
  const ssize_t got = ::recv(client.fd.get(), bytes.get(), kAtOnce, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    client.gone = true;
    return;
  }
  client.heard.append(bytes.get(), static_cast<std::size_t>(got));
  std::size_t begin = 0;
  for (std::size_t end = client.heard.find('\0'); end != std::string::npos; end = client.heard.find('\0', begin)) {
    const std::string said = answer(client, client.heard.substr(begin, end - begin));
    if (!said.empty()) send_answer(client.fd.get(), said);
    begin = end + 1;
  }
  client.heard.erase(0, begin);
  if (client.heard.size() > kRecordBytesMax) client.gone = true;
}

std::string KeeperDoor::answer(Client& client, const std::string& record) {
  const std::size_t space = record.find(' ');
  const std::string verb = record.substr(0, space);
  const std::string about = space == std::string::npos ? "" : record.substr(space + 1);
  if (verb == "hold") return "ok";
  if (verb == "next") {
    if (about.starts_with('/')) tell_next(client, about);
    return "";
  }
  if (verb == "anew") {
    if (client.order != 0) keeper_->tell_anew(client.order);
    client.trouble.clear();
    return "";
  }
  if (verb == "told") {
    return client.trouble.empty() ? "ok" : std::exchange(client.trouble, "");
  }
  if (verb == "leave") {
    if (client.order != 0) keeper_->end_order(std::exchange(client.order, 0), /*stays=*/true);
    return "ok";
  }
  if (verb == "run") {
    keeper_->look_at_board();
    return "ok";
  }
  if (verb == "settle") {
    client.settles = true;
    return "";
  }
  if (verb == "stop") {
    told_to_stop_ = true;
    return "ok";
  }
  if (verb == "prefetch" && about.starts_with('/')) {
    const Status taken = keeper_->prefetch(about);
    return taken ? "ok" : taken.error().message();
  }
  Identity identity;
  if (verb == "forget" && about.size() == kNameBytes && take_name(about.data(), identity)) {
    keeper_->forget(identity);
    return "ok";
  }
  return "no such request";
}

void KeeperDoor::tell_next(Client& client, const std::string& path) {
  if (client.order == 0) {
    const auto begun = keeper_->begin_order();
    if (!begun) {
      client.trouble = text_of(begun.error());
      return;
    }
    client.order = *begun;
  }
  if (const Status told = keeper_->tell(client.order, path); !told) client.trouble = text_of(told.error());
}

void KeeperDoor::answer_settled() {
  for (const auto& client : clients_) {
    if (!client->settles || keeper_->unblock() || !keeper_->is_idle()) continue;
    client->settles = false;
    send_answer(client->fd.get(), "ok");
  }
}

void KeeperDoor::do_by_the_clock() {
  const Time now = system_clock().now();
  if (now >= next_probe_) {
    next_probe_ = now + kProbeEach;
    keeper_->try_again();
  }
  const std::uint64_t opens = load(board_.board().counters.opens);
  if (now >= next_save_ && opens != saved_opens_) {
    next_save_ = now + kSaveEach;
    saved_opens_ = opens;
    (void)save_totals(board_.board());
  }
}

Result<KeeperLine> KeeperLine::connect(const Config& config) {
  const sockaddr_un address = control_address(config);
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno(errno, "reach the keeper");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail(Code::unavailable, "no keeper runs");
  }
  return KeeperLine(std::move(fd));
}

Status KeeperLine::send(std::string_view records, Time deadline) {
  while (!records.empty()) {
    const ssize_t wrote = ::send(fd_.get(), records.data(), records.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) {
      if (system_clock().now() >= deadline) return fail(Code::timed_out, "the keeper did not listen in time");
      (void)wait_writable(fd_.get(), deadline);
      continue;
    }
    if (wrote <= 0) return fail(Code::unavailable, "the keeper went away");
    records.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return {};
}

Status KeeperLine::say(const std::string& record, Time deadline) {
  FRESHET_TRY(send(std::string_view(record.c_str(), record.size() + 1), deadline));
  return hear(deadline);
}

Status KeeperLine::hear(Time deadline) {
  for (;;) {
    if (system_clock().now() >= deadline) return fail(Code::timed_out, "the keeper did not answer in time");
    if (!wait_readable(fd_.get(), deadline)) continue;
    char byte = 0;
    const ssize_t got = ::recv(fd_.get(), &byte, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(Code::unavailable, "the keeper went away");
    if (byte == '\0') break;
    heard_ += byte;
  }
  const std::string said = std::exchange(heard_, "");
  if (said == "ok") return {};
  // Of what it was told the keeper has its limits. All else that it says is no fault of the moment.
  if (said.starts_with(kNoRoom)) return fail(Code::out_of_space, said.substr(kNoRoom.size()));
  return fail(Code::failed_precondition, said);
}

}  // namespace freshet::tier
