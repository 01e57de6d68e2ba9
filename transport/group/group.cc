// SPDX-License-Identifier: Apache-2.0
#include "transport/group/group.h"

#include <algorithm>
#include <deque>
#include <system_error>
#include <utility>

#include "core/format.h"
#include "transport/group/meeting_place.h"
#include "transport/security/authenticator.h"
#include "transport/security/credentials.h"
#include "transport/wake.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/listener.h"
#include "transport/zmq/sockets.h"

namespace freshet::group {
namespace {

constexpr int kGroupMessagesPerRound = 256;
constexpr std::size_t kQuestionsMax = 4096;  ///< That wait to be answered here.
constexpr std::chrono::milliseconds kReconnectPause{50};
/// How long what was said last may take to leave when the meeting is over.
constexpr int kLastWordsMs = 400;
constexpr ArrivalLimits kGroupArrivals{.connection_bytes = 2 * kMessageBytesMax, .all_bytes = 8 * kMessageBytesMax};

}  // namespace

struct Group::Loop {
  struct Parts {
    zmq::context_t context;
    std::unique_ptr<Authenticator> authenticator;
    std::optional<ZmqSocket> socket;
    std::optional<KeyPair> keys;
    std::optional<PublicKey> hub_key;
    Wake wake;
    std::string meet;  ///< In numbers.
  };
  /// To a rank's listening socket.
  struct Way {
    Way(ZmqSocket opened, HandshakeParties who) : socket(std::move(opened)), parties(std::move(who)) {}
    ZmqSocket socket;
    HandshakeParties parties;
  };
  struct Visitor {
    std::string identity;
    int descriptor = -1;
  };
  struct Asked {
    Rank to = 0;
    std::optional<Result<Answer>> answer;
    CondVar came;
  };
  struct ToAnswer {
    std::string identity;
    Rank from = 0;
    std::uint64_t number = 0;
    std::vector<std::byte> question;
  };
  struct Answered {
    std::string identity;
    std::uint64_t number = 0;
    Result<std::vector<std::byte>> answer;
  };

  Loop(const GroupOptions& options, GroupHandlers given, Parts parts);
  ~Loop();
  void start();

  // The loop's thread.
  void run();
  void carry_out(GroupMachine::Outcome outcome);
  void send_to(Rank to, const Message& message);
  void send_to_visitor(const std::string& identity, const Message& message, std::vector<std::byte> data = {});
  Way* way_to(Rank rank);
  void take_commands();
  void forget_ended();
  void take_visitors();
  void take_from_visitor(std::vector<zmq::message_t>& parts, Time now);
  void take_answers(Rank from, Way& way);
  void take_events(Rank to);
  void fail_questions(std::optional<Rank> to, const Error& why);
  void send_answers();
  std::vector<zmq::pollitem_t> poll_items();

  // The answering thread.
  void answer_questions();

  // Any thread.
  void post(std::function<void()> command);

  const Rank rank;
  const Rank ranks;
  const GroupHandlers handlers;
  const std::string meet;
  const Wake wake;
  const std::optional<KeyPair> keys;
  const std::optional<PublicKey> hub_key;

  // The loop's. Sockets end before the authenticator, and that before the context.
  zmq::context_t context;
  const std::unique_ptr<Authenticator> authenticator;
  std::optional<ZmqSocket> socket;
  std::optional<Listener> listener;
  std::map<Rank, Way> ways;
  std::map<Rank, Visitor> visitors;  ///< Rank 0: who said hello.
  std::vector<int> ended_descriptors;
  GroupMachine machine;
  Time connect_after{};
  Rejects rejects{"ranks"};

