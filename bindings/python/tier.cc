// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/tier.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "repo/tier/order.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

Result<std::unique_ptr<tier::Order>> open_order(const std::string& file) {
  FRESHET_ASSIGN(const tier::Config config, tier::read_config(file));
  FRESHET_ASSIGN(tier::Order order, tier::Order::open(config));
  return std::make_unique<tier::Order>(std::move(order));
}

}  // namespace

void bind_tier(nb::module_& module) {
  nb::class_<tier::Order>(module, "TierOrder")
      .def_static(
          "open",
          [](const std::string& file) {
            auto opened = [&] {
              const Unlocked unlocked;
              return open_order(file);
            }();
            return take(std::move(opened)).release();
          },
          nb::arg("file"), nb::rv_policy::take_ownership)
      .def(
          "tell",
          [](tier::Order& order, const nb::typed<nb::list, nb::bytes>& paths) {
            std::vector<std::string> texts;
            for (const nb::handle path : paths) {
              const auto bytes = nb::cast<nb::bytes>(path);
              texts.emplace_back(bytes.c_str(), bytes.size());
            }
            const Status told = [&] {
              const Unlocked unlocked;
              return order.tell(texts);
            }();
            take(told);
          },
          nb::arg("paths"))
      .def("anew", [](tier::Order& order) {
        const Status told = [&] {
          const Unlocked unlocked;
          return order.anew();
        }();
        take(told);
      });
}

}  // namespace freshet::python
