// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <zmq.hpp>

#include "core/base/format.h"
#include "examples/live_run/loops/loop_tools.h"
#include "examples/live_run/model/corpus.h"
#include "examples/live_run/role.h"
#include "examples/live_run/roles/checker.h"
#include "examples/live_run/roles/load_plan.h"

namespace freshet::live {
namespace {

constexpr std::size_t kScoredBytes = 8;  ///< Held-out bytes that a request asks for.
constexpr Duration kRecordWait = std::chrono::seconds(5);
constexpr Duration kReadyPatience = std::chrono::seconds(2);
constexpr std::size_t kUncheckedMax = 100'000;
constexpr std::size_t kReasonsToldMax = 10;
constexpr std::uint64_t kProbeId = 0;  ///< Real requests count from 1.

/// Compares every answer with the journal; those whose record is not readable yet wait a little.
class AnswerChecks {
 public:
  AnswerChecks(const Layout& layout, const std::string& run_folder) : checker_(layout), journal_(run_folder) {}

  void add(ScoreAnswer answer, Time now) {
    const auto finding = checker_.check(answer);
    if (finding.verdict != Checker::Verdict::unknown) return note(finding);
    if (waiting_.size() >= kUncheckedMax) return note({Checker::Verdict::torn, "too many answers without a record"});
    waiting_.push_back({std::move(answer), now + kRecordWait});
  }

  Status read_journal(Time now) {
    Status added;
    FRESHET_TRY(journal_.poll([&](const JournalRecord& record) {
      if (added) added = checker_.add(record);
    }));
    FRESHET_TRY(std::move(added));
    for (std::size_t i = waiting_.size(); i > 0; --i) {
      Waiting waiting = std::move(waiting_.front());
      waiting_.pop_front();
      auto finding = checker_.check(waiting.answer);
      if (finding.verdict == Checker::Verdict::unknown && now < waiting.until) {
        waiting_.push_back(std::move(waiting));
        continue;
      }
      if (finding.verdict == Checker::Verdict::unknown) {
        finding = {Checker::Verdict::torn, format("version {}: the trainer never wrote record {} down",
                                                  waiting.answer.version, waiting.answer.record)};
      }
      note(finding);
    }
    return {};
  }

  bool idle() const { return waiting_.empty(); }
  std::uint64_t checked() const { return checked_; }
  std::uint64_t torn() const { return torn_; }

 private:
  void note(const Checker::Finding& finding) {
    ++checked_;
    if (finding.verdict == Checker::Verdict::whole) return;
    if (++torn_ <= kReasonsToldMax) report({{"event", "torn"}, {"reason", finding.reason}});
  }

  struct Waiting {
    ScoreAnswer answer;
    Time until;
  };
  Checker checker_;
  JournalReader journal_;
  std::deque<Waiting> waiting_;
  std::uint64_t checked_ = 0;
  std::uint64_t torn_ = 0;
};

class Load {
 public:
  Load(const Layout& layout, const RunConfig& config, const RoleOptions& role, Text held_out)
      : layout_(layout),
        config_(config),
        role_(role),
        held_out_(std::move(held_out)),
        checks_(layout, role.run_folder) {}

  Status run();

 private:
  void connect();
  bool wait_until_ready();
  Status tick(LoadPlan& plan, Every& journal_due);
  bool send(const LoadPlan::Send& send);
  void receive(LoadPlan* plan);
  void on_answer(LoadPlan& plan, std::uint32_t server, ScoreAnswer answer);
  void wait(Time until);
  Text window_of(std::uint64_t id) const;
  void report_progress();

  const Layout& layout_;
  const RunConfig& config_;
  const RoleOptions& role_;
  const Text held_out_;
  AnswerChecks checks_;
  zmq::context_t context_{1};
  std::vector<zmq::socket_t> sockets_;  ///< One for each server.
  std::set<std::uint32_t> ready_;

