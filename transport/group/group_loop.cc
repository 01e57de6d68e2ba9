// SPDX-License-Identifier: Apache-2.0
#include "transport/group/group_loop.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::group {
namespace {

constexpr int kGroupMessagesPerRound = 256;
/// How long what was said last may take to leave when the meeting is over.
constexpr int kLastWordsMs = 400;
constexpr Duration kLeavePatience = std::chrono::seconds(3);
constexpr Duration kLostPatience = std::chrono::milliseconds(600);
constexpr ArrivalLimits kGroupArrivals{.connection_bytes = 2 * kMessageBytesMax, .all_bytes = 8 * kMessageBytesMax};

}  // namespace

Group::Loop::Loop(const GroupOptions& options, GroupHandlers given, Parts parts)
    : rank(options.rank),
      ranks(options.ranks),
      handlers(std::move(given)),
      wake(std::move(parts.wake)),
      context(std::move(parts.context)),
      authenticator(std::move(parts.authenticator)),
      ways(context, {.meet = std::move(parts.meet),
                     .keys = parts.keys,
                     .hub_key = std::move(parts.hub_key),
                     .neighbours = neighbours_admitted(options.security, parts.keys.has_value())}),
      machine({.rank = options.rank,
               .ranks = options.ranks,
               .claims = options.claims,
               .peer = {.address = parts.socket ? parts.socket->address.text() : "",
                        .key = parts.keys ? parts.keys->public_key().text() : "",
                        .host = options.host}},
              options.times, system_clock().now()),
      answerer(rank, handlers.on_ask, wake) {
  if (parts.socket) {
    socket.emplace(std::move(*parts.socket));
    listener.emplace(*socket, neighbours_admitted(options.security, parts.keys.has_value()), kGroupArrivals,
                     [this](int descriptor) { ended_descriptors.push_back(descriptor); });
  }
}

void Group::Loop::start() {
  thread = std::thread([this] { run(); });
  answerer.start();
}

Group::Loop::~Loop() { stop(); }

void Group::Loop::stop() {
  {
    const MutexLock lock(mutex);
    stopping = true;
    if (!over) over = Error(Code::cancelled, "the meeting was left");
    changed.notify_all();
  }
  answerer.stop();
  wake.wake();
  fail_questions({}, Error(Code::cancelled, "the meeting was left"));
  if (thread.joinable()) thread.join();
  answerer.join();
}

std::vector<zmq::pollitem_t> Group::Loop::poll_items() {
  std::vector<zmq::pollitem_t> items = {{nullptr, wake.descriptor(), ZMQ_POLLIN, 0}};
  if (socket) {
    items.push_back({socket->socket.handle(), 0, ZMQ_POLLIN, 0});
    listener->watch(items);
  }
  for (auto& [to, way] : ways.all()) {
    items.push_back({way.socket.socket.handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({way.socket.monitor->handle(), 0, ZMQ_POLLIN, 0});
  }
  return items;
}

/// Rank 0 goes last. Where it closed a connection by which something comes, the kernel would break that off, and what
/// it said last would be lost at the other end.
bool Group::Loop::is_to_end() {
  {
    const MutexLock lock(mutex);
    if (!stopping) return false;
  }
  const Time now = system_clock().now();
  if (!ends_at) ends_at = now + (machine.is_leaving() ? kLeavePatience : kLostPatience);
  return visitors.empty() || now >= *ends_at;
}

void Group::Loop::run() {
  for (;;) {
    if (is_to_end()) break;
    std::vector<zmq::pollitem_t> items = poll_items();
    const Duration left = std::max(machine.next_tick() - system_clock().now(), Duration::zero());
    constexpr Duration kRoundMax = std::chrono::milliseconds(100);
    poll(items,
         std::chrono::ceil<std::chrono::milliseconds>(machine.is_over() ? kRoundMax : std::min(left, kRoundMax)));
    wake.acknowledge();
    if (listener) listener->tend(system_clock().now());
    take_visitors();
    std::vector<Rank> there;
    for (const auto& [to, way] : ways.all()) there.push_back(to);
    for (const Rank to : there) {
      take_answers(to, ways.all().at(to));
      take_events(to);
    }
    forget_ended();
    tasks.run();
    if (socket) answerer.send_answers(*socket, rejects);
    carry_out(machine.on_tick(system_clock().now()));
  }
  // What was said last may still leave.
  try {
    if (socket) socket->socket.set(zmq::sockopt::linger, kLastWordsMs);
    for (auto& [to, way] : ways.all()) way.socket.socket.set(zmq::sockopt::linger, kLastWordsMs);
  } catch (const zmq::error_t&) {
  }
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

void Group::Loop::send_to(Rank to, const Message& message) {
  if (rank == 0) {
    const auto at = visitors.find(to);
    if (at != visitors.end()) send_to_visitor(at->second.identity, message);
    return;
  }
  Ways::Way* const way = ways.to_hub(machine.peers(), system_clock().now());
  if (way != nullptr) send(way->socket.socket, "", encode(message));
}

void Group::Loop::send_to_visitor(const std::string& identity, const Message& message) {
  // One that is gone does not get it, and the listener will say so.
  send(socket->socket, identity, encode(message));
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
                         message ? "it claims an impossible rank" : message.error().message()),
                  now);
    return listener->put_out(descriptor);
  }
  const std::string identity = parts[0].to_string();
  const Rank from = message->from;
  if (message->kind == Kind::ask) return answerer.put(identity, *std::move(message));
  if (rank != 0) return;
  const auto known = visitors.find(from);
  if (message->kind == Kind::hello && known != visitors.end() && known->second.identity != identity) {
    const bool is_there = std::ranges::find(ended_descriptors, known->second.descriptor) == ended_descriptors.end();
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

void Group::Loop::take_answers(Rank from, Ways::Way& way) {
  for (int i = 0; i < kGroupMessagesPerRound; ++i) {
    auto parts = receive(way.socket, 2);
    if (!parts) return;
    if (parts->empty()) continue;
    auto message = decode(freshet::bytes_of(parts->front()));
    if (!message || message->from != from) {
      rejects.count("a message of rank 0 or a peer does not belong to this protocol", system_clock().now());
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
  Ways::Way& way = ways.all().at(to);
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
  ways.close(to, system_clock().now());
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

}  // namespace freshet::group
