// SPDX-License-Identifier: Apache-2.0
// UCX's transports, as the library itself lists them: components, their memory domains, and the transports of each.

#include <cstdlib>
#include <set>
#include <vector>

#include "bindings/cli/doctor/finding.h"
#include "core/base/format.h"

#if __has_include(<uct/api/uct.h>)
#include <uct/api/uct.h>

#include "bindings/cli/doctor/library.h"
#endif

namespace freshet::cli {

#if __has_include(<uct/api/uct.h>)
namespace {

struct Uct {
  Library library{"libuct.so.0"};
  decltype(&uct_query_components) query_components =
      library.function<decltype(uct_query_components)>("uct_query_components");
  decltype(&uct_release_component_list) release_components =
      library.function<decltype(uct_release_component_list)>("uct_release_component_list");
  decltype(&uct_component_query) query_component =
      library.function<decltype(uct_component_query)>("uct_component_query");
  decltype(&uct_md_config_read) read_config = library.function<decltype(uct_md_config_read)>("uct_md_config_read");
  decltype(&uct_config_release) release_config = library.function<decltype(uct_config_release)>("uct_config_release");
  decltype(&uct_md_open) open_md = library.function<decltype(uct_md_open)>("uct_md_open");
  decltype(&uct_md_close) close_md = library.function<decltype(uct_md_close)>("uct_md_close");
  decltype(&uct_md_query_tl_resources) query_transports =
      library.function<decltype(uct_md_query_tl_resources)>("uct_md_query_tl_resources");
  decltype(&uct_release_tl_resource_list) release_transports =
      library.function<decltype(uct_release_tl_resource_list)>("uct_release_tl_resource_list");

  bool complete() const {
    return query_components && release_components && query_component && read_config && release_config && open_md &&
           close_md && query_transports && release_transports;
  }
};

void add_transports(const Uct& uct, uct_component_h component, const char* domain, std::set<std::string>& names) {
  uct_md_config_t* config = nullptr;
  if (uct.read_config(component, nullptr, nullptr, &config) != UCS_OK) return;
  uct_md_h md = nullptr;
  const ucs_status_t opened = uct.open_md(component, domain, config, &md);
  uct.release_config(config);
  if (opened != UCS_OK) return;
  uct_tl_resource_desc_t* transports = nullptr;
  unsigned count = 0;
  if (uct.query_transports(md, &transports, &count) == UCS_OK) {
    for (unsigned i = 0; i < count; ++i) names.insert(transports[i].tl_name);
    uct.release_transports(transports);
  }
  uct.close_md(md);
}

void add_component(const Uct& uct, uct_component_h component, std::set<std::string>& names) {
  uct_component_attr_t attributes{};
  attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
  if (uct.query_component(component, &attributes) != UCS_OK || attributes.md_resource_count == 0) return;
  std::vector<uct_md_resource_desc_t> domains(attributes.md_resource_count);
  attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
  attributes.md_resources = domains.data();
  if (uct.query_component(component, &attributes) != UCS_OK) return;
  for (const uct_md_resource_desc_t& domain : domains) add_transports(uct, component, domain.md_name, names);
}

std::set<std::string> transports_of(const Uct& uct) {
  std::set<std::string> names;
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (uct.query_components(&components, &count) != UCS_OK) return names;
  for (unsigned i = 0; i < count; ++i) add_component(uct, components[i], names);
  uct.release_components(components);
  return names;
}

}  // namespace

Finding find_ucx() {
  const Finding finding{.check = "ucx", .enables = "subscribers on other hosts of a trusted fabric"};
  // Components that this machine lacks are no news.
  ::setenv("UCX_LOG_LEVEL", "fatal", 0);
  const Uct uct;
  if (!uct.complete()) return finding.with(Health::missing, "no libuct.so.0", "apt install libucx0");
  std::string names;
  for (const std::string& name : transports_of(uct)) names += (names.empty() ? "" : " ") + name;
  if (names.empty()) return finding.with(Health::limited, "the library, but no transport");
  return finding.with(Health::ok, names);
}
#else
Finding find_ucx() {
  const Finding finding{.check = "ucx", .enables = "subscribers on other hosts of a trusted fabric"};
  return finding.not_built("libucx-dev");
}
#endif

}  // namespace freshet::cli
