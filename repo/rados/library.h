// SPDX-License-Identifier: Apache-2.0
#pragma once

/// librados, loaded when the first repository in Ceph is opened and not linked: programs that never name one do not
/// carry it. Private to this folder.

#include <rados/librados.h>

#include <string_view>

#include "core/base/result.h"

namespace freshet::rados {

#define FRESHET_RADOS_FUNCTIONS(each)                                                                               \
  each(rados_create) each(rados_conf_read_file) each(rados_conf_parse_env) each(rados_conf_set) each(rados_connect) \
      each(rados_shutdown) each(rados_ioctx_create) each(rados_ioctx_destroy) each(rados_ioctx_set_namespace)       \
          each(rados_create_write_op) each(rados_release_write_op) each(rados_write_op_cmpxattr)                    \
              each(rados_write_op_setxattr) each(rados_write_op_omap_set2) each(rados_write_op_omap_rm_keys2)       \
                  each(rados_write_op_operate) each(rados_create_read_op) each(rados_release_read_op)               \
                      each(rados_read_op_omap_get_vals2) each(rados_read_op_omap_get_vals_by_keys2)                 \
                          each(rados_read_op_operate) each(rados_omap_get_next2) each(rados_omap_get_end)           \
                              each(rados_getxattr) each(rados_remove) each(rados_lock_exclusive) each(rados_unlock) \
                                  each(rados_list_lockers) each(rados_nobjects_list_open)                           \
                                      each(rados_nobjects_list_next2) each(rados_nobjects_list_close)               \
                                          each(rados_aio_create_completion2) each(rados_aio_write_full)             \
                                              each(rados_aio_read) each(rados_aio_wait_for_complete)                \
                                                  each(rados_aio_get_return_value) each(rados_aio_release)

struct Library {
#define FRESHET_RADOS_MEMBER(name) decltype(&::name) name = nullptr;
  FRESHET_RADOS_FUNCTIONS(FRESHET_RADOS_MEMBER)
#undef FRESHET_RADOS_MEMBER
};

/// The library, loaded once. unavailable when this machine has none.
Result<const Library*> library();

/// What librados answered, a negative errno, said of `what`.
Error error_from(int answer, std::string_view what);

}  // namespace freshet::rados
