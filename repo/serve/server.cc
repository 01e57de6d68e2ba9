// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/deadline.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/wake.h"
#include "repo/serve/server/answers.h"
#include "repo/serve/server/workers.h"
#include "transport/zmq/authenticator.h"
#include "transport/zmq/listener.h"
#include "transport/zmq/rejects.h"
#include "transport/zmq/send_budget.h"
#include "transport/zmq/sockets.h"
#include "transport/zmq/this_host.h"

namespace freshet {
namespace rpc {
namespace {

constexpr int kMessagesPerRound = 256;
/// Replies that wait for one client in its socket. One that asks and does not read is put out.
constexpr int kRepliesMax = 128;
/// What a client may have on its way here and not taken yet: its largest message, and windows of several uploads; and
/// what all may, windows of many.
constexpr ArrivalLimits kArrivals{.connection_bytes = kMessageBytesMax + (std::uint64_t{128} << 20),
                                  .all_bytes = kMessageBytesMax + (std::uint64_t{512} << 20),
                                  .growth_bytes = std::uint64_t{192} << 20};
/// Answers that wait for clients. One that asks and does not read is put out; where all together have too many waiting,
/// the one with the most is. An honest client has up to 64 calls, of 4 MiB each, and reads while it asks.
constexpr SendBudget::Limits kAnswers{.peer_bytes = std::uint64_t{128} << 20, .all_bytes = std::uint64_t{192} << 20};
constexpr std::chrono::milliseconds kTick{1000};
constexpr std::size_t kReadersMax = 8;
/// So many puts wait for the medium together, and share its answer.
constexpr std::size_t kWriters = 16;
constexpr std::size_t kSlow = 2;
/// One for each key at a time. Without keys all clients are one user's.
constexpr std::size_t kVerifiers = 2;

Time now() { return system_clock().now(); }

class Server final : public RepositoryServer {
 public:
  struct Parts {
    zmq::context_t context;
    std::unique_ptr<Authenticator> authenticator;
    ZmqSocket socket;
    Wake wake;
    std::unique_ptr<BulkService> bulk;
  };
  /// Null: a standby.
  Server(ProviderRepository* repository, std::function<ServedOwner()> owner, const RepositoryServerOptions& options,
         Parts parts);
  ~Server() override;
  Status start(std::size_t readers);

  const std::string& address() const override { return address_; }
  void drain(Duration at_most, const std::stop_token& stop, Until until) override;
  void fall_silent() override {
    stopping_ = true;
    wake_.wake();
    if (thread_.joinable()) thread_.join();
  }
  Stat stat() const override {
    const ReadDesk::Stat desk = bulk_ == nullptr ? ReadDesk::Stat() : bulk_->stat();
    return {.clients = clients_,
            .calls = calls_,
            .upload_bytes = upload_bytes_,
            .leases = desk.leases,
            .channel_bytes = bulk_ == nullptr ? 0 : bulk_->bytes_sent(),
            .staged_bytes = desk.staged_bytes,
            .rejected = rejected_};
  }

 private:
  struct Worked {
    Ticket ticket = 0;
    Outcome outcome;
    bool is_progress = false;
  };

  void run();
  void take_messages();
  void take(const Peer& peer, const std::vector<zmq::message_t>& parts);
  void take_question(const Peer& peer, Question question, const std::vector<zmq::message_t>& parts);
  void take_results() FRESHET_EXCLUDES(mutex_);
  void carry_out();
  void carry_out(action::Welcome& welcome);
  void carry_out(action::Pong& pong);
  void carry_out(action::Run& run);
  void carry_out(action::Reply& reply);
  void carry_out(action::Refuse& refuse);
  void carry_out(action::Invite& invite);
  void carry_out(action::Credit& credit);
  void carry_out(action::Store& store);
  void carry_out(action::Drop& drop);
  void carry_out(action::EndSession& end);
  void send(const Peer& peer, Encoded message);
  /// Ends a client that does not read: its session here, and its connection where that is tcp.
  void put_out(const Peer& peer);
  Workers& workers_of(std::uint16_t verb);
  void post(Worked worked) FRESHET_EXCLUDES(mutex_);  ///< Any thread.

