// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <zmq.hpp>

#include "core/base/format.h"
#include "core/base/mutex.h"
#include "examples/live_run/journal.h"
#include "examples/live_run/loops/loop_tools.h"
#include "examples/live_run/role.h"
#include "examples/live_run/roles/scorer.h"

namespace freshet::live {
namespace {

using nlohmann::json;

constexpr std::size_t kRequestsPerWakeup = 64;
constexpr std::size_t kUpdatesWaitingMax = 4096;
constexpr std::uint64_t kTornEvery = 8;  ///< With --make-torn-read.
constexpr long kPollMs = 20;

double us(Duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

std::string record_text_of(const Manifest& manifest) {
  for (const auto& [key, value] : manifest.tags) {
    if (key == kRecordTag) return value;
  }
  return {};
}

/// Swaps that happened on the subscriber's thread, waiting to be reported by the server's own.
class Updates {
 public:
  void add(const Update& update) {
    MutexLock lock(mutex_);
    if (waiting_.size() < kUpdatesWaitingMax) waiting_.push_back(update);
  }
  std::vector<Update> take() {
    MutexLock lock(mutex_);
    return std::exchange(waiting_, {});
  }

 private:
  Mutex mutex_;
  std::vector<Update> waiting_ FRESHET_GUARDED_BY(mutex_);
};

class Server {
 public:
  Server(Layout layout, const RunConfig& config, const RoleOptions& role)
      : layout_(std::move(layout)), scorer_(layout_), config_(config), role_(role) {}

  Status run();

 private:
  bool answer_next(zmq::socket_t& socket);
  std::string answer(const ScoreRequest& request);
  Status score(const ScoreRequest& request, const Snapshot& snapshot, ScoreAnswer& out);
  void report_progress();

  const Layout layout_;
  Scorer scorer_;
  const RunConfig& config_;
  const RoleOptions& role_;
  Updates updates_;
  std::unique_ptr<Subscriber> subscriber_;
  std::shared_ptr<const Architecture> checked_;  ///< Known to be of our shape.
  Snapshot current_;                             ///< Kept, with the one before, only to make a torn read.
  Snapshot previous_;
  bool joining_ = true;  ///< The first version that a server gets is as old as it happens to be.
  std::uint64_t answers_ = 0;
  std::uint64_t refused_ = 0;
  std::vector<double> stalls_us_;
};

Status Server::run() {
  SubscriberOptions options = subscriber_options(config_, "server");
  options.label = format("server-{}", role_.index);
  options.on_update = [this](const Update& update) { updates_.add(update); };
  FRESHET_ASSIGN(subscriber_, Subscriber::open(std::move(options)));
  zmq::context_t context(1);
  zmq::socket_t socket(context, zmq::socket_type::router);
  socket.set(zmq::sockopt::linger, 0);
  socket.bind(server_address(role_.run_folder, role_.index));
  Every report_due(std::chrono::milliseconds(100));
  while (!stop_requested()) {
    zmq_pollitem_t item = {socket.handle(), 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, kPollMs);  // A signal ends it early, and so it may.
    for (std::size_t i = 0; i < kRequestsPerWakeup && answer_next(socket); ++i) {
    }
    if (report_due.due(system_clock().now())) report_progress();
  }
  report_progress();
  return {};
}

/// False when no request is waiting. What is no request gets no answer.
bool Server::answer_next(zmq::socket_t& socket) {
  zmq::message_t peer;
  if (!socket.recv(peer, zmq::recv_flags::dontwait)) return false;
  zmq::message_t body;
  bool more = peer.more();
  while (more) {
    if (!socket.recv(body, zmq::recv_flags::dontwait)) return true;
    more = body.more();
  }
  const auto request = decode_request(body.to_string_view());
  if (!request) {
    ++refused_;
    return true;
  }
  const std::string reply = answer(*request);
  // A load process that is gone, or does not read, loses its answers; nobody waits for it.
  if (socket.send(peer, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
    static_cast<void>(socket.send(zmq::buffer(reply), zmq::send_flags::dontwait));
  }
  return true;
}

std::string Server::answer(const ScoreRequest& request) {
  const Time begin = system_clock().now();
  const Snapshot snapshot = subscriber_->snapshot();
  const Time pinned = system_clock().now();
  ScoreAnswer out{.id = request.id};
  if (!snapshot) return encode(out);
  stalls_us_.push_back(us(pinned - begin));
  const Status scored = score(request, snapshot, out);
  if (!scored) {
    ++refused_;
    report({{"event", "error"}, {"message", scored.error().message()}});
    return encode(ScoreAnswer{.id = request.id});
  }
  ++answers_;
  return encode(out);
}

Status Server::score(const ScoreRequest& request, const Snapshot& snapshot, ScoreAnswer& out) {
  const Manifest& manifest = snapshot.manifest();
  if (checked_ != manifest.architecture) {
    FRESHET_TRY(check_shape(layout_, *manifest.architecture));
    checked_ = manifest.architecture;
  }
  out.ready = true;
  out.version = snapshot.version();
  out.record = record_text_of(manifest);
  const Pinned pinned(snapshot);
  if (!config_.options.make_torn_read) return scorer_.score(request.window, pinned, pinned, out);

  if (!current_ || current_.version() != out.version) {
    previous_ = std::move(current_);
    current_ = subscriber_->snapshot();
  }
  const Pinned other(previous_ && request.id % kTornEvery == 0 ? previous_ : snapshot);
  return scorer_.score(request.window, pinned, other, out);
}

void Server::report_progress() {
  for (const Update& update : updates_.take()) {
    report({{"event", "update"},
            {"version", update.version},
            {"joined", std::exchange(joining_, false)},
            {"latency_ms", ms(update.latency)},
            {"notify_us", us(update.notify)},
            {"bytes", update.bytes_fetched}});
  }
  const SubscriberStatus status = subscriber_->status();
  report({{"event", "server"},
          {"answers", answers_},
          {"refused", refused_},
          {"version", status.serving},
          {"error", status.last_error},
          {"stalls_us", std::exchange(stalls_us_, {})}});
}

}  // namespace

Status run_server(const RunConfig& config, const RoleOptions& role) {
  FRESHET_ASSIGN(Layout layout, Layout::make({.model_bytes = config.options.model_bytes, .seed = config.options.seed}));
  return Server(std::move(layout), config, role).run();
}

}  // namespace freshet::live
