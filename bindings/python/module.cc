// SPDX-License-Identifier: Apache-2.0
// The extension freshet._core: C++'s classes as freshet/*.py needs them. Nothing here is meant for users.

#include <nanobind/nanobind.h>

#include "bindings/python/checkpointer.h"
#include "bindings/python/errors.h"
#include "bindings/python/graph.h"
#include "bindings/python/host_gpus.h"
#include "bindings/python/journal.h"
#include "bindings/python/log.h"
#include "bindings/python/repository.h"
#include "bindings/python/scheduler.h"
#include "bindings/python/stream/device_tensors.h"
#include "bindings/python/stream/publisher.h"
#include "bindings/python/stream/subscriber.h"
#include "bindings/python/tensors.h"
#include "bindings/python/tier.h"
#include "bindings/python/weights_file.h"

NB_MODULE(_core, module) {
  using namespace freshet::python;
  // What a program still holds when it ends is no leak worth a word.
  nanobind::set_leak_warnings(false);
  load_error_classes();
  nanobind::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Raised& raised) {
      set_python_error(raised.error());
    }
  });
  bind_graph(module);
  bind_tensors(module);
  bind_repository(module);
  bind_host_gpus(module);
  bind_publisher(module);
  bind_subscriber(module);
  bind_device_tensors(module);
  bind_host_device(module);
  bind_scheduler(module);
  bind_checkpointer(module);
  bind_log(module);
  bind_weights_file(module);
  bind_tier(module);
  bind_journal(module);
}