  ProviderRepository* const repository_;      ///< Null, and then there is no bulk_ either: a standby.
  const std::function<ServedOwner()> owner_;  ///< Of a standby.
  const Standing standing_;
  const std::string address_;
  const std::string host_ = this_host();
  const Wake wake_;
  RecordCache records_;
  const std::unique_ptr<BulkService> bulk_;

  // The loop thread's. The socket ends before the authenticator does, and that before the context.
  zmq::context_t context_;
  const std::unique_ptr<Authenticator> authenticator_;  ///< Null without keys.
  ZmqSocket socket_;
  std::unique_ptr<Listener> listener_;  ///< Of a socket that is tcp.
  ServerMachine machine_;
  std::vector<Peer> gone_;  ///< Found out while sending.
  SendBudget answers_{kAnswers};
  std::map<Peer, int> connections_;  ///< Of a socket that is tcp: by which descriptor a client speaks.
  Rejects rejects_{"repository server"};

  std::atomic<std::size_t> clients_{0};
  std::atomic<std::size_t> calls_{0};
  std::atomic<std::uint64_t> upload_bytes_{0};
  std::atomic<std::uint64_t> rejected_{0};

  Mutex mutex_;
  std::vector<Worked> results_ FRESHET_GUARDED_BY(mutex_);
  CondVar emptied_;
  bool is_empty_ FRESHET_GUARDED_BY(mutex_) = false;  ///< While it drains: nobody is there, or calls, or can.
  std::atomic<bool> draining_{false};
  std::atomic<LateCalls> late_calls_{LateCalls::begin};  ///< Once it drains.
  std::atomic<bool> stopping_{false};
  Workers readers_;
  Workers writers_;
  Workers slow_;
  Workers verifiers_;
  std::thread thread_;
};

Server::Server(ProviderRepository* repository, std::function<ServedOwner()> owner,
               const RepositoryServerOptions& options, Parts parts)
    : repository_(repository),
      owner_(std::move(owner)),
      standing_(repository == nullptr ? Standing::standby
                : options.moves       ? Standing::moves
                                      : Standing::stays),
      address_(parts.socket.address.from_this_host()),
      wake_(std::move(parts.wake)),
      bulk_(std::move(parts.bulk)),
      context_(std::move(parts.context)),
      authenticator_(std::move(parts.authenticator)),
      socket_(std::move(parts.socket)),
      machine_({.clients_max = options.clients_max, .upload_bytes_max = options.upload_bytes_max},
               random_u64(system_env())) {
  if (socket_.monitor) {
    listener_ = std::make_unique<Listener>(
        socket_, neighbours_admitted(options.security, authenticator_ != nullptr), kArrivals, [this](int descriptor) {
          std::erase_if(connections_, [descriptor](const auto& entry) { return entry.second == descriptor; });
        });
  }
}

Server::~Server() {
  readers_.stop();
  writers_.stop();
  slow_.stop();
  verifiers_.stop();
  fall_silent();
}

Status Server::start(std::size_t readers) {
  if (readers == 0) readers = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 2, kReadersMax);
  FRESHET_TRY(readers_.start(readers));
  FRESHET_TRY(writers_.start(kWriters));
  FRESHET_TRY(slow_.start(kSlow));
  FRESHET_TRY(verifiers_.start(kVerifiers, /*of_one_owner=*/authenticator_ != nullptr ? 1 : 0));
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a server's thread: {}", error.what()));
  }
  return {};
}

void Server::drain(Duration at_most, const std::stop_token& stop, Until until) {
  const Time deadline = deadline_in(at_most);
  late_calls_ = until == Until::calls_ended ? LateCalls::wait : LateCalls::begin;
  draining_ = true;
  wake_.wake();
  const StopWakes wakes(stop, mutex_, emptied_);
  const MutexLock lock(mutex_);
  while (!is_empty_ && !stop.stop_requested() && emptied_.wait_until(mutex_, deadline)) {
  }
  if (late_calls_ == LateCalls::wait && !is_empty_)
    late_calls_ = LateCalls::lose;  // The running one may hang for long.
}

void Server::run() {
  std::vector<zmq::pollitem_t> items = {{socket_.socket.handle(), 0, ZMQ_POLLIN, 0},
                                        {nullptr, wake_.descriptor(), ZMQ_POLLIN, 0}};
  if (listener_) listener_->watch(items);
  Time ticked = now();
  while (!stopping_) {
    poll(items, kTick);
    wake_.acknowledge();
    // First: a message's descriptor is one that the listener has heard of.
    if (listener_) listener_->tend(now(), authenticator_.get());
    take_results();
    take_messages();
    if (now() - ticked >= kTick) {
      ticked = now();
      machine_.on_tick(ticked);
      if (repository_ != nullptr) {
        bulk_->on_tick(ticked);
        writers_.post([this] { repository_->drop_ended_puts(); });
      }
    }
    carry_out();
    clients_ = machine_.sessions();
    if (draining_) {
      machine_.close_door(late_calls_);
      const MutexLock lock(mutex_);
      is_empty_ = (late_calls_ == LateCalls::begin ? machine_.sessions() : machine_.calls()) == 0;
      emptied_.notify_all();
    }
    calls_ = machine_.calls();
    upload_bytes_ = machine_.upload_bytes();
    rejected_ = rejects_.total();
  }
  take_results();
  carry_out();
}

void Server::take_messages() {
  for (int i = 0; i < kMessagesPerRound; ++i) {
    const auto parts = receive(socket_.socket, 3, listener_.get());
    if (!parts) {
      if (listener_) listener_->on_drained();
      return;
    }
    if (parts->size() < 2) {
      rejects_.count("a message is not in two or three parts", now());
      continue;
    }
    const Peer peer = parts->front().to_string();
    if (!is_admitted((*parts)[1], authenticator_.get(), listener_.get())) {
      if (authenticator_ == nullptr) continue;  // Another user of this host; the listener has told.
      rejects_.count(format("a client's key is not on the allow-list any more: {}", sender_key((*parts)[1])), now());
      machine_.on_bye(peer);
      continue;
    }
    if (listener_) connections_[peer] = sender_descriptor((*parts)[1]);
    take(peer, *parts);
  }
  // What is left is looked at in the next round, which begins at once.
  wake_.wake();
}

void Server::take(const Peer& peer, const std::vector<zmq::message_t>& parts) {
  auto request = Received<wire::Request>::open(bytes_of(parts[1]));
  const bool has_data = request && request->verb() == kVerb<Chunk>;
  if (!request || has_data != (parts.size() == 3)) {
    rejects_.count(request ? "a message with a part too many" : request.error().message(), now());
    return machine_.on_broken(peer, "a message that is not of this protocol");
  }
  take_question(peer, std::make_shared<const Received<wire::Request>>(std::move(*request)), parts);
}

void Server::take_question(const Peer& peer, Question question, const std::vector<zmq::message_t>& parts) {
  const Received<wire::Request>& said = *question;
  const std::uint64_t number = said->request();
  const Time at = now();
  if (const wire::Hello* const hello = said->body_as_Hello()) {
    return machine_.on_hello(peer, number, hello->protocol(), at, sender_key(parts[1]));
  }
  if (said.said() == nullptr) return machine_.on_broken(peer, "a message without a body");
  if (said.verb() == kVerb<Ping>) return machine_.on_ping(peer, at);
  if (said.verb() == kVerb<Bye>) return machine_.on_bye(peer);
  if (const auto chunk = step_in<Chunk>(said)) {
    return machine_.on_chunk(peer, chunk->upload, chunk->offset, bytes_of(parts[2]), at);
  }
  if (const auto abandon = step_in<Abandon>(said)) return machine_.on_abandon(peer, abandon->upload, at);
  if (repository_ == nullptr) return machine_.on_refused(peer, number, standby_error(owner_()), at);
  const Terms terms = terms_of(said.verb());
  if (authenticator_ != nullptr && !authenticator_->may(terms.right, sender_key(parts[1]))) {
    return machine_.on_refused(peer, number, lacking(terms), at);
  }
  if (said.bytes() > terms.bytes_max()) {
    return machine_.on_refused(peer, number,
                               Error(Code::invalid_argument, format("{}: the question has {} bytes, more than {}",
                                                                    terms.verb, said.bytes(), terms.bytes_max())),
                               at);
  }
  machine_.on_call(peer, number, std::move(question), at);
}

void Server::post(Worked worked) {
  {
    const MutexLock lock(mutex_);
    results_.push_back(std::move(worked));
  }
  wake_.wake();
}

void Server::take_results() {
  std::vector<Worked> results;
  {
    const MutexLock lock(mutex_);
    results.swap(results_);
  }
  for (Worked& result : results) {
    if (result.outcome.upload != nullptr) {
      machine_.on_planned(result.ticket, std::move(result.outcome.upload), now());
    } else if (result.is_progress) {
      machine_.on_progress(result.ticket, std::move(result.outcome.reply));
    } else {
      machine_.on_answered(result.ticket, std::move(result.outcome.reply), now());
    }
  }
}

void Server::carry_out() {
  for (auto actions = machine_.take_actions(); !actions.empty(); actions = machine_.take_actions()) {
    for (ServerAction& next : actions) {
      std::visit([this](auto& one) { carry_out(one); }, next);
    }
    for (const Peer& peer : std::exchange(gone_, {})) machine_.on_bye(peer);
  }
}

void Server::carry_out(action::Welcome& welcome) {
  if (bulk_ != nullptr) bulk_->begin_session(welcome.session, authenticator_ ? std::string_view(welcome.owner) : "");
  send(welcome.peer, reply(welcome.request, Welcome{.protocol = kProtocolVersion,
                                                    .session = welcome.session,
                                                    .host = host_,
                                                    .standing = standing_,
                                                    .owner = owner_ ? owner_() : ServedOwner()}));
}

void Server::carry_out(action::Pong& pong) { send(pong.peer, reply(0, Pong{.running = std::move(pong.running)})); }

Workers& Server::workers_of(std::uint16_t verb) {
  switch (terms_of(verb).queue) {
    case WorkQueue::write: return writers_;
    case WorkQueue::slow: return slow_;
    case WorkQueue::verify: return verifiers_;
    default: return readers_;
  }
}

void Server::carry_out(action::Run& run) {
  workers_of(run.question->verb())
      .post(
          [this, ticket = run.ticket, session = run.session,
           owner = authenticator_ != nullptr ? run.owner : std::string(),
           question = std::move(run.question)]() mutable {
            const Answering with{
                .repository = *repository_,
                .records = records_,
                .bulk = *bulk_,
                .session = session,
                .owner = std::move(owner),
                .progress = [&](Encoded progress) {
                  post({.ticket = ticket, .outcome = {.reply = std::move(progress)}, .is_progress = true});
                }};
            Outcome outcome = answer(with, *question);
            question.reset();  // From here on it does not count.
            post({.ticket = ticket, .outcome = std::move(outcome)});
          },
          run.ticket, run.owner);
}

void Server::carry_out(action::Store& store_action) {
  writers_.post(
      [this, ticket = store_action.ticket, request = store_action.request,
       upload = std::move(store_action.upload)]() mutable {
        Outcome outcome = store(*repository_, request, *upload);
        upload.reset();
        post({.ticket = ticket, .outcome = std::move(outcome)});
      },
      store_action.ticket, store_action.owner);
}

void Server::carry_out(action::Drop& drop) {
  for (Workers* const workers : {&readers_, &writers_, &slow_, &verifiers_}) {
    if (workers->drop(drop.ticket)) return machine_.on_dropped(drop.ticket, now());
  }
}

void Server::carry_out(action::EndSession& end) {
  if (bulk_ != nullptr) bulk_->end_session(end.session);
}

void Server::carry_out(action::Reply& reply_action) { send(reply_action.peer, std::move(reply_action.message)); }

void Server::carry_out(action::Refuse& refuse) { send(refuse.peer, failure(refuse.request, refuse.error)); }

void Server::carry_out(action::Invite& invite) {
  Invitation invitation{.upload = invite.request, .tensors = {}, .window = ServerLimits().window_bytes};
  for (const Upload::Part& part : invite.upload->parts()) invitation.tensors.push_back(part.tensor);
  send(invite.peer, reply(invite.request, invitation));
}

void Server::carry_out(action::Credit& credit) {
  send(credit.peer, reply(credit.request, Credit{.upload = credit.request, .bytes = credit.bytes}));
}

void Server::send(const Peer& peer, Encoded message) {
  const auto held = std::make_shared<const Encoded>(std::move(message));
  const Bytes body(reinterpret_cast<const std::byte*>(held->data()), held->size());
  switch (answers_.send(socket_.socket, peer, held, body)) {
    case SendBudget::Sent::yes: return;
    case SendBudget::Sent::no_peer: return gone_.push_back(peer);
    // An answer that is not sent would be waited for, so a client without one loses its connection.
    case SendBudget::Sent::no_room: return put_out(peer);
    case SendBudget::Sent::crowded: put_out(answers_.largest()); return put_out(peer);
  }
}

void Server::put_out(const Peer& peer) {
  gone_.push_back(peer);
  const auto connection = connections_.find(peer);
  const bool is_tcp = connection != connections_.end();
  rejects_.count(format("{} is disconnected: it does not read its answers",
                        is_tcp ? listener_->name_of(connection->second) : "a client of this user"),
                 now());
  if (is_tcp) listener_->put_out(connection->second);
}

}  // namespace
}  // namespace rpc

