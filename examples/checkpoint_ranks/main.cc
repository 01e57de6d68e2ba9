// SPDX-License-Identifier: Apache-2.0
/// One process is one rank of a job: it trains (tensors whose bytes follow from name and step), checkpoints each tensor
/// when it is written, and goes on from the newest checkpoint when it is started again, with as many ranks or with
/// others. See `checkpoint_ranks --help`.

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "bindings/runtime/checkpoint_place.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "core/json/json_document.h"
#include "core/safetensors/safetensors.h"
#include "examples/checkpoint_ranks/options.h"
#include "examples/checkpoint_ranks/state.h"
#include "repo/levels/checkpointer.h"

namespace freshet::ranks {
namespace {

constexpr int kFailed = 1;
constexpr int kLost = 5;

int exit_code_of(const Error& error) {
  switch (error.code()) {
    case Code::invalid_argument:
    case Code::unsupported: return 2;
    case Code::not_found: return 3;
    case Code::corrupt: return 4;
    case Code::unavailable:
    case Code::timed_out: return kLost;
    default: return kFailed;
  }
}

/// On stderr, as one write: ranks may share it.
void complain(const std::string& what) {
  const std::string line = format("checkpoint_ranks: {}\n", what);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

double ms_of(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

/// Lines on stdout, whole, in the order in which things happened.
class Lines {
 public:
  void print(const JsonDocument& line) {
    const MutexLock lock(mutex_);
    write(line);
  }
  /// Nothing else is printed between what `make` does and its line.
  template <typename Make>
  auto print_result_of(Make make) {
    const MutexLock lock(mutex_);
    return make([this](const JsonDocument& line) { write(line); });
  }

 private:
  void write(const JsonDocument& line) {
    std::cout << line.dump(-1, ' ', false, JsonDocument::error_handler_t::replace) << "\n" << std::flush;
  }
  Mutex mutex_;
};

/// One tensor of this rank.
struct Held {
  const StateTensor* tensor = nullptr;
  std::string name;  ///< In a version.
  Piece piece;
  Shape shape;
  std::vector<std::byte> bytes;
};

class Rank {
 public:
  Rank(Options options, State state) : options_(std::move(options)), state_(std::move(state)) {}
  int run();

 private:
  Status start();
  Status dump() const;
  Status train();
  Status rest();
  void lay_out();
  void write_tensor(Held& held, std::uint64_t written) const {
    fill(state_.seed, held.name, written, held.piece, held.bytes);
  }
  void on_event(const CheckpointEvent& event);
  int end_with(const Error& error) const;

  const Options options_;
  const State state_;
  std::vector<Held> held_;
  Lines lines_;
  std::uint64_t step_ = 0;
  VersionNumber last_ = 0;
  std::atomic<bool> lost_{false};
  Mutex mutex_;
  std::map<VersionNumber, bool> failed_ FRESHET_GUARDED_BY(mutex_);  ///< At any level.
  std::unique_ptr<Checkpointer> checkpointer_;
};

void Rank::lay_out() {
  for (const StateTensor& tensor : state_.tensors) {
    Held& held = held_.emplace_back();
    held.tensor = &tensor;
    LaidTensor laid = tensor.laid;
    held.name = laid.spec.name;
    if (laid.layout.cut == Cut::own) {
      held.name = own_name(laid.spec.name, options_.rank);
      laid.layout.argument = options_.rank;
    }
    held.piece = held_piece(laid, 0, options_.ranks, options_.rank);
    held.shape = held_shape(laid, options_.ranks, options_.rank);
    held.bytes.resize(held.piece.bytes());
    write_tensor(held, 0);
  }
}

void Rank::on_event(const CheckpointEvent& event) {
  if (event.kind == CheckpointEvent::Kind::lost) {
    lines_.print({{"event", "lost"}, {"rank", options_.rank}, {"peers", event.peers}});
    lost_ = true;
    return;
  }
  const bool reached = event.kind == CheckpointEvent::Kind::reached;
  JsonDocument line = {{"event", reached ? "reached" : "failed"},
                       {"rank", options_.rank},
                       {"version", event.version},
                       {"step", event.step},
                       {"level", levels::name_of(event.level)},
                       {"ms", ms_of(event.after)}};
  if (event.error) line["error"] = event.error->message();
  lines_.print(line);
  const MutexLock lock(mutex_);
  bool& failed = failed_[event.version];
  failed = failed || !reached;
}

Status Rank::start() {
  std::vector<LaidTensor> tensors;
  for (const StateTensor& tensor : state_.tensors) tensors.push_back(tensor.laid);
  FRESHET_TRY(check_layouts(tensors, options_.ranks));
  lay_out();
  Checkpointer::Options options{
      .model = options_.model,
      .rank = options_.rank,
      .ranks = options_.ranks,
      .meet = options_.meet,
      .job = options_.job,
      .host = options_.host,
      .local = options_.local,
      .group = options_.group,
      .when_behind = options_.when_behind,
      .keep = options_.keep,
      .limit_bytes_per_second = options_.limit_bytes_per_second,
      .patience = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options_.patience_s)),
      .lost_after = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options_.lost_after_s)),
      .alike = {{"steps", format("{}", options_.steps)}, {"every", format("{}", options_.every)}},
      .security = options_.security,
      .on_event = [this](const CheckpointEvent& event) { on_event(event); }};
  set_external(options, options_.external, options_.external_server_key);
  if (!options_.die_point.empty()) {
    options.at_point = [this](std::string_view point, std::uint64_t step) {
      if (point == options_.die_point && step == options_.die_step) ::raise(SIGKILL);
    };
  }
  FRESHET_ASSIGN(checkpointer_, Checkpointer::open(std::move(options), std::move(tensors)));
  std::vector<MutableBytes> memory;
  for (Held& held : held_) memory.emplace_back(held.bytes);
  FRESHET_ASSIGN(const auto restored, checkpointer_->restore(memory, options_.restore));
  if (restored) step_ = restored->step;
  FRESHET_TRY(dump());
  JsonDocument line = {{"event", "started"},
                       {"rank", options_.rank},
                       {"ranks", options_.ranks},
                       {"pid", ::getpid()},
                       {"restored", nullptr}};
  if (restored) {
    JsonDocument from = JsonDocument::array();
    for (const CheckpointLevel level : restored->from) from.push_back(levels::name_of(level));
    line["restored"] = {
        {"version", restored->version.number},      {"step", restored->step},   {"from", std::move(from)},
        {"rebuilt_bytes", restored->rebuilt_bytes}, {"fresh", restored->fresh}, {"left", restored->left}};
    for (const std::string& note : restored->notes) complain(format("passed over: {}", note));
  }
  lines_.print(line);
  return {};
}

