#include "scheduler/scheduler.h"

#include <charconv>

#include "core/format.h"

namespace freshet {
namespace {

class EverySteps final : public Policy {
 public:
  explicit EverySteps(std::uint64_t steps) : steps_(steps) {}

  Decision decide(const Observation& observation) override {
    if (observation.step - last_step_ < steps_) return {};
    return {.publish = true, .reason = "the interval is over"};
  }
  void on_published(const Observation& observation, Duration) override { last_step_ = observation.step; }
  std::string text() const override { return format("every:{}", steps_); }

 private:
  const std::uint64_t steps_;
  std::uint64_t last_step_ = 0;
};

class EpochEnd final : public Policy {
 public:
  Decision decide(const Observation& observation) override {
    if (!observation.epoch_end) return {};
    return {.publish = true, .reason = "the epoch ended"};
  }
  void on_published(const Observation&, Duration) override {}
  std::string text() const override { return "epoch"; }
};

}  // namespace

Result<std::unique_ptr<Policy>> parse_policy(std::string_view text) {
  if (text == "epoch") return std::make_unique<EpochEnd>();
  constexpr std::string_view kEvery = "every:";
  if (text.starts_with(kEvery)) {
    const std::string_view digits = text.substr(kEvery.size());
    std::uint64_t steps = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), steps);
    if (error == std::errc() && end == digits.data() + digits.size() && steps > 0) {
      return std::make_unique<EverySteps>(steps);
    }
    return fail(Code::invalid_argument, format("schedule {}: N in every:N is a number of steps from 1", text));
  }
  return fail(Code::invalid_argument, format("schedule {}: known are every:N and epoch", text));
}

}  // namespace freshet