namespace {

Result<std::unique_ptr<RepositoryServer>> open_server(ProviderRepository* repository,
                                                      std::function<ServedOwner()> owner,
                                                      RepositoryServerOptions options) {
  FRESHET_ASSIGN(const std::optional<ServerCredentials> credentials, server_credentials(options.security));
  const ServerCredentials* const proof = credentials ? &*credentials : nullptr;
  FRESHET_ASSIGN(SocketAddress address,
                 SocketAddress::parse(options.address, true, proof != nullptr ? Reach::any_host : Reach::this_host));
  if (options.clients_max == 0)
    return fail(Code::invalid_argument, "clients_max is 0: a repository's server needs one client at least");
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  std::unique_ptr<Authenticator> authenticator;
  if (proof != nullptr) {
    FRESHET_ASSIGN(authenticator, Authenticator::open(context, proof->allow_file));
  }
  FRESHET_ASSIGN(ZmqSocket socket,
                 bind_data(context, std::move(address), proof,
                           {.message_bytes_max = rpc::kMessageBytesMax, .sent_max = rpc::kRepliesMax}));
  FRESHET_ASSIGN(Wake wake, Wake::open());
  std::unique_ptr<rpc::BulkService> bulk;
  if (repository != nullptr) {
    rpc::BulkService::Options bulk_options{
        .channels = options.channels,
        .address = socket.address.text(),
        .trusted_fabric = options.security.trusted_fabric,
        .neighbours = neighbours_admitted(options.security, proof != nullptr),
        .credentials = credentials,
        .limits = {.staging_bytes = options.staging_bytes, .lifetime = options.lease}};
    FRESHET_ASSIGN(bulk, rpc::BulkService::open(*repository, std::move(bulk_options)));
  }
  auto server = std::make_unique<rpc::Server>(repository, std::move(owner), options,
                                              rpc::Server::Parts{.context = std::move(context),
                                                                 .authenticator = std::move(authenticator),
                                                                 .socket = std::move(socket),
                                                                 .wake = std::move(wake),
                                                                 .bulk = std::move(bulk)});
  FRESHET_TRY(server->start(options.readers));
  return server;
}

}  // namespace

Result<std::unique_ptr<RepositoryServer>> RepositoryServer::open(ProviderRepository& repository,
                                                                 RepositoryServerOptions options) {
  return open_server(&repository, {}, std::move(options));
}

Result<std::unique_ptr<RepositoryServer>> RepositoryServer::stand_by(std::function<ServedOwner()> owner,
                                                                     RepositoryServerOptions options) {
  return open_server(nullptr, std::move(owner), std::move(options));
}

}  // namespace freshet