  mutable Mutex mutex;
  CondVar changed;
  std::vector<std::function<void()>> commands FRESHET_GUARDED_BY(mutex);
  bool met FRESHET_GUARDED_BY(mutex) = false;
  bool done FRESHET_GUARDED_BY(mutex) = false;  ///< leave() succeeded.
  std::optional<Error> over FRESHET_GUARDED_BY(mutex);
  std::vector<Peer> peers FRESHET_GUARDED_BY(mutex);
  std::optional<std::pair<std::uint64_t, std::vector<std::vector<std::byte>>>> to_decide FRESHET_GUARDED_BY(mutex);
  std::map<std::uint64_t, Message> decided FRESHET_GUARDED_BY(mutex);
  std::uint64_t agreements FRESHET_GUARDED_BY(mutex) = 0;
  std::uint64_t questions FRESHET_GUARDED_BY(mutex) = 0;
  std::map<std::uint64_t, std::shared_ptr<Asked>> asked FRESHET_GUARDED_BY(mutex);
  std::deque<ToAnswer> to_answer FRESHET_GUARDED_BY(mutex);
  CondVar question_came;
  std::vector<Answered> answered FRESHET_GUARDED_BY(mutex);
  bool stopping FRESHET_GUARDED_BY(mutex) = false;
  std::thread thread;
  std::thread answerer;
};

Group::Loop::Loop(const GroupOptions& options, GroupHandlers given, Parts parts)
    : rank(options.rank),
      ranks(options.ranks),
      handlers(std::move(given)),
      meet(std::move(parts.meet)),
      wake(std::move(parts.wake)),
      keys(std::move(parts.keys)),
      hub_key(std::move(parts.hub_key)),
      context(std::move(parts.context)),
      authenticator(std::move(parts.authenticator)),
      machine({.rank = options.rank,
               .ranks = options.ranks,
               .claims = options.claims,
               .peer = {.address = parts.socket ? parts.socket->address.text() : "",
                        .key = keys ? keys->public_key().text() : "",
                        .host = options.host}},
              options.times, system_clock().now()) {
  if (parts.socket) {
    socket.emplace(std::move(*parts.socket));
    listener.emplace(*socket, neighbours_admitted(options.security, keys.has_value()), kGroupArrivals,
                     [this](int descriptor) { ended_descriptors.push_back(descriptor); });
  }
}

void Group::Loop::start() {
  thread = std::thread([this] { run(); });
  answerer = std::thread([this] { answer_questions(); });
}

Group::Loop::~Loop() {
  {
    const MutexLock lock(mutex);
    stopping = true;
    question_came.notify_all();
  }
  wake.wake();
  if (thread.joinable()) thread.join();
  if (answerer.joinable()) answerer.join();
}

void Group::Loop::post(std::function<void()> command) {
  {
    const MutexLock lock(mutex);
    commands.push_back(std::move(command));
  }
  wake.wake();
}

std::vector<zmq::pollitem_t> Group::Loop::poll_items() {
  std::vector<zmq::pollitem_t> items = {{nullptr, wake.descriptor(), ZMQ_POLLIN, 0}};
  if (socket) {
    items.push_back({socket->socket.handle(), 0, ZMQ_POLLIN, 0});
    listener->watch(items);
  }
  for (auto& [to, way] : ways) {
    items.push_back({way.socket.socket.handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({way.socket.monitor->handle(), 0, ZMQ_POLLIN, 0});
  }
  return items;
}

void Group::Loop::run() {
  for (;;) {
    {
      const MutexLock lock(mutex);
      if (stopping) break;
    }
    std::vector<zmq::pollitem_t> items = poll_items();
    const Duration left = std::max(machine.next_tick() - system_clock().now(), Duration::zero());
    poll(items, std::chrono::ceil<std::chrono::milliseconds>(machine.is_over() ? std::chrono::seconds(1) : left));
    wake.acknowledge();
    if (listener) listener->tend(system_clock().now());
    take_visitors();
    std::vector<Rank> there;
    for (const auto& [to, way] : ways) there.push_back(to);
    for (const Rank to : there) {
      take_answers(to, ways.at(to));
      take_events(to);
    }
    forget_ended();
    take_commands();
    send_answers();
    carry_out(machine.on_tick(system_clock().now()));
  }
  // What was said last may still leave.
  try {
    if (socket) socket->socket.set(zmq::sockopt::linger, kLastWordsMs);
    for (auto& [to, way] : ways) way.socket.socket.set(zmq::sockopt::linger, kLastWordsMs);
  } catch (const zmq::error_t&) {
  }
  fail_questions({}, Error(Code::cancelled, "the meeting was closed"));
}

void Group::Loop::forget_ended() {
  for (const int descriptor : std::exchange(ended_descriptors, {})) {
    const auto at =
        std::ranges::find_if(visitors, [&](const auto& entry) { return entry.second.descriptor == descriptor; });
    if (at == visitors.end()) continue;
    const Rank gone = at->first;
    visitors.erase(at);
    carry_out(machine.on_gone(gone, system_clock().now()));
  }
}

void Group::Loop::take_commands() {
  std::vector<std::function<void()>> all;
  {
    const MutexLock lock(mutex);
    all.swap(commands);
  }
  for (const auto& command : all) command();
}

void Group::Loop::carry_out(GroupMachine::Outcome outcome) {
  for (const auto& [to, message] : outcome.sends) send_to(to, message);
  if (outcome.met || outcome.to_decide || outcome.decided || outcome.ended) {
    const MutexLock lock(mutex);
    if (outcome.met) {
      met = true;
      peers = machine.peers();
    }
    if (outcome.to_decide) to_decide = std::move(outcome.to_decide);
    if (outcome.decided) decided.insert_or_assign(outcome.decided->first, std::move(outcome.decided->second));
    if (outcome.ended) over = outcome.ended;
    changed.notify_all();
  }
  for (const Message& note : outcome.notes) {
    if (handlers.on_note) handlers.on_note(note.from, note.data);
  }
  if (outcome.ended) {
    fail_questions({}, *outcome.ended);
    if (handlers.on_end) handlers.on_end(machine.lost(), *outcome.ended);
  }
}

Group::Loop::Way* Group::Loop::way_to(Rank to) {
  if (const auto at = ways.find(to); at != ways.end()) return &at->second;
  const std::string address = to == 0 ? meet : to < machine.peers().size() ? machine.peers()[to].address : "";
  std::optional<ClientCredentials> proof;
  if (keys) {
    std::optional<PublicKey> server = to == 0 ? hub_key : std::nullopt;
    if (to != 0 && to < machine.peers().size()) {
      if (auto key = PublicKey::parse("a rank's key", machine.peers()[to].key)) server = *std::move(key);
    }
    if (!server) return nullptr;
    proof = ClientCredentials{.keys = *keys, .server = *server};
  }
  auto parsed = SocketAddress::parse(address, false, proof ? Reach::any_host : Reach::this_host);
  if (!parsed) return nullptr;
  auto opened =
      connect_data(context, *std::move(parsed), proof ? &*proof : nullptr, {.message_bytes_max = kMessageBytesMax});
  if (!opened) return nullptr;
  return &ways.try_emplace(to, *std::move(opened), parties_of(address, proof ? &*proof : nullptr)).first->second;
}

void Group::Loop::send_to(Rank to, const Message& message) {
  if (rank == 0) {
    const auto at = visitors.find(to);
    if (at != visitors.end()) send_to_visitor(at->second.identity, message);
    return;
  }
  if (!ways.contains(0) && system_clock().now() < connect_after) return;
  Way* const way = way_to(0);
  if (way == nullptr) return;
  send(way->socket.socket, "", encode(message));
}

void Group::Loop::send_to_visitor(const std::string& identity, const Message& message, std::vector<std::byte> data) {
  try {
    const std::vector<std::byte> head = encode(message);
    const auto more = zmq::send_flags::dontwait | zmq::send_flags::sndmore;
    socket->socket.send(zmq::buffer(identity), more);
    if (data.empty()) {
      socket->socket.send(zmq::buffer(head.data(), head.size()), zmq::send_flags::dontwait);
      return;
    }
    socket->socket.send(zmq::buffer(head.data(), head.size()), more);
    auto* const kept = new std::vector<std::byte>(std::move(data));
    zmq::message_t body(
        kept->data(), kept->size(), [](void*, void* hint) { delete static_cast<std::vector<std::byte>*>(hint); }, kept);
    socket->socket.send(body, zmq::send_flags::dontwait);
  } catch (const zmq::error_t&) {
    // It is gone, and the listener will say so.
  }
}

void Group::Loop::take_visitors() {
  if (!socket) return;
  for (int i = 0; i < kGroupMessagesPerRound; ++i) {
    auto parts = receive(socket->socket, 2, &*listener);
    if (!parts) return listener->on_drained();
    if (parts->size() == 2) take_from_visitor(*parts, system_clock().now());
  }
}

void Group::Loop::take_from_visitor(std::vector<zmq::message_t>& parts, Time now) {
  const int descriptor = sender_descriptor(parts[1]);
  listener->tend(now);
  if (!listener->admits(descriptor)) return;
  if (authenticator != nullptr && !authenticator->allows(sender_key(parts[1]))) return listener->put_out(descriptor);
  auto message = decode(freshet::bytes_of(parts[1]));
  if (!message || message->from >= ranks || message->from == rank) {
    rejects.count(format("{}: {}", listener->name_of(descriptor),
                         message ? "it says it is a rank that cannot be" : message.error().message()),
                  now);
    return listener->put_out(descriptor);
  }
  const std::string identity = parts[0].to_string();
  const Rank from = message->from;
  if (message->kind == Kind::ask) {
    const MutexLock lock(mutex);
    if (to_answer.size() >= kQuestionsMax) return;  // Its asker's wait ends.
    to_answer.push_back({identity, from, message->number, std::move(message->data)});
    question_came.notify_one();
    return;
  }
  if (rank != 0) return;
  const auto known = visitors.find(from);
  if (message->kind == Kind::hello && known != visitors.end() && known->second.identity != identity) {
    const bool is_there =
        std::ranges::find(ended_descriptors, known->second.descriptor) == ended_descriptors.end();
    if (is_there || machine.has_met()) {
      Message refusal{.kind = Kind::refused, .from = 0};
      put_error(refusal, Error(Code::already_exists,
                               format("rank {} is here already: two jobs, or two ranks, meet at one address", from)));
      return send_to_visitor(identity, refusal);
    }
  }
  if (message->kind == Kind::hello) {
    if (!machine.has_met()) visitors[from] = {.identity = identity, .descriptor = descriptor};
  } else if (known == visitors.end() || known->second.identity != identity) {
    return;  // Not who met here under that rank.
  }
  carry_out(machine.on_message(*message, now));
}

void Group::Loop::take_answers(Rank from, Way& way) {
  for (int i = 0; i < kGroupMessagesPerRound; ++i) {
    auto parts = receive(way.socket.socket, 2);
    if (!parts) return;
    if (parts->empty()) continue;
    auto message = decode(freshet::bytes_of(parts->front()));
    if (!message || message->from != from) {
      rejects.count("what rank 0 or a peer sent is not of this protocol", system_clock().now());
      continue;
    }
    if (message->kind != Kind::answer) {
      carry_out(machine.on_message(*message, system_clock().now()));
      continue;
    }
    const MutexLock lock(mutex);
    const auto at = asked.find(message->number);
    if (at == asked.end() || at->second->to != from) continue;
    if (message->code != 0) {
      at->second->answer = fail(error_in(*message));
    } else {
      at->second->answer = parts->size() == 2 ? Answer(std::move((*parts)[1])) : Answer();
    }
    at->second->came.notify_all();
  }
}

void Group::Loop::take_events(Rank to) {
  Way& way = ways.at(to);
  std::optional<Error> gone;
  bool refused = false;
  while (const auto event = way.socket.monitor->take()) {
    if (gone) continue;
    gone = handshake_error(*event, way.parties);
    refused = gone && gone->code() == Code::failed_precondition;
    if (gone || (event->kind != ZMQ_EVENT_DISCONNECTED && event->kind != ZMQ_EVENT_CLOSED)) continue;
    gone = Error(Code::unavailable, format("the connection to rank {} at {} ended", to, way.parties.address));
  }
  if (!gone) return;
  take_answers(to, way);  // What came before the end is not lost with it.
  ways.erase(to);
  connect_after = system_clock().now() + kReconnectPause;
  fail_questions(to, *gone);
  if (to != 0 || rank == 0) return;
  if (refused && !machine.has_met()) {
    const MutexLock lock(mutex);
    if (!over) over = *gone;
    changed.notify_all();
    return;
  }
  carry_out(machine.on_gone(0, system_clock().now()));
}

void Group::Loop::fail_questions(std::optional<Rank> to, const Error& why) {
  const MutexLock lock(mutex);
  for (const auto& [number, question] : asked) {
    if (question->answer || (to && question->to != *to)) continue;
    question->answer = fail(why);
    question->came.notify_all();
  }
}

void Group::Loop::send_answers() {
  std::vector<Answered> all;
  {
    const MutexLock lock(mutex);
    all.swap(answered);
  }
  for (Answered& one : all) {
    Message message{.kind = Kind::answer, .from = rank, .number = one.number};
    if (!one.answer) put_error(message, one.answer.error());
    send_to_visitor(one.identity, message, one.answer ? *std::move(one.answer) : std::vector<std::byte>());
  }
}

void Group::Loop::answer_questions() {
  for (;;) {
    ToAnswer question;
    {
      const MutexLock lock(mutex);
      while (!stopping && to_answer.empty()) question_came.wait(mutex);
      if (stopping) return;
      question = std::move(to_answer.front());
      to_answer.pop_front();
    }
    Result<std::vector<std::byte>> answer =
        handlers.on_ask ? handlers.on_ask(question.from, question.question)
                        : Result<std::vector<std::byte>>(fail(Code::unsupported, "nobody answers here"));
    {
      const MutexLock lock(mutex);
      answered.push_back({std::move(question.identity), question.number, std::move(answer)});
    }
    wake.wake();
  }
}

Group::Group(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Group::~Group() = default;

Rank Group::rank() const { return loop_->rank; }
Rank Group::ranks() const { return loop_->ranks; }
const std::vector<Peer>& Group::peers() const FRESHET_NO_THREAD_SAFETY_ANALYSIS { return loop_->peers; }

Result<std::unique_ptr<Group>> Group::open(const GroupOptions& options, GroupHandlers handlers) {
  if (options.ranks == 0 || options.rank >= options.ranks) {
    return refuse(format("rank {} of {} ranks cannot be: ranks count from 0", options.rank, options.ranks));
  }
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  std::unique_ptr<Authenticator> authenticator;
  std::optional<ZmqSocket> socket;
  std::optional<KeyPair> keys;
  std::optional<PublicKey> hub_key;
  std::string meet;
  if (options.ranks > 1) {
    FRESHET_ASSIGN(meet, meeting_address(options.meet));
    SecurityOptions security = options.security;
    const std::string server_key = std::exchange(security.server_key, "");
    FRESHET_ASSIGN(const std::optional<ServerCredentials> proof, server_credentials(security));
    if (proof) {
      keys = proof->keys;
      if (options.rank != 0) {
        if (server_key.empty()) return refuse("with keys each rank needs rank 0's public key (--server-key)");
        FRESHET_ASSIGN(hub_key, read_public_key(server_key));
      }
      FRESHET_ASSIGN(authenticator, Authenticator::open(context, proof->allow_file));
    }
    std::string at = meet;
    if (options.rank != 0) {
      FRESHET_ASSIGN(at, own_address_towards(meet));
    }
    FRESHET_ASSIGN(SocketAddress address,
                   SocketAddress::parse(at, true, proof ? Reach::any_host : Reach::this_host));
    FRESHET_ASSIGN(ZmqSocket bound, bind_data(context, std::move(address), proof ? &*proof : nullptr,
                                              {.message_bytes_max = kMessageBytesMax}));
    socket.emplace(std::move(bound));
  }
  FRESHET_ASSIGN(Wake wake, Wake::open());
  GroupOptions with_ranks = options;
  with_ranks.claims.insert(with_ranks.claims.begin(), {"ranks", format("{}", options.ranks)});
  auto loop = std::make_unique<Loop>(with_ranks, std::move(handlers),
                                     Loop::Parts{.context = std::move(context),
                                                 .authenticator = std::move(authenticator),
                                                 .socket = std::move(socket),
                                                 .keys = std::move(keys),
                                                 .hub_key = std::move(hub_key),
                                                 .wake = std::move(wake),
                                                 .meet = std::move(meet)});
  try {
    loop->start();
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start the threads of a meeting: {}", error.what()));
  }
  auto group = std::unique_ptr<Group>(new Group(std::move(loop)));
  Loop& running = *group->loop_;
  const Time deadline = system_clock().now() + options.times.patience + std::chrono::seconds(2);
  const MutexLock lock(running.mutex);
  while (!running.met && !running.over) {
    if (!running.changed.wait_until(running.mutex, deadline) && !running.met && !running.over) {
      return fail(Code::timed_out, format("the ranks did not meet at {}", options.meet));
    }
  }
  if (!running.met) return fail(Error(*running.over).with_context(format("meet at {}", options.meet)));
  return group;
}

Result<std::vector<std::byte>> Group::agree(std::vector<std::byte> part, const Decide& decide, Duration at_most) {
  Loop& loop = *loop_;
  const Time deadline = system_clock().now() + at_most;
  std::uint64_t number = 0;
  {
    const MutexLock lock(loop.mutex);
    number = ++loop.agreements;
  }
  loop.post([&loop, number, data = std::move(part)]() mutable {
    loop.carry_out(loop.machine.contribute(number, std::move(data), system_clock().now()));
  });
  for (;;) {
    std::vector<std::vector<std::byte>> parts;
    {
      const MutexLock lock(loop.mutex);
      for (;;) {
        if (const auto at = loop.decided.find(number); at != loop.decided.end()) {
          const Message message = std::move(at->second);
          loop.decided.erase(at);
          if (message.code != 0) return fail(error_in(message));
          return message.data;
        }
        if (loop.over) return fail(*loop.over);
        if (loop.to_decide && loop.to_decide->first == number) break;
        if (!loop.changed.wait_until(loop.mutex, deadline) && system_clock().now() >= deadline) {
          return fail(Code::timed_out, "the ranks did not agree in time");
        }
      }
      parts = std::move(loop.to_decide->second);
      loop.to_decide.reset();
    }
    Result<std::vector<std::byte>> decision = decide(std::move(parts));
    loop.post([&loop, number, decision = std::move(decision)]() mutable {
      loop.carry_out(loop.machine.decide(number, std::move(decision), system_clock().now()));
    });
  }
}

void Group::note(Rank to, std::vector<std::byte> data) {
  Loop& loop = *loop_;
  loop.post([&loop, to, data = std::move(data)]() mutable { loop.carry_out(loop.machine.note(to, std::move(data))); });
}

Group::Question Group::ask(Rank to, std::vector<std::byte> question) {
  Loop& loop = *loop_;
  auto asked = std::make_shared<Loop::Asked>();
  asked->to = to;
  if (to == loop.rank) {
    Result<std::vector<std::byte>> own = loop.handlers.on_ask(to, question);
    asked->answer = own ? Result<Answer>(Answer(*std::move(own))) : Result<Answer>(fail(std::move(own).error()));
  }
  std::uint64_t number = 0;
  {
    const MutexLock lock(loop.mutex);
    number = ++loop.questions;
    if (loop.over && !asked->answer) asked->answer = fail(*loop.over);
    loop.asked.emplace(number, asked);
    if (asked->answer) return Question(*this, number);
  }
  loop.post([&loop, to, number, asked, data = std::move(question)]() mutable {
    Loop::Way* const way = loop.way_to(to);
    Message message{.kind = Kind::ask, .from = loop.rank, .number = number, .data = std::move(data)};
    if (way != nullptr && send(way->socket.socket, "", encode(message))) return;
    const MutexLock lock(loop.mutex);
    if (!asked->answer) asked->answer = fail(Code::unavailable, format("rank {} cannot be reached", to));
    asked->came.notify_all();
  });
  return Question(*this, number);
}

Group::Question::~Question() {
  if (group_ == nullptr) return;
  const MutexLock lock(group_->loop_->mutex);
  group_->loop_->asked.erase(number_);
}

Result<Answer> Group::Question::wait(Duration at_most) {
  Loop& loop = *group_->loop_;
  const Time deadline = system_clock().now() + at_most;
  const MutexLock lock(loop.mutex);
  const std::shared_ptr<Loop::Asked> asked = loop.asked.at(number_);
  while (!asked->answer) {
    if (!asked->came.wait_until(loop.mutex, deadline) && !asked->answer) {
      return fail(Code::timed_out, format("rank {} did not answer in time", asked->to));
    }
  }
  return std::move(*asked->answer);
}

Status Group::leave(Duration at_most) {
  Loop& loop = *loop_;
  const auto nothing = [](std::vector<std::vector<std::byte>>) { return std::vector<std::byte>(1); };
  std::uint64_t number = 0;
  {
    const MutexLock lock(loop.mutex);
    number = loop.agreements + 1;
  }
  loop.post([&loop, number] { loop.machine.leave_after(number); });
  FRESHET_TRY(agree(std::vector<std::byte>(1), nothing, at_most));
  return {};
}

std::optional<Error> Group::over() const {
  const MutexLock lock(loop_->mutex);
  return loop_->over;
}

}  // namespace freshet::group