  std::uint64_t answered_ = 0;
  std::uint64_t failed_ = 0;
  double loss_sum_ = 0;
  std::uint64_t loss_count_ = 0;
  std::set<std::uint64_t> versions_;  ///< That answered since the last report.
  std::vector<double> latencies_ms_;
};

Status Load::run() {
  connect();
  if (!wait_until_ready()) return {};
  report({{"event", "ready"}});
  const Duration deadline = std::chrono::milliseconds(config_.options.deadline_ms);
  LoadPlan plan({.rate = config_.options.rate,
                 .servers = config_.options.servers,
                 .deadline = deadline,
                 .hedge_after = std::min<Duration>(deadline / 8, std::chrono::milliseconds(250))},
                system_clock().now());
  Every journal_due(std::chrono::milliseconds(50));
  Every report_due(std::chrono::milliseconds(100));
  while (!(stop_requested() && plan.idle() && checks_.idle())) {
    if (stop_requested()) plan.stop_arrivals();
    FRESHET_TRY(tick(plan, journal_due));
    if (report_due.due(system_clock().now())) report_progress();
    wait(plan.next_event(system_clock().now()));
  }
  report_progress();
  return {};
}

void Load::connect() {
  for (std::uint32_t server = 0; server < config_.options.servers; ++server) {
    zmq::socket_t& socket = sockets_.emplace_back(context_, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::immediate, 1);  // Nothing queues for a server that is not there.
    socket.set(zmq::sockopt::reconnect_ivl, 20);
    socket.connect(server_address(role_.run_folder, server));
  }
}

/// Until every server has a version; a load that came again after a crash starts with one, and the rest will come.
bool Load::wait_until_ready() {
  const Time patience = system_clock().now() + kReadyPatience;
  Every probe_due(std::chrono::milliseconds(50));
  while (!stop_requested()) {
    const Time now = system_clock().now();
    const bool enough = role_.life > 1 && now > patience && !ready_.empty();
    if (ready_.size() == sockets_.size() || enough) return true;
    if (probe_due.due(now)) {
      for (std::uint32_t server = 0; server < sockets_.size(); ++server) send({.id = kProbeId, .server = server});
    }
    wait(now + std::chrono::milliseconds(20));
    receive(nullptr);
  }
  return false;
}

Status Load::tick(LoadPlan& plan, Every& journal_due) {
  receive(&plan);
  const Time now = system_clock().now();
  failed_ += plan.expire(now);
  // As many tries as there are servers: one that cannot be sent to hands over to the next, and the rest waits a moment.
  std::size_t refused = 0;
  while (refused < sockets_.size()) {
    const auto next = plan.next_send(now);
    if (!next) break;
    if (send(*next)) continue;
    plan.on_unsendable(*next, now);
    ++refused;
  }
  if (journal_due.due(now)) FRESHET_TRY(checks_.read_journal(now));
  return {};
}

bool Load::send(const LoadPlan::Send& send) {
  const std::string text = encode(ScoreRequest{.id = send.id, .window = window_of(send.id)});
  return sockets_[send.server].send(zmq::buffer(text), zmq::send_flags::dontwait).has_value();
}

/// The server answers what it was asked; what is not an answer is dropped, and its request is answered by another.
void Load::receive(LoadPlan* plan) {
  for (std::uint32_t server = 0; server < sockets_.size(); ++server) {
    zmq::message_t message;
    while (sockets_[server].recv(message, zmq::recv_flags::dontwait)) {
      auto answer = decode_answer(message.to_string_view());
      if (!answer) {
        report({{"event", "error"}, {"message", answer.error().message()}});
        continue;
      }
      if (answer->ready) ready_.insert(server);
      if (plan != nullptr) on_answer(*plan, server, std::move(*answer));
    }
  }
}

void Load::on_answer(LoadPlan& plan, std::uint32_t server, ScoreAnswer answer) {
  const Time now = system_clock().now();
  const LoadPlan::Send from{.id = answer.id, .server = server};
  if (!answer.ready) return plan.on_not_ready(from, now);
  if (const auto latency = plan.on_answer(from, now)) {
    ++answered_;
    loss_sum_ += answer.loss;
    ++loss_count_;
    versions_.insert(answer.version);
    latencies_ms_.push_back(std::chrono::duration<double, std::milli>(*latency).count());
  }
  checks_.add(std::move(answer), now);  // Also the second answer to a request: what a server saw, it saw.
}

void Load::wait(Time until) {
  std::vector<zmq_pollitem_t> items;
  for (zmq::socket_t& socket : sockets_) items.push_back({socket.handle(), 0, ZMQ_POLLIN, 0});
  const Duration left = std::max<Duration>(until - system_clock().now(), Duration::zero());
  const auto left_ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(left_ms));
}

/// The same for every time that a request is sent.
Text Load::window_of(std::uint64_t id) const {
  std::mt19937_64 random((config_.options.seed * 31 + role_.life) * 0x9E3779B97F4A7C15ULL + id);
  const std::size_t bytes = layout_.orders() + kScoredBytes;
  const std::size_t begin = std::uniform_int_distribution<std::size_t>(0, held_out_.size() - bytes)(random);
  const auto first = held_out_.begin() + static_cast<std::ptrdiff_t>(begin);
  return Text(first, first + static_cast<std::ptrdiff_t>(bytes));
}

void Load::report_progress() {
  report({{"event", "load"},
          {"requests", answered_ + failed_},
          {"failed", failed_},
          {"torn", checks_.torn()},
          {"checked", checks_.checked()},
          {"loss_sum", std::exchange(loss_sum_, 0)},
          {"loss_count", std::exchange(loss_count_, 0)},
          {"versions", std::exchange(versions_, {})},
          {"latencies_ms", std::exchange(latencies_ms_, {})}});
}

}  // namespace

Status run_load(const RunConfig& config, const RoleOptions& role) {
  FRESHET_ASSIGN(const Layout layout,
                 Layout::make({.model_bytes = config.options.model_bytes, .seed = config.options.seed}));
  FRESHET_ASSIGN(Corpus corpus, read_corpus(config.options.text));
  return Load(layout, config, role, std::move(corpus.held_out)).run();
}

}  // namespace freshet::live
