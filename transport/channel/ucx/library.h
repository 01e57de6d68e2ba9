// SPDX-License-Identifier: Apache-2.0
#pragma once

/// libucp, loaded when it is first wanted. Linked in the ordinary way it would be part of every process that uses
/// Freshet, where it installs signal handlers before main() and puts its own sigaction() in the place of libc's.

#include <ucp/api/ucp.h>

#include <string_view>

#include "core/base/result.h"

namespace freshet::channel::ucx {

// clang-format off
#define FRESHET_UCX_FUNCTIONS(X) \
  X(ucp_am_data_release) X(ucp_am_recv_data_nbx) X(ucp_am_send_nbx) X(ucp_cleanup) \
  X(ucp_config_modify) X(ucp_config_read) X(ucp_config_release) X(ucp_ep_close_nbx) \
  X(ucp_ep_create) X(ucp_get_version) X(ucp_get_version_string) X(ucp_init_version) \
  X(ucp_listener_create) X(ucp_listener_destroy) X(ucp_listener_query) X(ucp_listener_reject) \
  X(ucp_mem_map) X(ucp_mem_unmap) X(ucp_request_check_status) X(ucp_request_free) X(ucp_worker_arm) \
  X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_get_efd) X(ucp_worker_progress) \
  X(ucp_worker_set_am_recv_handler) X(ucs_status_string)
// clang-format on

/// The functions under their own names. Immutable.
struct Library {
#define FRESHET_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  FRESHET_UCX_FUNCTIONS(FRESHET_UCX_MEMBER)
#undef FRESHET_UCX_MEMBER
};

/// Loads it, once. Any thread; what it returns lives as long as the process. unavailable with the reason.
Result<const Library*> load_library();

/// "what: UCX's words", with the code that says what to do next.
Error error_from(const Library& ucx, ucs_status_t status, std::string_view what);

}  // namespace freshet::channel::ucx
