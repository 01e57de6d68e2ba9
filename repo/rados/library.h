// SPDX-License-Identifier: Apache-2.0
#pragma once

/// librados, loaded when the first repository in Ceph is opened and not linked: programs that never name one do not
/// carry it. Private to this folder.

#include <rados/librados.h>

#include "core/base/result.h"

namespace freshet::rados {

#define FRESHET_RADOS_FUNCTIONS(each)                                                                                \
  each(rados_create) each(rados_conf_read_file) each(rados_conf_parse_env) each(rados_conf_set) each(rados_connect)  \
      each(rados_shutdown) each(rados_ioctx_create) each(rados_ioctx_destroy) each(rados_ioctx_set_namespace)        \
          each(rados_create_write_op) each(rados_release_write_op) each(rados_write_op_create)                       \
              each(rados_write_op_write_full) each(rados_write_op_remove) each(rados_write_op_exec)                  \
                  each(rados_write_op_omap_set2) each(rados_write_op_omap_rm_keys2) each(rados_aio_write_op_operate) \
                      each(rados_create_read_op) each(rados_release_read_op) each(rados_read_op_stat)                \
                          each(rados_read_op_read) each(rados_read_op_exec_user_buf)                                 \
                              each(rados_read_op_omap_get_vals2) each(rados_aio_read_op_operate)                     \
                                  each(rados_omap_get_next2) each(rados_omap_get_end)                                \
                                      each(rados_aio_create_completion2) each(rados_aio_cancel)                      \
                                          each(rados_aio_wait_for_complete_and_cb) each(rados_aio_get_return_value)  \
                                              each(rados_aio_release)

struct Library {
#define FRESHET_RADOS_MEMBER(name) decltype(&::name) name = nullptr;
  FRESHET_RADOS_FUNCTIONS(FRESHET_RADOS_MEMBER)
#undef FRESHET_RADOS_MEMBER
};

/// The library, loaded once. unavailable: this machine has none.
Result<const Library*> library();

}  // namespace freshet::rados
