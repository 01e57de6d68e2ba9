// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/scheduler.h"

#include <nanobind/stl/string.h>

#include "bindings/python/errors.h"
#include "bindings/python/stream/records.h"
#include "scheduler/scheduler.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

nb::dict decision_to_python(const SchedulerDecision& decision) {
  nb::dict answer;
  answer["step"] = decision.step;
  answer["publish"] = decision.publish;
  answer["reason"] = decision.reason;
  answer["schedule"] = decision.schedule;
  answer["curve"] = decision.explanation.curve;
  answer["gain"] = decision.explanation.gain;
  answer["stall_cost"] = decision.explanation.stall_cost;
  answer["next_in_steps"] = decision.explanation.next_in_steps;
  answer["last_publish_step"] = decision.last_publish_step;
  answer["publishes"] = decision.publishes;
  answer["step_time"] = seconds(decision.step_time);
  answer["stall_time"] = seconds(decision.stall_time);
  answer["delivery_time"] = seconds(decision.delivery_time);
  answer["overhead_percent"] = decision.overhead_percent;
  answer["text"] = decision.text();
  return answer;
}

}  // namespace

void bind_scheduler(nb::module_& module) {
  nb::class_<Scheduler>(module, "Scheduler")
      .def_static(
          "make",
          [](std::string schedule, std::uint64_t epoch_steps, std::uint64_t warmup_steps) {
            return take(Scheduler::make({.schedule = std::move(schedule),
                                         .epoch_steps = epoch_steps,
                                         .warmup_steps = warmup_steps}))
                .release();
          },
          nb::arg("schedule"), nb::arg("epoch_steps"), nb::arg("warmup_steps"), nb::rv_policy::take_ownership)
      .def(
          "observe",
          [](Scheduler& scheduler, std::uint64_t step, double loss, double eval_loss, bool epoch_end) {
            return scheduler.observe({.step = step, .loss = loss, .eval_loss = eval_loss, .epoch_end = epoch_end});
          },
          nb::arg("step"), nb::arg("loss"), nb::arg("eval_loss"), nb::arg("epoch_end"))
      .def("published",
           [](Scheduler& scheduler, double stall) {
             if (!(stall >= 0 && stall < 1e9)) raise(Code::invalid_argument, "published() takes seconds, 0 or more");
             scheduler.published(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(stall)));
           })
      .def("last_decision", [](const Scheduler& scheduler) { return decision_to_python(scheduler.last_decision()); });
}

}  // namespace freshet::python