Status Rank::dump() const {
  if (options_.dump.empty()) return {};
  std::error_code failure;
  std::filesystem::create_directories(options_.dump, failure);
  if (failure) return fail_errno(failure.value(), format("make the folder {}", options_.dump));
  std::vector<TensorView> views;
  for (const Held& held : held_) {
    const bool is_elsewhere =
        held.tensor->laid.layout.cut == Cut::on && held.tensor->laid.layout.argument % options_.ranks != options_.rank;
    if (is_elsewhere) continue;
    TensorSpec spec = held.tensor->laid.spec;
    spec.name = held.name;
    spec.shape = held.shape;
    views.push_back({.spec = std::move(spec), .data = held.bytes});
  }
  return write_safetensors(format("{}/rank{}.safetensors", options_.dump, options_.rank), views, {}, false);
}

Status Rank::train() {
  for (std::uint64_t step = step_ + 1; step <= options_.steps && !lost_; ++step) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(options_.step_ms);
    while (!lost_ && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::min<std::chrono::duration<double, std::milli>>(
          until - std::chrono::steady_clock::now(), std::chrono::milliseconds(20)));
    }
    const bool due = step % options_.every == 0;
    bool captures = due;
    if (due) {
      const auto begun = checkpointer_->begin(step);
      // A step that found no memory has no checkpoint; the next may.
      captures = begun.has_value();
      if (begun) last_ = *begun;
      if (!begun && begun.error().code() != Code::out_of_space) return fail(begun.error());
    }
    for (std::size_t i = held_.size(); i-- > 0;) {
      Held& held = held_[i];
      if (held.tensor->every != 0 && step % held.tensor->every == 0) write_tensor(held, step);
      if (captures) FRESHET_TRY(checkpointer_->capture_beside(i, held.bytes));
    }
    if (!captures) continue;
    FRESHET_TRY(lines_.print_result_of([&](const auto& print) -> Status {
      FRESHET_ASSIGN(const Checkpointer::Captured captured, checkpointer_->end());
      print({{"event", "captured"},
             {"rank", options_.rank},
             {"version", captured.version},
             {"step", step},
             {"blocked_ms", ms_of(captured.blocked)},
             {"bytes", captured.bytes}});
      return {};
    }));
  }
  return {};
}

Status Rank::rest() {
  // However slow a disk is: as long as the peers are there, it goes on.
  return checkpointer_->finish(std::chrono::hours(24));
}

int Rank::end_with(const Error& error) const {
  // Who ends for a reason that all have is lost to nobody.
  const bool lost = lost_ && error.code() == Code::unavailable;
  if (!lost) complain(format("rank {}: {}", options_.rank, error.message()));
  return lost ? kLost : exit_code_of(error);
}

int Rank::run() {
  Status done = start();
  if (done) done = train();
  if (done && !lost_) done = rest();
  if (!done || lost_) {
    // Who is lost is told by another thread, in a moment.
    for (int i = 0; i < 200 && !lost_ && done.error().code() == Code::unavailable; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const int code = done ? kLost : end_with(done.error());
    checkpointer_.reset();
    return code;
  }
  checkpointer_.reset();
  lines_.print({{"event", "done"}, {"rank", options_.rank}, {"version", last_}});
  const MutexLock lock(mutex_);
  return last_ != 0 && failed_[last_] ? kFailed : 0;
}

Result<State> read_state(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_errno(errno, "read " + path);
  std::stringstream text;
  text << file.rdbuf();
  Result<State> state = parse_state(text.str());
  if (!state) return fail(std::move(state).error().with_context(path));
  return state;
}

}  // namespace
}  // namespace freshet::ranks

int main(int argc, char** argv) {
  using namespace freshet::ranks;
  // Its peers notice that, as they notice a death.
  for (const int signal : {SIGINT, SIGTERM}) (void)std::signal(signal, [](int) { ::_exit(130); });
  Parsed parsed = parse(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  auto state = read_state(parsed.options->state);
  if (!state) {
    complain(state.error().message());
    return exit_code_of(state.error());
  }
  Rank rank(*std::move(parsed.options), *std::move(state));
  return rank.run();
}
