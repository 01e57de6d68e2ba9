// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan/report.h"

#include <algorithm>

#include "bindings/cli/plan/terminal_plot.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

double stall_ms(const Report& report, const Judged& judged) {
  return ms_of_nanoseconds(static_cast<std::int64_t>(judged.rows.size()) * report.clock.timing().stall_ns);
}

Json json_of(const Report& report, const Judged& judged) {
  Json steps = Json::array();
  for (const std::int64_t row : judged.rows) steps.push_back(report.table.step_of(row));
  return {{"cil", judged.cumulative_loss}, {"publishes", std::move(steps)}, {"stall_ms", stall_ms(report, judged)}};
}

const Judged* find(const Report& report, std::string_view name) {
  const auto found = std::ranges::find(report.contenders, name, &Contender::name);
  return found == report.contenders.end() || !found->judged ? nullptr : &*found->judged;
}

std::string parameters_text(const FittedCurve& curve) {
  std::string text;
  const auto& parameters = curve.family->parameters();
  for (std::size_t i = 0; i < curve.parameters.size(); ++i) {
    // All digits: what is computed with them is what is drawn.
    text += format("{}{} = {}", i == 0 ? "" : ", ", parameters[i].name, curve.parameters[i]);
  }
  return text;
}

std::string curve_text(const Report& report) {
  const Forecast& forecast = report.plan.forecast;
  const Horizon& horizon = report.clock.horizon();
  const Band last = forecast.band(static_cast<double>(horizon.rows));
  const FittedCurve& chosen = forecast.chosen();
  const auto last_row = static_cast<double>(horizon.rows);
  const auto members =
      std::ranges::count_if(forecast.families(), [](const FamilyFit& family) { return family.weight > 0; });
  std::string text = format(
      "curve    {}: {} with {}; x is the row\n"
      "         from rows {} to {}; single rows scatter by {:.3g}; at row {} {:.6g}\n",
      chosen.name(), chosen.family->formula(), parameters_text(chosen),
      static_cast<std::int64_t>(forecast.from_iteration()), static_cast<std::int64_t>(forecast.to_iteration()),
      forecast.noise(), horizon.rows, chosen(last_row));
  const std::string mean = members > 1 ? format("the mean of {} curves, this one the heaviest", members) : "this curve";
  return text + format("forecast {}; at row {} {:.6g}, 90 %: {:.6g} to {:.6g}\n", mean, horizon.rows, last.middle,
                       last.lower, last.upper);
}

std::string name_text(const Report& report, const Contender& contender) {
  if (contender.name != "fixed" || report.plan.fixed.interval == 0) return contender.name;
  return format("fixed, every {}", report.plan.fixed.interval);
}

/// "+1.25 %" of one loss over another; they may be negative.
std::string against(double loss, double other) {
  if (other == 0) return loss == 0 ? "+0.00 %" : "";
  return format("{:+.2f} %", (loss - other) / (other < 0 ? -other : other) * 100);
}

std::string contenders_text(const Report& report) {
  const Judged* epoch = find(report, "epoch");
  const Judged* best = find(report, report.replay ? "oracle" : "optimal");
  std::vector<std::vector<std::string>> rows{{"schedule", "publishes", "stalls",
                                              report.replay ? "cumulative loss" : "predicted loss",
                                              report.replay ? "to oracle" : "to optimal", "to epoch"}};
  for (const Contender& contender : report.contenders) {
    if (!contender.judged) continue;
    const Judged& judged = *contender.judged;
    rows.push_back({name_text(report, contender), format("{}", judged.rows.size()),
                    format("{:.3f} s", stall_ms(report, judged) / 1000), format("{:.8g}", judged.cumulative_loss),
                    against(judged.cumulative_loss, best->cumulative_loss),
                    epoch == nullptr ? "" : against(judged.cumulative_loss, epoch->cumulative_loss)});
  }
  return table(rows);
}

/// The optimal list; a long one is cut in the middle.
std::string schedule_text(const Report& report) {
  constexpr std::size_t kShownMax = 60;
  constexpr std::size_t kShownLast = 10;
  const PublishRows& rows = report.plan.optimal;
  if (rows.empty()) return "never publish: no later version is predicted to be better in time";
  std::string text = "publish after steps";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows.size() > kShownMax && i == kShownMax - kShownLast) {
      text += format(" … ({} more, --json has all) …", rows.size() - kShownMax);
      i = rows.size() - kShownLast;
    }
    text += format(" {}", report.table.step_of(rows[i]));
  }
  return text;
}

}  // namespace

Json json_of(const Report& report) {
  Json policies = Json::object();
  for (const Contender& contender : report.contenders) {
    policies[contender.name] = contender.judged ? json_of(report, *contender.judged) : Json();
  }
  Json parameters = Json::object();
  const FittedCurve& curve = report.plan.forecast.chosen();
  for (std::size_t i = 0; i < curve.parameters.size(); ++i) {
    parameters[curve.family->parameters()[i].name] = curve.parameters[i];
  }
  return {{"policies", std::move(policies)},
          {"curve", {{"family", std::string(curve.name())}, {"parameters", std::move(parameters)}}}};
}

std::string text_of(const Report& report) {
  return format("{}\n{}\n{}\n\n{}", curve_text(report), terminal_plot(report), contenders_text(report),
                schedule_text(report));
}

}  // namespace freshet::cli
